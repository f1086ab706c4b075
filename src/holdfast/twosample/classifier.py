"""How well a linear classifier tells two sets of codes apart: learned from one half, asked about the other.

Linear discriminant analysis with a shrunken covariance (Ledoit and Wolf 2004), after Lopez-Paz and Oquab 2017,
https://arxiv.org/abs/1610.06545; the area under its curve in place of its accuracy, since both sets need not be equally
large. Once it is learned, the other half's sides are exchangeable if both sets come from one distribution: its p-value is
that of a permutation test.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import hypot

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from holdfast.core.statistics.intervals import bounded_interval
from holdfast.twosample.permutations import Weights


def scores(
    points: Float[Tensor, "n d"], first: Bool[Tensor, "n"], learning: Bool[Tensor, "n"]
) -> Float[np.ndarray, "m"]:
    """Return what a classifier learned from some of the points says of the others: high for the second set."""
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
