"""Mean, covariance and rank of embeddings from sums over blocks, without a copy of all embeddings."""

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
    """Sums over embeddings, for mean, covariance and rank."""

    count: int
    origin: Float[Tensor, "d"]
    """Point near the embeddings, shape (d,), so that nothing cancels."""
    sum: Float[Tensor, "d"]
    """Sum of embeddings minus ``origin``, shape (d,)."""
    scatter: Float[Tensor, "e e"]
    """Sum of outer products of embeddings minus ``origin``, shape (d, d); empty if not computed."""
    least: Float[Tensor, "d"]
    most: Float[Tensor, "d"]

    @property
    def mean(self) -> Float[Tensor, "d"]:
        return self.origin + self.sum / self.count

    @property
    def collapsed(self) -> bool:
        """True if all embeddings are one point up to rounding."""
        size = self.most.abs().maximum(self.least.abs()).max()
        return bool((self.most - self.mean).maximum(self.mean - self.least).max() <= COLLAPSED * size)

    @property
    def rank(self) -> float:
        """Participation ratio ``(sum l)^2 / sum l^2`` of the covariance's eigenvalues ``l``.

        It is 0 for collapsed embeddings.
        """
        if self.collapsed:
            return 0.0
        centred = self.scatter - self.sum[:, None] * self.sum / self.count
        return float(centred.trace() ** 2 / centred.square().sum())


def moments(codes: Float[Tensor, "n d"], rows: Int[Tensor, "k"] | None = None, scatter: bool = True) -> Moments:
    """Sums over embeddings, block by block.

    Args:
        scatter: True to sum outer products as well.

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


FAR = 0.1
"""Share of the squared length that a hundredth of the codes must hold to be called far out."""


def far_out(codes: Float[Tensor, "n d"], centred: bool = False) -> str:
    """Caveat for the interval of a rank where few embeddings hold much of the squared norm.

    It is empty where none do. A jackknife knows such embeddings only if it drew them: on populations with a few of
    them, the interval of RankMe covered .35 to .60 and that of the effective rank .73 to .83.

    Args:
        centred: True to take norms from the mean of the embeddings instead of 0.

    Example:
        >>> codes = torch.ones(200, 2)
        >>> codes[:2] *= 20
        >>> far_out(codes[5:]), far_out(codes)
        ('', '; too short: 1% of the embeddings lie far out with 80% of the squared length')
    """
    centre = codes.mean(0).double() if centred else 0.0
    blocks = codes.split(max(1, BLOCK // codes.shape[1]))
    lengths = torch.cat([(block.double() - centre).square().sum(1) for block in blocks])
    count = max(1, len(lengths) // 100)
    total = float(lengths.sum())
    share = float(lengths.topk(min(count, len(lengths))).values.sum()) / total if total > 0 else 0.0
    if not share > max(FAR, 5 * count / max(1, len(lengths))):
        return ""
    return (
        f"; too short: {count / len(lengths):.0%} of the embeddings lie far out with {share:.0%} of the squared length"
    )
