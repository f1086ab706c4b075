"""Permutation tests of two sets: weights of assignments, a linear classifier, principal directions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, comb, hypot

import numpy as np
import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from holdfast.core.errors import HoldfastError
from holdfast.core.noise import Noise
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
        groups: a name for each sample; samples of one group change sides together, for they are not exchangeable alone.
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
    """Return the noise key of each group: the first of its ids, in either set."""
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


@dataclass(frozen=True)
class Area:
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
