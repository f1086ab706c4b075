"""Along which principal directions two sets of codes differ: Kolmogorov and Smirnov's statistic, by permutation.

Directions are those of all codes together, whatever set these are in, so that permuting the sets stays exact.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.twosample.permutations import Weights

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
