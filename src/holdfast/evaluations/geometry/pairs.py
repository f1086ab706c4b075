"""Sums over all pairs of codes, in blocks: one matrix product for each pair of blocks, O(n) memory beside the codes.

``potential(i) = mean over j != i of exp(-2 ||f_i - f_j||^2)``, whose mean is the Gaussian potential of Wang and Isola 2020,
https://arxiv.org/abs/2005.10242. With ``a = 2 (f - centre)`` it is ``exp(a_i . a_j - |a_i|^2 / 2 - |a_j|^2 / 2)``; centred,
close codes keep their digits in float32.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.core.points import Points

ROWS, COLUMNS = 1024, 2048
"""A tile of products: 8 MB in float32, which stays near the processor."""


def potentials(codes: Points) -> Float[Tensor, "n"]:
    """Return the Gaussian potential of each code: the mean over the others of ``exp(-2 ||f_i - f_j||^2)``.

    Example:
        >>> from holdfast.core.points import points
        >>> [round(value, 6) for value in potentials(points(torch.eye(2))).log().tolist()]
        [-4.0, -4.0]
    """
    n, device = len(codes), codes.values.device
    dtype = torch.float64 if codes.values.dtype == torch.float64 else torch.float32
    total = torch.zeros(n, dtype=torch.float64, device=device)
    half = torch.cat([_tile(codes, start, COLUMNS, dtype).square().sum(1) / 2 for start in range(0, n, COLUMNS)])
    for top in range(0, n, ROWS):
        queries = _tile(codes, top, ROWS, dtype)
        for left in range(top, n, COLUMNS):
            product = torch.addmm(-half[left : left + COLUMNS], queries, _tile(codes, left, COLUMNS, dtype).T)
            value = product.sub_(half[top : top + ROWS, None]).exp_()
            if left == top:
                value.fill_diagonal_(0)
            total[top : top + ROWS] += value.sum(1)
            # The square on the diagonal holds both orders of its pairs; all others stand for both.
            done = max(0, top + ROWS - left)
            total[left + done : left + COLUMNS] += value[:, done:].sum(0)
    return total / max(1, n - 1)


def _tile(codes: Points, start: int, count: int, dtype: torch.dtype) -> Float[Tensor, "b d"]:
    return codes.tile(slice(start, start + count), dtype).mul_(2 / codes.scale)
