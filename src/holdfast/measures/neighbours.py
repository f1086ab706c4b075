"""Counting over whole populations: who is closer to a moved code than its own clean code, and how pairs are spread.

Where a divergence grows with a Euclidean distance, ``|a - r_j| < |a - r_i|`` is ``h_j < h_i`` with
``h_j = |r_j|^2 / 2 - a . r_j``: one matrix product per tile. Codes are centred first, for with an offset the products
cancel and float32 miscounts. What rounding leaves undecided is decided again in float64, so counts are exact.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from holdfast.divergences import Divergence

TILE = 2**21
"""Entries of one tile of products: 8 MB in float32, which stays near the processor."""

TIE = 1e-12
"""Relative difference in float64 up to which two divergences count as equal: stepwise ones tie but for rounding."""

Moved = Float[Tensor, "m d"]
Clean = Float[Tensor, "n d"]


def closer_counts(divergence: Divergence, moved: Moved, own: Int[Tensor, "m"], clean: Clean) -> Int[Tensor, "m"]:
    """Return for each moved code how many clean codes other than ``own`` are strictly closer than its own.

    Args:
        divergence: fitted, if it needs to be.
        moved: codes of perturbed samples, shape (m, d); rows that are not finite count nobody.
        own: row of ``clean`` that each belongs to.
        clean: the population's codes, shape (n, d).

    Example:
        >>> from holdfast.divergences import L2Distance
        >>> clean = torch.tensor([[0.0], [1.0], [2.0]])
        >>> closer_counts(L2Distance(), torch.tensor([[1.6]]), torch.tensor([0]), clean)
        tensor([2])
    """
    points, targets = divergence.embed(moved), divergence.embed(clean)
    if points is None or targets is None:
        return _slow_counts(divergence, moved, own, clean)
    centre = torch.nan_to_num(targets.mean(0))
    points, mine = points - centre, targets[own] - centre
    height = min(len(points), 1024)
    counts = torch.zeros(len(points), dtype=torch.int64, device=points.device)
    for left in range(0, len(targets), TILE // height):
        block = targets[left : left + TILE // height] - centre
        half = block.square().sum(1) / 2
        for top in range(0, len(points), height):
            part = slice(top, top + height)
            counts[part] += _tile_counts(points[part], mine[part], own[part] - left, block, half)
    return counts


def _tile_counts(
    points: Moved, mine: Moved, own: Int[Tensor, "m"], block: Float[Tensor, "k d"], half: Float[Tensor, "k"]
) -> Int[Tensor, "m"]:
    """Count the rows of ``block`` closer to each point than ``mine`` is, row ``own`` (if in the block) left out."""
    h = torch.addmm(half, points, block.T, alpha=-1)
    here = ((own >= 0) & (own < len(block))).nonzero()[:, 0]
    h[here, own[here]] = torch.inf
    size = torch.linalg.vector_norm(mine, dim=1)
    level = size.square() / 2 - (points * mine).sum(1)
    # Rounding of two products of length d and of two half squares, whatever the order of summation.
    reach = (2 * half.max()).sqrt().maximum(size)
    slack = (
        2 * (block.shape[1] + 2) * torch.finfo(h.dtype).eps * reach * (torch.linalg.vector_norm(points, dim=1) + reach)
    )
    counts = (h < (level - slack)[:, None]).sum(1)
    # Few rows have anyone within rounding, and only these are looked at again.
    doubtful = ((h <= (level + slack)[:, None]).sum(1) > counts).nonzero()[:, 0]
    if len(doubtful):
        again, low, high = h[doubtful], (level - slack)[doubtful, None], (level + slack)[doubtful, None]
        row, column = ((again <= high) & ~(again < low)).nonzero(as_tuple=True)
        counts.index_add_(0, doubtful, _decided(points[doubtful], mine[doubtful], block, row, column))
    return counts


def _decided(
    points: Moved, mine: Moved, block: Float[Tensor, "k d"], row: Int[Tensor, "u"], column: Int[Tensor, "u"]
) -> Int[Tensor, "m"]:
    """Count for each point those of its undecided pairs that are closer, from differences in float64."""
    counts = torch.zeros(len(points), dtype=torch.int64, device=points.device)
    step = max(1, 2 * TILE // block.shape[1])
    for start in range(0, len(row), step):
        i, j = row[start : start + step], column[start : start + step]
        theirs = (points[i].double() - block[j].double()).square().sum(1)
        ours = (points[i].double() - mine[i].double()).square().sum(1)
        counts.index_add_(0, i, (theirs < ours * (1 - 2 * TIE)).long())
    return counts


def _slow_counts(divergence: Divergence, moved: Moved, own: Int[Tensor, "m"], clean: Clean) -> Int[Tensor, "m"]:
    """The definition, one moved code at a time: for divergences without an embedding, and the tests' oracle."""
    counts = torch.zeros_like(own)
    for i, (code, row) in enumerate(zip(moved.double(), own.tolist(), strict=True)):
        distance = divergence(code.expand_as(clean), clean.double())
        counts[i] = (distance < distance[row] * (1 - TIE)).sum()  # which its own distance never is
    return counts


def share_of_pairs_within(divergence: Divergence, thresholds: Float[Tensor, "t"], clean: Clean) -> Float[Tensor, "t"]:
    """Return for each threshold the share of ordered pairs of distinct clean codes with divergence at most that.

    Exact over all pairs, in float64, in blocks; nan for a threshold that is nan.
    """
    n, points = len(clean), divergence.embed(clean.double())
    ordered, back = torch.sort(torch.nan_to_num(thresholds.double(), nan=torch.inf))
    below = torch.zeros(len(ordered) + 1, dtype=torch.int64, device=clean.device)
    width = max(1, TILE // n)
    for top in range(0, n, width):
        block = _block(divergence, clean.double(), points, slice(top, top + width))
        rows = torch.arange(len(block), device=clean.device)
        block[rows, rows + (0 if points is not None else top)] = torch.inf  # a sample is no pair with itself
        # Each divergence falls into the bin of the first threshold that is not smaller than it.
        bins = torch.searchsorted(ordered, block * (1 - TIE))
        below += torch.bincount(bins.flatten(), minlength=len(below))
        if points is not None:  # the block begins at its own diagonal; beyond its square each pair stands for two
            below += torch.bincount(bins[:, len(block) :].flatten(), minlength=len(below))
    share = below.cumsum(0)[:-1].double() / (n * (n - 1))
    result = torch.empty_like(share)
    result[back] = share
    return result.masked_fill(thresholds.isnan(), torch.nan)


def _block(divergence: Divergence, clean: Clean, points: Clean | None, rows: slice) -> Float[Tensor, "b k"]:
    """Divergences of some rows to all, or, where they are symmetric distances of ``points``, to the rows from there on."""
    if points is None:
        return torch.stack([divergence(code.expand_as(clean), clean) for code in clean[rows]])
    points = points[rows.start :] - torch.nan_to_num(points.mean(0))
    part = points[: rows.stop - rows.start]
    square = part.square().sum(1)[:, None] + points.square().sum(1) - 2 * part @ points.T
    return divergence.of_distance(square.clamp_min(0).sqrt())
