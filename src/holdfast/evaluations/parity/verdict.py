"""One of four verdicts on two spaces, each with what to do about it, from the numbers and their intervals.

same to rounding    every image's code moved by at most ``ROUNDING`` of the median distance between images: use either
same neighbours     ``NEIGHBOURS`` of the nearest images stay, in an index encoded anew and in the old one: keep the index
a rotated copy      ``NEIGHBOURS`` stay in an index encoded anew, and a shift, a scale and a rotation leave at most
                    ``ROTATED`` of the held-out variance: encode the index anew
another space       none of these: encode the index anew, and expect other answers

The numbers decide; where an interval contains its threshold the verdict's status is ``unknown``, for more images might say
otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isnan

from holdfast.core.records import Estimate, Verdict

ROUNDING = 0.02
NEIGHBOURS = 0.95
ROTATED = 0.02
QUESTION = "Is it still the same space?"
SAME, ALIKE, TURNED, OTHER = "same to rounding", "same neighbours", "a rotated copy", "another space"
ADVICE = {
    SAME: "either may stand for the other",
    ALIKE: "the index can stay, its answers are nearly the same",
    TURNED: "encode the index anew, its answers stay the same",
    OTHER: "encode the index anew, and expect other answers",
}


@dataclass(frozen=True)
class Numbers:
    """What the verdict is about; None where widths differ."""

    within_rounding: Estimate | None
    neighbours: Estimate
    mixed: Estimate | None
    rotated: Estimate


def verdict(numbers: Numbers) -> Verdict:
    """Return the verdict as a record: ``witness`` holds it in words, and the thresholds."""
    word, reason = _decided(numbers)
    unsure = _unsure(numbers, word)
    return Verdict(
        question=QUESTION,
        status="unknown" if unsure else "refuted" if word == OTHER else "no violation found",
        reason=f"{word}: {reason}; {ADVICE[word]}{unsure}",
        witness={
            "verdict": word,
            "same to rounding": f"every code within {ROUNDING:g} of the median distance between images",
            "same neighbours": f"at least {NEIGHBOURS:g} of the nearest images kept, in the old index, too",
            "a rotated copy": f"at least {NEIGHBOURS:g} of the nearest images kept in an index encoded anew, and at most "
            f"{ROTATED:g} of the held-out variance left by a rotation",
        },
    )


def _decided(numbers: Numbers) -> tuple[str, str]:
    """Return the verdict and what it rests on."""
    rounding, kept, mixed, left = numbers.within_rounding, numbers.neighbours, numbers.mixed, numbers.rotated
    if rounding is not None and rounding.value == 1:
        of_all = "" if isnan(rounding.low) else f" (of all images at least {rounding.low:.1%} are)"
        return SAME, f"all {rounding.n} codes are within {ROUNDING:.0%} of the distance between images{of_all}"
    if mixed is not None and min(kept.value, mixed.value) >= NEIGHBOURS:
        return ALIKE, f"{_shown(kept)} of the nearest images are kept, {_shown(mixed)} in the old index"
    if kept.value >= NEIGHBOURS and left.value <= ROTATED:
        return TURNED, f"a shift, a scale and a rotation explain all but {_shown(left)} of the held-out variance"
    return OTHER, f"{_shown(kept)} of the nearest images are kept, and a rotation leaves {_shown(left)} unexplained"


def _unsure(numbers: Numbers, word: str) -> str:
    """Return that more images would decide, where the interval of a number contains its threshold, or there is none."""
    kept, mixed, left = (
        each is not None and not (each.high < threshold or each.low >= threshold)
        for each, threshold in (
            (numbers.neighbours, NEIGHBOURS),
            (numbers.mixed, NEIGHBOURS),
            (numbers.rotated, ROTATED),
        )
    )
    unsure = {SAME: False, ALIKE: kept or mixed, TURNED: kept or mixed or left, OTHER: kept or (mixed and left)}
    if not unsure[word]:
        return ""
    if isnan(numbers.neighbours.low):
        return f"; there is {numbers.neighbours.method}, so that more images would decide"
    return "; an interval contains the threshold, so that more images would decide"


def _shown(estimate: Estimate) -> str:
    ends = "" if isnan(estimate.low) else f" [{estimate.low:.3g}, {estimate.high:.3g}]"
    return f"{estimate.value:.3g}{ends}"
