"""Energy distance of two sets of points, for a thousand assignments of points to sets in one pass over all pairs.

``E(X, Y) = 2 mean |x - y| - mean |x - x'| - mean |y - y'|`` is zero if and only if both distributions are equal (Szekely
and Rizzo 2013, https://doi.org/10.1016/j.jspi.2013.03.018). With weights ``w`` that are ``1/n`` on one set and ``-1/m`` on
the other, and ``D`` the matrix of distances, it is ``-w' D w``: for all assignments at once, a product of each block of
``D`` with the matrix of weights. Since weights add up to zero, any constant of a row or a column may be taken off ``D``
first; without this, float32 would lose the digits by which assignments differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from holdfast.core.points.counting import CANCELS
from holdfast.twosample.linearised import Linearised
from holdfast.twosample.permutations import Weights

BLOCK = 2048
"""Points on each side of a block: distances of 16 MB in float32."""
SAMPLE = 256
"""So many points tell the mean distance of each point, up to what does not matter: any number would give the same result."""
Points = Float[Tensor, "n d"]


@dataclass(frozen=True)
class Energies:
    """What one pass over all pairs finds."""

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
