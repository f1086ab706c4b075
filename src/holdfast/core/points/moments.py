"""Sums over codes, block by block, from which mean, covariance and rank follow: no copy of all codes is made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from jaxtyping import Float, Int
from torch import Tensor

BLOCK = 1 << 22
"""Values looked at together: 32 MB in float64."""
COLLAPSED = 1e-6
"""Spread of the codes, relative to their size, below which they count as one point."""


@dataclass(frozen=True, eq=False)
class Moments:
    """What is summed over codes."""

    count: int
    origin: Float[Tensor, "d"]
    """A point near the codes, so that nothing cancels."""
    sum: Float[Tensor, "d"]
    """Of the codes less ``origin``."""
    scatter: Float[Tensor, "e e"]
    """The sum of outer products of the codes less ``origin``; empty where it was not asked for."""
    least: Float[Tensor, "d"]
    most: Float[Tensor, "d"]

    @property
    def mean(self) -> Float[Tensor, "d"]:
        return self.origin + self.sum / self.count

    @property
    def collapsed(self) -> bool:
        """Whether all codes are one point up to rounding."""
        size = self.most.abs().maximum(self.least.abs()).max()
        return bool((self.most - self.mean).maximum(self.mean - self.least).max() <= COLLAPSED * size)

    @property
    def rank(self) -> float:
        """The participation ratio ``(sum l)^2 / sum l^2`` of the covariance's eigenvalues ``l``; 0 for collapsed codes."""
        if self.collapsed:
            return 0.0
        centred = self.scatter - self.sum[:, None] * self.sum / self.count
        return float(centred.trace() ** 2 / centred.square().sum())


def moments(codes: Float[Tensor, "n d"], rows: Int[Tensor, "k"] | None = None, scatter: bool = True) -> Moments:
    """Return the moments of ``codes``, or of those at ``rows``, those with ``scatter`` if it is asked for.

    Example:
        >>> round(moments(torch.eye(3)).rank, 6)
        2.0
    """
    features, origin = codes.shape[1], codes[0].double()
    outer = torch.zeros(features, features, dtype=torch.float64, device=codes.device) if scatter else torch.zeros(0, 0)
    total, least, most = torch.zeros_like(origin), origin + torch.inf, origin - torch.inf
    count, step = len(codes) if rows is None else len(rows), max(1, BLOCK // features)
    for start in range(0, count, step):
        part = slice(start, start + step)
        block = codes[part if rows is None else rows[part]].double()
        least, most = least.minimum(block.amin(0)), most.maximum(block.amax(0))
        block = block - origin
        total += block.sum(0)
        if scatter:
            outer.addmm_(block.T, block)
    return Moments(count, origin, total, outer, least, most)


def together(parts: Sequence[Moments]) -> Moments:
    """Return the moments of all ``parts``, which have one origin."""

    def both(a: Moments, b: Moments) -> Moments:
        least, most = a.least.minimum(b.least), a.most.maximum(b.most)
        return Moments(a.count + b.count, a.origin, a.sum + b.sum, a.scatter + b.scatter, least, most)

    return reduce(both, parts)
