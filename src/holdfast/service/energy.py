"""Energy distance of two sets of points for many assignments, its error, and the part that an edit explains.

Also here, for permutation tests of two sets: weights of assignments, a linear classifier, principal directions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, comb, hypot, inf, sqrt
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from holdfast.core.errors import HoldfastError
from holdfast.core.noise import Noise
from holdfast.core.points.counting import CANCELS
from holdfast.core.statistics.intervals import bounded_interval

# Permutations of which set each sample belongs to, as vectors of weights: all tests here are matrix products with
# them.
#
# If both sets come from one distribution, every assignment of samples to sets is as likely as the true one. A
# statistic that is as large as the true one's in ``c`` of ``r`` random assignments has the p-value ``(c + 1) / (r +
# 1)``, which is at most ``alpha`` with chance ``alpha`` at most, at every sample size (Phipson and Smyth 2010,
# https://doi.org/10.2202/1544-6115.1585).

Weights = Float[Tensor, "n r"]
DRAWN = 64
"""Assignments drawn at a time; the draws depend on it."""
MOST = 100_000
"""Assignments drawn at most: their weights fill 400 MB for 1,000 samples."""
SPARE = 5
"""Assignments drawn per assignment that the level needs: with 1, a single tie hides a true change."""
TIE = 1e-6
"""Fraction of the largest statistic up to which two count as equal: the same assignment, summed in another order."""


def assignments(count: int, ids: Sequence[str], groups: Sequence[str], permutations: int, seed: int) -> Weights:
    """Return weights of the true assignment (column 0) and of random ones: ``1/n`` in the first set, ``-1/m`` in the other.

    Args:
        count: how many of the samples, the first ones, belong to the first set.
        ids: a name for each sample; draws follow it, so that the order of the samples decides nothing.
        groups: a name for each sample; samples of one group change sides together, because they are not exchangeable alone.
        permutations: how many random assignments; each has as many groups on either side as the true one.
        seed: of the draws.

    Example:
        >>> weights = assignments(2, ["a", "b", "c"], ["a", "b", "c"], permutations=5, seed=0)
        >>> weights[:, 0], weights.shape
        (tensor([ 0.5000,  0.5000, -1.0000]), torch.Size([3, 6]))
    """
    names, group_of = np.unique(np.array([f"{k < count}/{name}" for k, name in enumerate(groups)]), return_inverse=True)
    first = torch.from_numpy(np.char.startswith(names, "True"))
    keys = _keys(names.tolist(), ids, group_of)
    sides = torch.empty(len(names), permutations + 1, dtype=torch.bool)
    sides[:, 0] = first
    noise, most = Noise.of(seed, keys).fork("assignment"), int(first.sum())
    for start in range(0, permutations, DRAWN):
        draws = noise.fork(start).bits((DRAWN,))[:, : permutations - start].T.contiguous()
        sides[:, 1 + start : 1 + start + DRAWN] = (draws <= draws.kthvalue(most, dim=1, keepdim=True).values).T
    chosen = sides[torch.from_numpy(group_of)]
    sizes = chosen.sum(0)
    return torch.where(chosen, 1 / sizes, -1 / (len(ids) - sizes)).float()


def _keys(names: Sequence[str], ids: Sequence[str], group_of: Shaped[np.ndarray, "n"]) -> list[str]:
    """Return the noise key of each group: its first id, in either set."""
    least = dict[int, str]()
    for name, group in zip(ids, group_of.tolist(), strict=True):
        least[group] = min(name, least.get(group, name))
    return [least[group] for group in range(len(names))]


def enough(permutations: int, alpha: float, tests: int) -> int:
    """Return how many assignments to draw so that one of ``tests`` can reach ``alpha`` after Bonferroni's correction.

    Args:
        permutations: draw at least this many.
        alpha: level of all tests together.
        tests: number of tests that decide together.

    Raises:
        HoldfastError: the level needs more than ``MOST``.

    Example:
        >>> enough(1000, 0.05, 2), enough(1000, 0.001, 2)
        (1000, 9999)
    """
    needed = ceil(tests / alpha) - 1
    if needed > MOST:
        raise HoldfastError(
            f"alpha: {alpha:g} needs {needed:,} random divisions, more than {MOST:,}. Use {tests / MOST:g} or more"
        )
    return max(permutations, min(MOST, SPARE * (needed + 1) - 1))


def smallest_p_value(first: int, second: int, two_sided: bool) -> float:
    """Return the smallest p-value that all assignments of the units to two sets allow.

    Args:
        first: units (samples or groups) in the first set.
        second: units in the second set.
        two_sided: whether swapping both sets keeps the statistic, so that sets of one size make every value occur twice.

    Example:
        >>> smallest_p_value(2, 2, two_sided=False), round(smallest_p_value(4, 4, two_sided=True), 3)
        (0.16666666666666666, 0.029)
    """
    return (2 if two_sided and first == second else 1) / comb(first + second, first)


def p_value(statistics: Float[Tensor, "r"]) -> tuple[float, int]:
    """Return the p-value of the first of ``statistics``, that of the true assignment, and how many others are as large.

    Example:
        >>> p_value(torch.tensor([3.0, 1.0, 2.0, 3.0]))
        (0.5, 1)
    """
    true, others = statistics[0], statistics[1:]
    as_large = int((others >= true - TIE * statistics.abs().max()).sum())
    return (as_large + 1) / (len(others) + 1), as_large


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values of which none is at most ``alpha`` by chance with more than chance ``alpha`` (Holm 1979).

    Example:
        >>> holm([0.01, 0.04, 0.03])
        [0.03, 0.06, 0.06]
    """
    order, adjusted, largest = np.argsort(p_values, kind="stable"), [0.0] * len(p_values), 0.0
    for place, index in enumerate(order.tolist()):
        largest = max(largest, min(1.0, (len(p_values) - place) * p_values[index]))
        adjusted[index] = largest
    return adjusted


# How well a linear classifier tells two sets of codes apart: learned from one half, asked about the other.
#
# Linear discriminant analysis with a shrunken covariance (Ledoit and Wolf 2004), after Lopez-Paz and Oquab 2017,
# https://arxiv.org/abs/1610.06545; the area under its curve in place of its accuracy, since both sets need not be
# equally large. Once it is learned, the other half's sides are exchangeable if both sets come from one distribution:
# its p-value is that of a permutation test.


def scores(
    points: Float[Tensor, "n d"], first: Bool[Tensor, "n"], learning: Bool[Tensor, "n"]
) -> Float[np.ndarray, "m"]:
    """Return the scores of held-out points by a classifier fitted on the others; high for the second set."""
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

    x, y = points.double().numpy(), (~first).numpy()
    training = learning.numpy()
    spread = x[training].std(0)
    if not (spread > 0).any():
        return np.zeros(int((~training).sum()))
    x = (x - x[training].mean(0)) / np.where(spread > 0, spread, 1)
    classifier = LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto").fit(x[training], y[training])
    return np.asarray(classifier.decision_function(x[~training]), dtype=np.float64)


class Area(NamedTuple):
    """The area under the curve, with its interval."""

    value: float
    low: float
    high: float


def area(values: Float[np.ndarray, "m"], first: Bool[np.ndarray, "m"]) -> Area:
    """Return the chance that a random sample of the second set scores higher than one of the first, ties counted half.

    Each sample's share of the others that it beats is between 0 and 1; chance enters through both sets, and adds up in
    squares (DeLong, DeLong and Clarke-Pearson 1988 for the shares, Zou and Donner 2008 for the ends).

    Example:
        >>> area(np.array([0.0, 1.0, 2.0, 3.0]), np.array([True, True, False, False])).value
        1.0
    """
    ranks = mid_ranks(values)
    above = (ranks[~first] - mid_ranks(values[~first])) / first.sum()  # of each of the second set, the first beaten
    below = 1 - (ranks[first] - mid_ranks(values[first])) / (~first).sum()
    value = float(above.mean())
    ends = [bounded_interval(shares, (0.0, 1.0)) for shares in (above, below)]
    low = value - hypot(*(value - end[0] for end in ends))
    high = value + hypot(*(end[1] - value for end in ends))
    return Area(value, max(0.0, low), min(1.0, high))


def mid_ranks(values: Float[np.ndarray, "m"]) -> Float[np.ndarray, "m"]:
    """Return the place of each value from 1 on; equal ones share the mean of theirs.

    Example:
        >>> mid_ranks(np.array([5.0, 1.0, 5.0, 7.0]))
        array([2.5, 1. , 2.5, 4. ])
    """
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (counts.cumsum() - (counts - 1) / 2)[place]


def rank_statistics(values: Float[np.ndarray, "m"], weights: Weights) -> Float[Tensor, "r"]:
    """Return the difference of the mean ranks of the second set and the first under each assignment."""
    return -(torch.from_numpy(mid_ranks(values)).float() - (len(values) + 1) / 2) @ weights


# Along which principal directions two sets of codes differ: Kolmogorov and Smirnov's statistic, by permutation.
#
# Directions are those of all codes together, whatever set these are in, so that permuting the sets stays exact.

COLUMNS = 2**22
"""Entries of one block of running sums."""


def principal(points: Float[Tensor, "n d"], count: int) -> tuple[Float[Tensor, "n k"], Float[Tensor, "k"]]:
    """Return coordinates along ``count`` principal directions, in deviations, and each one's share of all variance."""
    centred = points.double() - points.double().mean(0)
    wide = centred.shape[1] > len(centred)  # then the products of samples are the smaller matrix
    values, vectors = torch.linalg.eigh((centred @ centred.T if wide else centred.T @ centred) / len(points))
    values, vectors = values.flip(0).clamp_min(0), vectors.flip(1)
    kept = min(count, int((values > 1e-10 * values.sum()).sum()))
    scales = values[:kept].sqrt()
    coordinates = vectors[:, :kept] * scales * len(points) ** 0.5 if wide else centred @ vectors[:, :kept]
    signs = torch.where(coordinates.pow(3).sum(0) < 0, -1.0, 1.0).double()
    return coordinates * signs / scales, values[:kept] / values.sum().clamp_min(1e-300)


def largest_gaps(values: Float[Tensor, "n"], weights: Weights) -> Float[Tensor, "r"]:
    """Return the largest difference of both distribution functions of ``values`` under each assignment.

    Example:
        >>> largest_gaps(torch.tensor([0.0, 1.0, 1.0]), torch.tensor([[0.5], [0.5], [-1.0]]))
        tensor([0.5000])
    """
    ordered, order = values.sort()
    last = torch.ones(len(values), dtype=torch.bool)
    last[:-1] = ordered[1:] > ordered[:-1]  # of equal values, the distribution functions jump together
    step = max(1, COLUMNS // len(values))
    parts = []
    for start in range(0, weights.shape[1], step):
        running = weights[order, start : start + step].cumsum(0)
        parts.append(running[last].abs().amax(0))
    return torch.cat(parts)


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
