"""Estimates that are nearly sums over points, with the error of one and of the ratio of two.

A ratio ``N / D`` of unbiased estimates has no mean where ``D`` may be near zero, and no interval that always has two ends
can cover it there. Fieller's set ``{s : |N - s D| <= t sd(N - s D)}`` (1954,
https://doi.org/10.1111/j.2517-6161.1954.tb00159.x) covers it everywhere, and has two ends exactly where ``|D| > t sd(D)``.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, sqrt

import torch
from jaxtyping import Float, Int
from torch import Tensor

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
    """Return the ends of Fieller's set of ``top / bottom``, so many deviations wide; infinite where it has no two ends.

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
