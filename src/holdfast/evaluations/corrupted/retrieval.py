"""What a corruption does without any label: to retrieval, and to codes on the scale of other pairs of images."""

from __future__ import annotations

from collections.abc import Mapping

from jaxtyping import Float
from torch import Tensor

from holdfast.core.divergences import Cosine
from holdfast.core.points.counting import Groups, share_of_pairs_within, shares_within
from holdfast.core.records import Claim, Estimate, Series
from holdfast.core.statistics import over_references, summarise
from holdfast.core.statistics.series import series_of

KEPT = "corrupted images closer to their own original than to any image of the bank"
MOVED = "share of pairs of other images that lie no farther apart than the corruption moves the code"
UNDEFINED = "a zero code, which has no direction under cosine, or one that is not finite"


def without_labels(
    corruption: str, observed: Mapping[str, Tensor], pairs: Float[Tensor, "p d"], groups: Groups | None
) -> tuple[list[Series], list[Estimate]]:
    """Return nearest-neighbour accuracy and universal quantile under a corruption.

    ``observed`` are ``kept`` and ``change`` of ``CorruptedAnswers``, averaged over draws or severities; ``pairs`` the codes
    of the images whose pairs make the scale, and ``groups`` which of these belong together.
    """
    conditions, moved = {"corruption": corruption, "divergence": "cosine"}, observed["change"].mean(1).to(pairs.device)
    kept = series_of(
        "nearest_neighbour_kept",
        conditions,
        observed["kept"].mean(1),
        "share of draws",
        Claim.ESTIMATE,
        KEPT,
        UNDEFINED,
    )
    shares = share_of_pairs_within(Cosine(), moved, pairs, groups)
    quantile = series_of("universal_quantile", conditions, shares, "share of pairs", Claim.ESTIMATE, MOVED, UNDEFINED)
    near = shares_within(Cosine(), moved.nanmedian()[None], pairs, groups)[0]
    return [kept, quantile], [
        summarise(kept, "mean", "higher", "nearest_neighbour_accuracy"),
        over_references(summarise(quantile, "median", "lower"), near.cpu().numpy()),
    ]
