"""Energy distance of two sets of points for many assignments, its error, and the part that an edit explains."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, sqrt

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from holdfast.core.points.counting import CANCELS
from holdfast.service.permutations import Weights

# Estimates that are nearly sums over points, with the error of one and of the ratio of two.
#
# A ratio ``N / D`` of unbiased estimates has no mean where ``D`` may be near zero, and no interval that always has
# two ends can cover it there. Fieller's set ``{s : |N - s D| <= t sd(N - s D)}`` (1954,
# https://doi.org/10.1111/j.2517-6161.1954.tb00159.x) covers it everywhere, and has two ends exactly where ``|D| > t
# sd(D)``.

Clusters = Int[Tensor, "s"]
"""The number of each point's cluster, from 0: points of different clusters are independent."""


@dataclass(frozen=True)
class Linearised:
    """An estimate, and what each point adds to its error."""

    value: float
    errors: Float[Tensor, "s"]

    def covariance(self, other: Linearised, clusters: Clusters) -> float:
        """Return the covariance with another estimate from the same points.

        Example:
            >>> errors = torch.tensor([0.5, -0.5])
            >>> estimate = Linearised(1.0, errors)
            >>> estimate.covariance(estimate, torch.tensor([0, 1])), estimate.covariance(estimate, torch.tensor([0, 0]))
            (0.5, 0.0)
        """
        sums = [torch.zeros(len(clusters), dtype=torch.float64) for _ in range(2)]
        for total, each in zip(sums, (self, other), strict=True):
            total.index_add_(0, clusters, each.errors.double())
        return float(sums[0] @ sums[1])

    def deviation(self, clusters: Clusters) -> float:
        """Return the standard deviation of the estimate."""
        return sqrt(self.covariance(self, clusters))


def ratio_interval(top: Linearised, bottom: Linearised, clusters: Clusters, deviations: float) -> tuple[float, float]:
    """Return the ends of Fieller's set of ``top / bottom``, ``deviations`` wide; infinite where it has no two ends.

    Example:
        >>> clusters, errors = torch.arange(2), torch.tensor([0.1, -0.1])
        >>> top, bottom = Linearised(1.0, errors), Linearised(2.0, 0 * errors)
        >>> low, high = ratio_interval(top, bottom, clusters, 2.0)
        >>> round(low, 3), round(high, 3)
        (0.359, 0.641)
        >>> ratio_interval(bottom, Linearised(0.1, errors), clusters, 2.0)
        (-inf, inf)
    """
    square = deviations**2
    a = bottom.value**2 - square * bottom.covariance(bottom, clusters)
    b = top.value * bottom.value - square * top.covariance(bottom, clusters)
    c = top.value**2 - square * top.covariance(top, clusters)
    if a <= 0:
        return -inf, inf
    root = sqrt(max(0.0, b * b - a * c))
    return (b - root) / a, (b + root) / a


# Energy distance of two sets of points, for a thousand assignments of points to sets in one pass over all pairs.
#
# ``E(X, Y) = 2 mean |x - y| - mean |x - x'| - mean |y - y'|`` is zero if and only if both distributions are equal
# (Szekely and Rizzo 2013, https://doi.org/10.1016/j.jspi.2013.03.018). With weights ``w`` that are ``1/n`` on one set
# and ``-1/m`` on the other, and ``D`` the matrix of distances, it is ``-w' D w``: for all assignments at once, a
# product of each block of ``D`` with the matrix of weights. Since weights add up to zero, any constant of a row or a
# column may be taken off ``D`` first; without this, float32 would lose the digits by which assignments differ.

BLOCK = 2048
"""Points on each side of a block: distances of 16 MB in float32."""
SAMPLE = 256
"""Points from which the mean distance of a point is estimated first; the number does not change the result."""
Points = Float[Tensor, "n d"]


@dataclass(frozen=True)
class Energies:
    """Results of one pass over all pairs."""

    statistics: Float[Tensor, "r"]
    """The energy distance under each assignment, a point's distance to itself counted."""
    influence: Float[Tensor, "n"]
    """For each point the mean of its distances to the other set minus that to the others of its own."""
    spread: float
    """Mean distance of points of different sets, under the true assignment."""


def energies(points: Points, weights: Weights) -> Energies:
    """Return the energy distances of ``points`` under all assignments, the first of which is the true one.

    Example:
        >>> weights = torch.tensor([[0.5], [0.5], [-1.0]])
        >>> round(float(energies(torch.tensor([[0.0], [2.0], [5.0]]), weights).statistics), 4)
        7.0
    """
    points = (points - points.double().mean(0)).float()
    offsets = distances(points, points[:: max(1, len(points) // SAMPLE)]).mean(1)
    offsets = offsets - offsets.mean() / 2
    norms = torch.stack([(weights[:, 0] > 0).float(), (weights[:, 0] <= 0).float()], dim=1)
    totals = torch.zeros(weights.shape[1], dtype=torch.float64)
    sums = torch.zeros(len(points), 2, dtype=torch.float64)
    starts = range(0, len(points), BLOCK)
    for top in starts:
        rows = slice(top, top + BLOCK)
        product = torch.zeros(len(points[rows]), weights.shape[1])
        for left in starts:
            if left < top:
                continue
            columns = slice(left, left + BLOCK)
            block = distances(points[rows], points[columns])
            if left == top:
                block.fill_diagonal_(0)
            sums[rows] += block @ norms[columns]
            if left > top:
                sums[columns] += block.T @ norms[rows]
            block -= offsets[rows, None]
            block -= offsets[columns]
            product.addmm_(block, weights[columns], alpha=2.0 if left > top else 1.0)
        totals -= (product * weights[rows]).sum(0, dtype=torch.float64)
    return _concluded(totals, sums, weights[:, 0] > 0)


def distance(
    result: Energies, first: Bool[Tensor, "n"], between_copies: Float[Tensor, "p"] | None = None
) -> Linearised:
    """Return the energy distance of both distributions, on average 0 where they are equal, and each point's part in it.

    A point enters a mean of pairs as either of the two, so that what it adds to the error is twice its influence.

    Args:
        result: of the pass over all pairs.
        first: which points are of the first set.
        between_copies: distances of points of the first set to their copies in the second, which are no pairs of independent
            points and are left out of the mean between both sets.
    """
    sizes = int(first.sum()), int((~first).sum())
    value = float(result.influence[first].mean() + result.influence[~first].mean())
    if between_copies is not None and 0 < len(between_copies) < sizes[0] * sizes[1]:
        pairs, copies = sizes[0] * sizes[1], len(between_copies)
        spread = (pairs * result.spread - float(between_copies.sum())) / (pairs - copies)
        value += 2 * (spread - result.spread)
    errors = torch.empty_like(result.influence)
    for side, size in zip((first, ~first), sizes, strict=True):
        errors[side] = 2 * (result.influence[side] - result.influence[side].mean()) / sqrt(size * (size - 1))
    return Linearised(value, errors)


def _concluded(totals: Tensor, sums: Float[Tensor, "n 2"], first: Tensor) -> Energies:
    """Return the energies, with what each point contributes, from the sums of its distances to both sets."""
    sizes = torch.tensor([int(first.sum()), int((~first).sum())], dtype=torch.float64)
    within = torch.where(first, sums[:, 0], sums[:, 1]) / (torch.where(first, sizes[0], sizes[1]) - 1).clamp_min(1)
    other = torch.where(first, sums[:, 1], sums[:, 0]) / torch.where(first, sizes[1], sizes[0])
    return Energies(totals, other - within, float(other[first].mean()))


def distances(left: Points, right: Float[Tensor, "m d"]) -> Float[Tensor, "n m"]:
    """Return Euclidean distances by one matrix product; where the difference of squares cancels, from the difference."""
    norms = left.square().sum(1)[:, None] + right.square().sum(1)
    square = torch.addmm(norms, left, right.T, alpha=-2)
    i, j = (square < CANCELS * norms).nonzero(as_tuple=True)
    step = max(1, 2**22 // max(1, left.shape[1]))
    for start in range(0, len(i), step):
        pick = slice(start, start + step)
        square[i[pick], j[pick]] = (left[i[pick]] - right[j[pick]]).square().sum(1)
    return square.clamp_min_(0).sqrt_()


# How much of the energy distance between two sets an edit of a few points of the first one takes away.
#
# ``N = E(A', B) - E(t(A'), B)``, in which ``A'`` are the points edited: the same ones in both, so that which these
# are nearly cancels. Its share ``N / E(A, B)`` is at most 1, for ``E`` is nowhere below 0: estimates of it above 1
# are chance.

FEWEST = 3
"""Least number of edited points that have an error."""


def taken_away(
    before: Float[Tensor, "n d"],
    edited: Float[Tensor, "k d"],
    rows: Int[Tensor, "k"],
    after: Float[Tensor, "m d"],
    copies: Int[Tensor, "p 2"],
) -> Linearised:
    """Return what the edit takes away, unbiased, and what each point before and after adds to its error (jackknife).

    Args:
        before: the first set.
        edited: its points at ``rows``, edited.
        rows: those; ``FEWEST`` or more.
        after: the second set.
        copies: rows before and after that are no pairs of independent points, and count in no mean.
    """
    clean, count = before[rows].float(), len(rows)
    edited, after = edited.float(), after.float()
    independent = torch.ones(count, len(after), dtype=torch.float64)
    places, copied = (rows[:, None] == copies[:, 0]).nonzero(as_tuple=True)
    independent[places, copies[copied, 1]] = 0
    gains = independent * (distances(clean, after).double() - distances(edited, after).double())
    nearer = gains.sum(1) / independent.sum(1)
    inside = distances(clean, clean).double() - distances(edited, edited).double()
    inside = inside.fill_diagonal_(0).sum(1) / (count - 1)
    errors = torch.zeros(len(before) + len(after), dtype=torch.float64)
    # Without one of k points a mean over pairs moves by 2 / (k - 2) of that point's own mean.
    errors[rows] = _errors(2 * nearer - 2 * (count - 1) / (count - 2) * inside)
    errors[len(before) :] = _errors(2 * gains.sum(0) / independent.sum(0).clamp_min(1))
    return Linearised(2 * float(nearer.mean()) - float(inside.mean()), errors)


def _errors(values: Float[Tensor, "k"]) -> Float[Tensor, "k"]:
    """Return the contribution of each value to the error of the mean."""
    return (values - values.mean()) / sqrt(len(values) * (len(values) - 1))
