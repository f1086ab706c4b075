"""One of five verdicts on two spaces, each with what to do about it, from the numbers and their intervals.

same to rounding    every image's code moved by at most ``ROUNDING`` of the median distance between images: use either
same directions     every direction did, and norms differ: the index can stay for search by cosine
same neighbours     ``NEIGHBOURS`` of the nearest images stay, in an index encoded anew and in the old one: keep the index
a rotated copy      ``NEIGHBOURS`` stay in an index encoded anew, and a shift, a scale and a rotation leave at most
                    ``ROTATED`` of the held-out variance: encode the index anew
another space       none of these: encode the index anew, and expect other answers

By cosine *same to rounding* asks for directions, too: a code near zero may turn round within the distance of rounding.

The numbers decide. Where numbers inside the intervals would give another verdict, the status is ``unknown``: more images
might say otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from math import inf, isnan

from holdfast.core.records import Estimate, Verdict

ROUNDING = 0.02
NEIGHBOURS = 0.95
ROTATED = 0.02
QUESTION = "Is it still the same space?"
SAME, DIRECTIONS, ALIKE = "same to rounding", "same directions", "same neighbours"
TURNED, OTHER = "a rotated copy", "another space"
ADVICE = {
    SAME: "either may stand for the other",
    DIRECTIONS: "search by cosine, or scale both sides to norm 1: the index can stay, its answers are the same",
    ALIKE: "the index can stay, its answers are nearly the same",
    TURNED: "encode the index anew, its answers stay the same",
    OTHER: "encode the index anew, and expect other answers",
}


@dataclass(frozen=True)
class Numbers:
    """What the verdict is about; None where widths differ."""

    within_rounding: Estimate | None
    same_direction: Estimate | None
    """None also where most images share one direction."""
    neighbours: Estimate
    mixed: Estimate | None
    rotated: Estimate
    norm_ratio: Estimate | None


def verdict(numbers: Numbers, divergence: str) -> Verdict:
    """Return the verdict as a record: ``witness`` holds it in words, and the thresholds.

    Args:
        numbers: what it rests on.
        divergence: what neighbours and distances go by, ``cosine`` or ``l2``.
    """
    word, reason = _decided(numbers, divergence)
    unsure = _unsure(numbers, word, divergence)
    return Verdict(
        question=QUESTION,
        status="unknown" if unsure else "refuted" if word == OTHER else "no violation found",
        reason=f"{word}: {reason}; {ADVICE[word]}{unsure}",
        witness={
            "verdict": word,
            "same to rounding": f"every code within {ROUNDING:g} of the median distance between images",
            "same directions": f"every code at norm 1 within {ROUNDING:g} of the median distance between images",
            "same neighbours": f"at least {NEIGHBOURS:g} of the nearest images kept, in the old index, too",
            "a rotated copy": f"at least {NEIGHBOURS:g} of the nearest images kept in an index encoded anew, and at most "
            f"{ROTATED:g} of the held-out variance left by a rotation",
        },
    )


def _decided(numbers: Numbers, divergence: str) -> tuple[str, str]:
    """Return the verdict and what it rests on."""
    rounding, directions, norms = numbers.within_rounding, numbers.same_direction, numbers.norm_ratio
    kept, mixed, left = numbers.neighbours, numbers.mixed, numbers.rotated
    alike = directions is not None and directions.value == 1
    if rounding is not None and rounding.value == 1 and (alike or divergence != "cosine"):
        return (
            SAME,
            f"all {rounding.n} codes are within {ROUNDING:.0%} of the distance between images{_of_all(rounding)}",
        )
    if directions is not None and norms is not None and alike:
        return DIRECTIONS, (
            f"all {directions.n} codes at norm 1 are within {ROUNDING:.0%} of the distance between images"
            f"{_of_all(directions)}, and norms are {_shown(norms)} times those of the reference"
        )
    if mixed is not None and min(kept.value, mixed.value) >= NEIGHBOURS:
        return ALIKE, f"{_shown(kept)} of the nearest images are kept, {_shown(mixed)} in the old index"
    if kept.value >= NEIGHBOURS and left.value <= ROTATED:
        return TURNED, f"a shift, a scale and a rotation explain all but {_shown(left)} of the held-out variance"
    return OTHER, f"{_shown(kept)} of the nearest images are kept, and a rotation leaves {_shown(left)} unexplained"


def _unsure(numbers: Numbers, word: str, divergence: str) -> str:
    """Return that more images would decide, where numbers inside the intervals give another verdict."""
    mixed = (None,) if numbers.mixed is None else _ends(numbers.mixed)
    possible = product(_ends(numbers.neighbours), mixed, _ends(numbers.rotated))
    others = (
        _decided(replace(numbers, neighbours=kept, mixed=old, rotated=left), divergence)[0]
        for kept, old, left in possible
    )
    if all(other == word for other in others):
        return ""
    if isnan(numbers.neighbours.low):
        return f"; there is {numbers.neighbours.method}, so that more images would decide"
    return "; an interval contains the threshold, so that more images would decide"


def _ends(estimate: Estimate) -> tuple[Estimate, ...]:
    """Return the estimate at either end of its interval, which is the whole line where there is none."""
    low, high = (-inf, inf) if isnan(estimate.low) else (estimate.low, estimate.high)
    return tuple(estimate.model_copy(update={"value": value}) for value in (low, high))


def _of_all(estimate: Estimate) -> str:
    """Return what is known of images that were not seen."""
    return "" if isnan(estimate.low) else f" (of all images at least {estimate.low:.1%} are)"


def _shown(estimate: Estimate) -> str:
    ends = "" if isnan(estimate.low) else f" [{estimate.low:.3g}, {estimate.high:.3g}]"
    return f"{estimate.value:.3g}{ends}"
