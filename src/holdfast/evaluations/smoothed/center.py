"""The mathematics of center smoothing (Kumar and Goldstein 2021, https://arxiv.org/abs/2102.09701).

The smoothed encoder ``F(x)`` is the centre of a small ball that holds half the mass of ``f(x + noise)``, noise being normal
with deviation ``sigma`` in every pixel. Let ``p = Phi(Phi^-1(1/2 + slack) + eps / sigma)``. If the ball of radius ``R``
around ``F(x)`` holds a mass of at least ``p``, then for every ``x'`` within ``eps`` of ``x`` in l2 it holds at least
``1/2 + slack`` of the codes of ``x' + noise`` (Neyman and Pearson). So it meets the ball around ``F(x')``, which holds
``1/2 - slack`` of them; and that ball is at most ``beta R`` wide, being at most ``beta`` times as wide as the smallest one.
Hence ``d(F(x), F(x')) <= (1 + beta) R``, for any metric ``d``. Here ``beta = 2``, since the centre is one of the samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, inf, log, sqrt

import torch
from jaxtyping import Float
from torch import Tensor

BETA = 2.0
CANDIDATES = 64
"""How many samples near the mean are tried first: their medians are close to the least, which rules out most others."""
TILE = 2**21
"""Entries of one tile of products: 8 MB in float32, which stays near the processor."""


@dataclass(frozen=True)
class Centre:
    """The sample whose median distance to all samples is least, and that distance."""

    index: int
    radius: float
    """Infinite where half of the samples are not finite."""


def central_sample(samples: Float[Tensor, "n d"]) -> Centre:
    """Return the sample of least median distance: the ball around it holds half of all, and is at most twice the smallest.

    One blocked matrix product in float32 counts how many others lie within the least distance known, up to rounding; only
    samples with enough of them are looked at in float64. Samples that are not finite are infinitely far from all others.

    Example:
        >>> central_sample(torch.tensor([[0.0], [1.0], [1.5], [9.0]]))
        Centre(index=1, radius=0.5)
    """
    majority = ceil(len(samples) / 2)
    rows = samples.isfinite().all(1).nonzero()[:, 0]
    if len(rows) < majority:
        return Centre(0, inf)
    points = samples[rows].double()
    points = points - points.mean(0)
    order = torch.linalg.vector_norm(points, dim=1).argsort()[:CANDIDATES]
    best = _least(points, order, majority)
    if best[0] > 0:
        best = min(best, _least(points, _not_ruled_out(points, best[0], majority), majority))
    return Centre(int(rows[best[1]]), best[0])


def _least(points: Float[Tensor, "n d"], candidates: Tensor, majority: int) -> tuple[float, int]:
    """Return the least of the candidates' distances to their ``majority``-th nearest point, and whose it is."""
    best = (inf, 0)
    for some in candidates.split(CANDIDATES):
        # Differences before squares: products would lose digits, and near ties the centre would depend on them.
        distances = torch.cdist(points[some], points, compute_mode="donot_use_mm_for_euclid_dist")
        medians = distances.kthvalue(majority, dim=1).values.tolist()
        best = min(best, *zip(medians, some.tolist(), strict=True))
    return best


def _not_ruled_out(points: Float[Tensor, "n d"], within: float, majority: int) -> Tensor:
    """Return the points that may have ``majority`` points at a distance of at most ``within``, as float32 can tell."""
    unit = float(points.abs().max())
    small = (points / unit).float()
    half = small.square().sum(1) / 2
    reach = 8 * (points.shape[1] + 8) * torch.finfo(torch.float32).eps * float(half.max())
    level = (within / unit) ** 2 / 2 + reach
    counts = torch.zeros(len(points), dtype=torch.int32, device=points.device)
    height = max(1, TILE // len(points))
    for top in range(0, len(points), height):
        # A pair of points is looked at once: it counts for both. The block meets itself and all that follow.
        block, rest = small[top : top + height], small[top:]
        near = torch.addmm(half[top:] - level, block, rest.T, alpha=-1) <= -half[top : top + height, None]
        counts[top : top + height] += near.sum(1, dtype=torch.int32)
        counts[top + height :] += near[:, height:].sum(0, dtype=torch.int32)
    return (counts >= majority).nonzero()[:, 0]


def deviation(alpha: float, draws: int) -> float:
    """Return by how much a share of so many draws exceeds its expectation with chance ``alpha`` at most (Hoeffding 1963)."""
    return sqrt(log(1 / alpha) / (2 * draws))


def mass(eps: float, sigma: float, slack: float) -> float:
    """Return ``p``, the mass a ball must hold at ``x`` so as to hold ``1/2 + slack`` at any point within ``eps``.

    Example:
        >>> round(mass(0.25, 0.25, 0.05), 4)
        0.8698
    """
    from scipy.special import ndtr, ndtri

    return float(ndtr(ndtri(0.5 + slack) + eps / sigma))


def quantile(eps: float, sigma: float, slack: float, draws: int, alpha: float) -> float:
    """Return ``q``: the ball that holds this share of the draws holds the mass ``p`` with confidence ``1 - alpha``.

    Above 1 there is no such ball, and more draws are needed.

    Example:
        >>> round(quantile(0.25, 0.25, 0.05, 100_000, 0.005), 4)
        0.875
    """
    return mass(eps, sigma, slack) + deviation(alpha, draws)


def abstains(share: Float[Tensor, "b"], selection: int, slack: float, alpha: float) -> Tensor:
    """Return where the ball around the centre may hold less than ``1/2 - slack``: ``share`` is that of fresh draws in it.

    Both the ball's own mass and that of the smallest one are allowed for: hence ``alpha`` is divided by two.
    """
    off = deviation(alpha / 2, selection)
    return (0.5 - (share - off) > slack) | (off > slack)
