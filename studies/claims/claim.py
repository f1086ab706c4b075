"""A claim: a sentence that a paper makes, the rule that decides it, and the function that measures what the rule looks at.

The rule is frozen with the claim, before anything is measured: for each quantity it says where the whole 95% interval must
lie. A claim holds if every interval lies there, fails if one lies wholly elsewhere, and is open otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal

from studies.claims.material import Material
from studies.claims.measured import Measured

Verdict = Literal["holds", "fails", "open", "untestable here"]


@dataclass(frozen=True)
class Range:
    """Where a claim says that a quantity lies; an end that is no limit is infinite. ``strict``: ends are not included.

    Example:
        >>> print(Range(0.9, 1.1), Range(low=0.9), Range(0, 0), ABOVE, sep=", ")
        from 0.9 to 1.1, at least 0.9, exactly 0, above 0
    """

    low: float = -inf
    high: float = inf
    strict: bool = False

    def __str__(self) -> str:
        if self.low == self.high:
            return f"exactly {self.low:g}"
        if self.high == inf:
            return f"{'above' if self.strict else 'at least'} {self.low:g}"
        if self.low == -inf:
            return f"{'below' if self.strict else 'at most'} {self.high:g}"
        return f"from {self.low:g} to {self.high:g}"

    def holds(self, one: Measured) -> bool:
        """Return whether the whole interval lies in the range."""
        if self.strict:
            return self.low < one.low and one.high < self.high
        return self.low <= one.low and one.high <= self.high

    def fails(self, one: Measured) -> bool:
        """Return whether the whole interval lies outside."""
        return one.high < self.low or one.low > self.high


ABOVE, BELOW = Range(low=0.0, strict=True), Range(high=0.0, strict=True)


@dataclass(frozen=True)
class Claim:
    """A sentence of a paper that can be tested.

    ``claimed`` names the quantities that decide, and where the claim says they lie. Quantities that ``measure`` returns
    beside those are shown for the reader and decide nothing.
    """

    name: str
    sentence: str
    source: str
    data: str
    """What it is measured on, and how."""
    claimed: Mapping[str, Range]
    measure: Callable[[Material], Iterable[Measured]] | None = None
    """None for a claim of which nothing can be measured yet."""
    lacks: str = ""
    """What of the claim is not tested, and what is missing for it."""
    untestable: bool = False
    """Whether nothing of it can be tested without what it lacks."""

    @property
    def rule(self) -> str:
        """Return the rule in words."""
        wanted = "; ".join(f"{quantity}: {wanted}" for quantity, wanted in self.claimed.items())
        return f"holds where the whole 95% interval lies as claimed ({wanted}), fails where one lies wholly elsewhere"

    def verdict(self, found: Sequence[Measured]) -> Verdict:
        """Return what the rule says of what was found.

        An "every" is refuted by one counterexample; without any it stays open, for the interval of their share has room.
        """
        return verdict(self.claimed, found)


def verdict(claimed: Mapping[str, Range], found: Sequence[Measured]) -> Verdict:
    """Return the verdict: of nothing measured, that nothing is known."""
    decisive = [(claimed[one.quantity], one) for one in found if one.quantity in claimed]
    if any(wanted.fails(one) for wanted, one in decisive):
        return "fails"
    complete = {one.quantity for _, one in decisive} == set(claimed)
    return "holds" if complete and all(wanted.holds(one) for wanted, one in decisive) else "open"
