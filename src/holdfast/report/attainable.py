"""Gates that cannot decide: few images or random divisions allow only one answer for every encoder."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from math import ceil, comb, floor, log
from operator import le, lt
from typing import TYPE_CHECKING

from holdfast.core.errors import HoldfastError
from holdfast.core.records import Estimate, Resolution
from holdfast.core.statistics.summaries import is_share

if TYPE_CHECKING:
    from holdfast.report.gate import Gate

EXACT = "; no interval"
"""Endings of the methods of numbers without an interval, such as counts and p-values."""
MID_P = "mid-P"
"""The method of a share whose interval follows from counts alone."""


def check_attainable(gate: Gate, estimates: Sequence[Estimate], strict: bool) -> None:
    """Raise if ``estimates`` of one encoder answer the gate alike, whatever values they could have taken.

    A strict check looks at intervals, which reach further than values.
    """
    ends = [attainable(each) for each in estimates if not strict or each.method.endswith(EXACT)]
    known = [end for end in ends if end is not None]
    if not estimates or len(known) < len(estimates):
        return
    if len({gate.holds(value) for end in known for value in end}) > 1:
        return
    least, most = min(low for low, _ in known), max(high for _, high in known)
    limit = f"at least {least:.2g}" if least > 0 else f"at most {most:.3g}"
    raise HoldfastError(
        f"gate {gate.text!r}: it can never {'fail' if gate.holds(least) else 'pass'}, because {gate.quantity} is {limit} "
        f"here, whatever the images show. {_finer(gate, [each.resolution for each in estimates if each.resolution])}"
    )


def attainable(estimate: Estimate) -> tuple[float, float] | None:
    """Return the smallest and the largest value that ``estimate`` could have taken; None where that is not known."""
    if estimate.resolution is not None:
        return estimate.resolution.least, 1.0
    return None if estimate.most is None else (0.0, estimate.most)


def _finer(gate: Gate, resolutions: Sequence[Resolution]) -> str:
    """Return the numbers of random divisions and images that allow p-values below the threshold of ``gate``."""
    if not 0 < gate.bound < 1 or not resolutions:
        return "Measure more images, or give another bound"
    finest, below = min(resolutions, key=lambda each: each.least), gate.operator in (">=", "<")
    small_enough = lt if below else le
    needs = list[str]()
    if not small_enough(finest.tests / (finest.draws + 1), gate.bound):
        draws = floor(finest.tests / gate.bound) if below else ceil(finest.tests / gate.bound) - 1
        needs.append(f"{draws} random divisions (permutations, now {finest.draws})")
    if not small_enough(finest.tests * finest.by_images, gate.bound):
        sizes = (size for size in count(1) if small_enough(2 * finest.tests / comb(2 * size, size), gate.bound))
        needs.append(f"two sets of {next(sizes)} images or groups")
    return f"It needs at least {' and '.join(needs)}"


def out_of_reach(gate: Gate, estimate: Estimate, end: float) -> str:
    """Return why no encoder could pass a strict check of a fraction of so few images; empty if one could.

    Args:
        gate: the bound that the whole interval must keep.
        estimate: the share, which may be the best there can be.
        end: the end of its interval that is nearest to breaking the bound.
    """
    best = 0.0 if gate.limits == "above" else 1.0
    if not is_share(estimate.unit) or estimate.value != best or not gate.holds(best) or gate.holds(end):
        return ""
    reason = (
        f"{estimate.n} samples are too few for a strict check, since even the best value has an interval to {end:.3g}"
    )
    share = 1 - gate.bound if best == 0 else gate.bound
    if estimate.method != MID_P or not 0 < share < 1:
        return f"{reason}; measure more"
    # The mid-P interval of n of n ends where p^n / 2 is half of what it leaves out.
    return f"{reason}; it takes {ceil(log(1 - estimate.confidence) / log(share))}"
