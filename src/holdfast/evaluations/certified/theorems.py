"""Whether radii obey two theorems (Wang and Liu 2022, theorems 5.3 and 5.5), as far as bounds and attacks can tell.

``R1 >= R2`` provably holds if the certified ``R1`` is no smaller than the attacked ``R2``, and provably fails if the
attacked ``R1`` is smaller than the certified ``R2``. Anything else is open.
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Bool, Float, Int
from torch import Tensor

from holdfast.core.records import Verdict
from holdfast.core.run_settings import Observed


@dataclass(frozen=True)
class TheoremCounts:
    """For each image: comparisons, and how many provably obey a theorem, and provably do not."""

    count: Int[Tensor, "b"]
    holds: Int[Tensor, "b"]
    fails: Int[Tensor, "b"]


def by_similarity(shared: Observed, similar: Float[Tensor, "b k"]) -> TheoremCounts:
    """Return whether the less similar of two images to a third has the larger radius, over all triples of images."""
    certified, attacked = shared["certified"], shared["attacked"]
    known = ~certified.isnan()
    less = (similar[:, None] < similar[None]) & known[:, None] & known[None]
    holds = less & (certified[:, None] >= attacked[None])
    fails = less & (attacked[:, None] < certified[None])
    return TheoremCounts(*(each(flags) for flags in (less, holds, fails)))


def each(flags: Bool[Tensor, "b b2 k"]) -> Int[Tensor, "b"]:
    """Return in how many comparisons each image takes part, on either side."""
    return flags.sum((1, 2)) + flags.sum((0, 2))


def by_head(shared: Observed, linear: Observed, foreign: Bool[Tensor, "b k"]) -> TheoremCounts:
    """Return whether radii against images of other classes are larger than that of the head."""
    known = foreign & ~shared["certified"].isnan() & (linear["right"] == 1)[:, None]
    holds = known & (shared["certified"] >= linear["attacked"][:, None])
    fails = known & (shared["attacked"] < linear["certified"][:, None])
    return TheoremCounts(*(flags.sum(1) for flags in (known, holds, fails)))


def theorem_verdict(question: str, counts: TheoremCounts, sides: int = 1) -> Verdict:
    """Return what the comparisons, each counted for as many images as it has ``sides``, say of a theorem."""
    fails, holds, count = (int(part.sum()) // sides for part in (counts.fails, counts.holds, counts.count))
    return Verdict(
        question=question,
        status="refuted" if fails else "proved" if count and holds == count else "unknown",
        reason=f"of {count} comparisons {holds} provably obey and {fails} provably do not",
    )
