"""Approximate nearest neighbours above the size that an exact search allows, with the recall measured, not promised.

Each round draws fresh centres from the points, puts every point into the cell of its nearest centre, and compares the
points of a cell with those of the nearest cells (the inverted file of Jegou et al. 2011,
https://doi.org/10.1109/TPAMI.2010.57). What one round's borders hide, another's do not; rounds go on until the recall
on a random sample of points, searched exactly, is high enough.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, sqrt

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from holdfast.core.noise import Noise
from holdfast.core.points.neighbours import ROWS, SPARE, Neighbours, nearest_neighbours, ranked
from holdfast.core.points.points import Points

EXACT = 100_000
"""Largest number of points for which the search is exact: a recall of 0.99995 already moved a spectral score by 1.7%."""
RECALL = 0.9999
ROUNDS = 8
PROBES = 12
"""Cells that a cell's points are compared with."""
SAMPLE = 500
"""Points on which the recall is measured."""


def neighbours(points: Points, k: int, seed: int = 0, exact: int = EXACT) -> Neighbours:
    """Return the ``k`` nearest others of each point: exactly up to ``exact`` points, approximately above."""
    if len(points) <= exact:
        return nearest_neighbours(points, k)
    noise = Noise.of(seed, ["neighbours"])
    sample = _draw(noise.fork("recall"), len(points), SAMPLE)
    truth = torch.from_numpy(nearest_neighbours(points, k, sample).index)
    shortlist = _Found.none(len(points), k + SPARE)
    recall, round_ = 0.0, 0
    while recall < RECALL and round_ < ROUNDS:
        _search(points, shortlist, noise.fork(round_))
        recall = _recall(ranked(points, sample, shortlist.index[sample], k)[0], truth)
        round_ += 1
    index, square = _finish(points, shortlist, k)
    return Neighbours(index.numpy(), np.sqrt(square.numpy()) / points.scale, recall)


@dataclass(frozen=True, eq=False)
class _Found:
    """The nearest points found so far: ``|x_j|^2 / 2 - x_i . x_j`` in float32, ascending, and where they are."""

    score: Float[Tensor, "n c"]
    index: Int[Tensor, "n c"]

    @classmethod
    def none(cls, n: int, count: int) -> _Found:
        return cls(torch.full((n, count), torch.inf), torch.zeros(n, count, dtype=torch.int64))

    def add(self, rows: Int[Tensor, "b"], score: Float[Tensor, "b e"], index: Int[Tensor, "b e"]) -> None:
        """Keep the nearest of old and new, each once."""
        index, order = torch.cat([self.index[rows], index], 1).sort(dim=1, stable=True)
        score = torch.cat([self.score[rows], score], 1).gather(1, order)
        again = (index[:, 1:] == index[:, :-1]) & score[:, :-1].isfinite()
        score[:, 1:][again] = torch.inf
        self.score[rows], column = score.topk(self.score.shape[1], largest=False)
        self.index[rows] = index.gather(1, column)


def _draw(noise: Noise, n: int, count: int) -> Int[Tensor, "c"]:
    """Return ``count`` distinct rows of ``n``, ascending."""
    return noise.uniform((n,), torch.float64)[0].argsort()[:count].sort().values


def _recall(neighbours: Int[Tensor, "s k"], truth: Int[Tensor, "s k"]) -> float:
    return float((neighbours[:, :, None] == truth[:, None, :]).any(1).double().mean())


def _search(points: Points, shortlist: _Found, noise: Noise) -> None:
    """Add what one division into cells shows."""
    count = ceil(sqrt(len(points)))
    centres = points.tile(_draw(noise, len(points), count))
    home = _homes(points, centres)
    order, sizes = home.argsort(stable=True), torch.bincount(home, minlength=count)
    cells = order.split(sizes.tolist())
    around = torch.cdist(centres, centres).topk(min(PROBES, count), largest=False).indices
    for cell, members in enumerate(cells):
        others = torch.cat([cells[other] for other in around[cell].tolist()])
        if not len(members) or len(others) < 2:
            continue
        far = points.tile(others)
        for part in members.split(ROWS):
            score = torch.addmm(far.square().sum(1) / 2, points.tile(part), far.T, alpha=-1)
            score[part[:, None] == others[None, :]] = torch.inf
            best, column = score.topk(min(shortlist.score.shape[1], len(others)), largest=False)
            shortlist.add(part, best, others[column])


def _homes(points: Points, centres: Float[Tensor, "c d"]) -> Int[Tensor, "n"]:
    """Return the cell of each point: that of its nearest centre."""
    half = centres.square().sum(1) / 2
    rows = [slice(start, start + ROWS) for start in range(0, len(points), ROWS)]
    return torch.cat([torch.addmm(half, points.tile(part), centres.T, alpha=-1).argmin(1) for part in rows])


def _finish(points: Points, shortlist: _Found, k: int) -> tuple[Int[Tensor, "n k"], Float[Tensor, "n k"]]:
    """Rank the candidates by differences in float64; points with too few are searched exactly."""
    index = torch.empty(len(points), k, dtype=torch.int64)
    square = torch.empty(len(points), k, dtype=torch.float64)
    for start in range(0, len(points), ROWS):
        rows = torch.arange(start, min(start + ROWS, len(points)))
        index[rows], square[rows] = ranked(points, rows, shortlist.index[rows], k)
    lacking = (~shortlist.score.isfinite()).any(1).nonzero()[:, 0]
    if len(lacking):
        exact = nearest_neighbours(points, k, lacking)
        index[lacking] = torch.from_numpy(exact.index)
        square[lacking] = torch.from_numpy((exact.distance * points.scale) ** 2)
    return index, square
