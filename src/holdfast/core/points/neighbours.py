"""The exact ``k`` nearest neighbours of every point, in blocks: O(n k) memory, one n x n x d product of time.

Distances are ranked in float32 by ``|x_j|^2 / 2 - x_i . x_j``; the best ``k + 8`` are ranked again by differences in
float64. If rounding could have excluded a true neighbour, the row is ranked again in float64. Ties go to the lower index.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from holdfast.core.points.points import Points

ROWS, COLUMNS = 2048, 4096
"""A tile of products: 32 MB in float32."""
SPARE = 8
NEAR = 1 << 18
"""Differences taken together: 2 MB in float64, which stays near the processor."""
CHAIN = 2048
"""No processor's matrix product adds up longer chains than this before it adds their sums."""
DIGITS = 40
"""Binary digits of a squared distance that count: what the order of summation may change is a tie."""


@dataclass(frozen=True, eq=False)
class Neighbours:
    """For each point the ``k`` nearest others, nearest first."""

    index: Int[np.ndarray, "n k"]
    """Index of the nearest others of each point, shape (n, k)."""
    distance: Float[np.ndarray, "n k"]
    """Distance to the nearest others of each point, shape (n, k)."""
    recall: float = 1.0
    """Fraction of true neighbours found, measured on a sample of the points; 1 for an exact search."""

    def first(self, k: int) -> Neighbours:
        """Return the nearest ``k`` of each."""
        return Neighbours(self.index[:, :k], self.distance[:, :k], self.recall)


def nearest_neighbours(points: Points, k: int, queries: Int[Tensor, "q"] | None = None) -> Neighbours:
    """Exact nearest other points of each point.

    Args:
        queries: Rows to look up, shape (q,); None for all.

    Example:
        >>> from holdfast.core.points.points import points
        >>> nearest_neighbours(points([[0.0], [1.0], [3.0]]), 1).index.tolist()
        [[1], [0], [1]]
    """
    assert 0 < k < len(points), "callers check k"
    device = points.values.device
    rows = torch.arange(len(points), device=device) if queries is None else queries.to(device)
    tiles = (points.tile(slice(start, start + COLUMNS)) for start in range(0, len(points), COLUMNS))
    half = torch.cat([tile.square().sum(1) / 2 for tile in tiles])
    parts = [_block(points, rows[start : start + ROWS], k, half) for start in range(0, len(rows), ROWS)]
    index, square = (torch.cat(part).cpu().numpy() for part in zip(*parts, strict=True))
    return Neighbours(index, np.sqrt(square) / points.scale)


def _block(points: Points, rows: Int[Tensor, "b"], k: int, half: Float[Tensor, "n"]) -> tuple[Tensor, Tensor]:
    queries = points.tile(rows)
    values, index = _shortlist(points, rows, queries, half, min(k + SPARE, len(points) - 1))
    near, square = ranked(points, rows, index, k)
    unsure = ~_settled(points, queries, values, square, half, rows)
    if unsure.any():
        near[unsure], square[unsure] = _ranked_anew(points, rows[unsure], k)
    return near, square


def _shortlist(
    points: Points, rows: Int[Tensor, "b"], queries: Float[Tensor, "b d"], half: Float[Tensor, "n"], count: int
) -> tuple[Float[Tensor, "b c"], Int[Tensor, "b c"]]:
    """Return the ``count`` smallest ``h_j - x_i . x_j`` of each row in float32, ascending, and where they are."""
    values = torch.empty(len(rows), 0, dtype=torch.float32, device=queries.device)
    index = torch.empty(len(rows), 0, dtype=torch.int64, device=queries.device)
    for start in range(0, len(points), COLUMNS):
        part = slice(start, min(start + COLUMNS, len(points)))
        score = torch.addmm(half[part], queries, points.tile(part).T, alpha=-1)
        _blind(score, rows, start)
        best, column = score.topk(min(count, score.shape[1]), largest=False)
        values, order = torch.cat([values, best], 1).sort(dim=1, stable=True)
        index = torch.cat([index, column + start], 1).gather(1, order)[:, :count]
        values = values[:, :count]
    return values, index


def _blind(score: Float[Tensor, "b c"], rows: Int[Tensor, "b"], start: int) -> None:
    """Exclude each row as its own neighbour, by index, because duplicates lie at distance zero."""
    here = rows - start
    inside = ((here >= 0) & (here < score.shape[1])).nonzero()[:, 0]
    score[inside, here[inside]] = torch.inf


def ranked(
    points: Points, rows: Int[Tensor, "b"], index: Int[Tensor, "b c"], k: int
) -> tuple[Int[Tensor, "b k"], Float[Tensor, "b k"]]:
    """Nearest candidates of each row, by distances computed from differences."""
    index = index.sort(1).values  # so that a stable sort by distance leaves ties to the lower index
    square = torch.empty(index.shape, dtype=torch.float64, device=index.device)
    step = max(1, NEAR // (index.shape[1] * points.features))
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        there = points.tile(index[part].flatten(), torch.float64).unflatten(0, index[part].shape)
        square[part] = (there - points.tile(rows[part], torch.float64)[:, None]).square_().sum(2)
    square, order = rounded(square).sort(dim=1, stable=True)
    return index.gather(1, order)[:, :k], square[:, :k]


def rounded(square: Float[Tensor, "*s"]) -> Float[Tensor, "*s"]:
    """Round squared distances, so that distances equal up to rounding are equal."""
    mantissa, exponent = torch.frexp(square)
    return torch.ldexp((mantissa * 2.0**DIGITS).round(), exponent - DIGITS)


def _settled(
    points: Points,
    queries: Float[Tensor, "b d"],
    values: Float[Tensor, "b c"],
    square: Float[Tensor, "b k"],
    half: Float[Tensor, "n"],
    rows: Int[Tensor, "b"],
) -> Bool[Tensor, "b"]:
    """Return for which rows no point off the shortlist can be as near as the ``k``-th on it."""
    if values.shape[1] == len(points) - 1:
        return torch.ones(len(values), dtype=torch.bool, device=values.device)
    size = torch.linalg.vector_norm(queries, dim=1)
    reach = (2 * half.max()).sqrt()
    slack = 2 * (min(points.features, CHAIN) + 2) * torch.finfo(values.dtype).eps * reach * (size + reach)
    return square[:, -1] / 2 < values[:, -1].double() + half[rows].double() - slack


def _ranked_anew(points: Points, rows: Int[Tensor, "u"], k: int) -> tuple[Int[Tensor, "u k"], Float[Tensor, "u k"]]:
    """Rank all points in float64, for rows with many near ties; a few rows at a time."""
    near = torch.empty(len(rows), k, dtype=torch.int64, device=rows.device)
    square = torch.empty(len(rows), k, dtype=torch.float64, device=rows.device)
    step = max(1, min(ROWS, (1 << 22) // len(points)))
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        best, order = rounded(_squares(points, rows[part], k)).sort(dim=1, stable=True)
        near[part], square[part] = order[:, :k], best[:, :k]
    return near, square


def _squares(points: Points, rows: Int[Tensor, "u"], k: int) -> Float[Tensor, "u n"]:
    """Return the squared distances of all that may be among the nearest ``k``, from differences; inf for the others."""
    queries = points.tile(rows, torch.float64)
    square = torch.empty(len(rows), len(points), dtype=torch.float64, device=rows.device)
    longest = torch.zeros(len(rows), dtype=torch.float64, device=rows.device)
    for start in range(0, len(points), COLUMNS):
        tile = points.tile(slice(start, start + COLUMNS), torch.float64)
        length = queries.square().sum(1)[:, None] + tile.square().sum(1)
        square[:, start : start + COLUMNS] = length - 2 * queries @ tile.T
        longest = torch.maximum(longest, length.amax(1))
    _blind(square, rows, 0)
    # Products are right to 1e-12 of the squared lengths that cancel in them.
    within = square <= (square.kthvalue(k, dim=1).values + 1e-10 * longest)[:, None]
    square[~within] = torch.inf
    row, column = within.nonzero(as_tuple=True)
    step = max(1, (1 << 22) // points.features)
    for first in range(0, len(row), step):
        r, c = row[first : first + step], column[first : first + step]
        square[r, c] = (queries[r] - points.tile(c, torch.float64)).square_().sum(1)
    return square
