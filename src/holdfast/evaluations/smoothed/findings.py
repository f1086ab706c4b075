"""From what noisy copies say to certified distances."""

from __future__ import annotations

from math import ceil

import torch
from jaxtyping import Float, Int
from torch import Tensor

from holdfast.core.divergences import Cosine, Divergence, Rank, UnitL2
from holdfast.core.records import Estimate, Question
from holdfast.evaluations.smoothed.center import BETA, abstains, quantile
from holdfast.evaluations.smoothed.copies import kept_ranks
from holdfast.evaluations.smoothed.index import Smoothing

ABSTAINED = "center smoothing abstained: the ball may hold less than half of the noisy codes"

SIMILAR = (
    "cosine similarity between the smoothed code of an image after the worst change of this l2 size and the one before"
)
WITH_NOISE = Question(
    place=85,
    text="What is certified once noise is added?",
    quantities=("certified_cosine_similarity",),
    meaning="cosine similarity that smoothed codes keep after any change of this size",
    select="best",
)
"""Center smoothing and feature-space smoothing both answer it; the tighter one leads."""


def certified_distance(
    distances: Float[Tensor, "b g"],
    share: Float[Tensor, "b"],
    radius: float,
    smoothing: Smoothing,
    slack: float,
    alpha: float,
    draws: Int[Tensor, "b"] | None = None,
    looks: int = 1,
) -> Float[Tensor, "b"]:
    """Return ``3 R``: how far a change of l2 size ``radius`` moves the centre at most; nan where center smoothing abstains.

    ``alpha`` is shared out evenly: half for what is found at the changed image, half for ``R``. ``distances`` are the kept
    order statistics of ``draws`` copies, by default all of them, after one of so many ``looks``.
    """
    draws = torch.full(share.shape, smoothing.copies) if draws is None else draws
    farthest = torch.full_like(share, torch.nan)
    for number in draws.unique().tolist():
        level = quantile(radius, smoothing.sigma, slack, number, alpha / 2 / looks)
        if level <= 1:
            rank = torch.searchsorted(kept_ranks(number, smoothing.copies), ceil(level * number))
            rows = draws == number
            farthest[rows] = (1 + BETA) * distances[rows, int(rank)].double()
    abstained = abstains(share, smoothing.selection, slack, alpha / 2) | ~farthest.isfinite()
    return farthest.masked_fill(abstained, torch.nan)


def of_distance(divergence: Divergence, distance: Float[Tensor, "b"]) -> Float[Tensor, "b"]:
    """Return the divergence that belongs to a distance of embedded codes; on a sphere none exceeds its diameter."""
    on_sphere = isinstance(divergence, (Cosine, UnitL2, Rank))
    return divergence.of_distance(distance.clamp_max(2.0) if on_sphere else distance)


def sure(estimate: Estimate, alpha: float, images: int) -> Estimate:
    """Return ``estimate`` whose method also says with what confidence the certificates it summarises hold.

    All of them together hold with ``1 - images * alpha`` at least, however they depend on each other (Bonferroni).
    """
    together = max(0.0, 1 - images * alpha)
    confidence = (
        f"each certificate holds with confidence {1 - alpha:.6g}, all {images} together with at least {together:.6g}"
    )
    return estimate.model_copy(update={"method": f"{estimate.method}; {confidence}"})
