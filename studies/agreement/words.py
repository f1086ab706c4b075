"""Agreement in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite

from studies.agreement.conclusions import Agreement
from studies.agreement.rankings import Interval
from studies.agreement.references import PRIMARY

Agreements = Mapping[tuple[str, str], Agreement]


def value(tau: float, ends: Interval) -> str:
    """Return an agreement and its interval.

    Example:
        >>> value(0.5, Interval(0.25, 0.75, 0.2, 0.8)), value(float("nan"), Interval(0, 0, 0, 0))
        ('+0.50 [+0.25, +0.75]', 'unknown')
    """
    return f"{tau:+.2f} {spread(ends)}" if isfinite(tau) else "unknown"


def known(number: float) -> str:
    """Return a number with two decimals, or that it is unknown.

    Example:
        >>> known(0.526), known(float("nan"))
        ('0.53', 'unknown')
    """
    return f"{number:.2f}" if isfinite(number) else "unknown"


def spread(ends: Interval) -> str:
    """Return the two ends of an interval."""
    return f"[{ends.low:+.2f}, {ends.high:+.2f}]" if isfinite(ends.low) else "[unknown]"


def listed(names: Sequence[str]) -> str:
    """Return names as a sentence lists them.

    Example:
        >>> listed(["a", "b", "c"])
        'a, b and c'
    """
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def primary(found: Agreements) -> list[Agreement]:
    """Return the agreements with the primary reference, the largest tau first and those unknown last."""
    chosen = [one for (_, reference), one in found.items() if reference == PRIMARY]
    return sorted(chosen, key=lambda one: -one.tau if isfinite(one.tau) else 2)
