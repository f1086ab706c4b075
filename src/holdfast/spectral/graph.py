"""Graphs on samples, their Laplacians, and the rule that keeps the largest eigenvalue finite.

Also here: approximate nearest neighbours for sets too large for an exact search, with the recall measured, not promised.
Each round draws fresh centres from the points, assigns every point to the cell of its nearest centre, and compares the
points of a cell with those of the nearest cells (the inverted file of Jegou et al. 2011,
https://doi.org/10.1109/TPAMI.2010.57). Pairs that the borders of one round separate meet in another. Rounds continue
until the recall on a random sample of points, searched exactly, is high enough.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import ceil, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from holdfast.core.errors import HoldfastError
from holdfast.core.noise import Noise
from holdfast.core.points.neighbours import ROWS, SPARE, Neighbours, nearest_neighbours, ranked
from holdfast.core.points.points import Points

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    Sparse = csr_array[np.float64, tuple[int, int]]
else:
    Sparse = Any  # scipy is loaded when a graph is first used, not with the library


Edges = Int[np.ndarray, "m 2"]


@dataclass(frozen=True, eq=False)
class Graph:
    """``n`` nodes and the edges between them, each once as (i, j) with i < j, in order.

    Never the normalised Laplacian: it makes the null spaces of two graphs differ, and their largest generalised
    eigenvalue infinite.
    """

    n: int
    edges: Edges
    weights: Float[np.ndarray, "m"]

    @classmethod
    def of(cls, n: int, pairs: Edges, weights: Float[np.ndarray, "m"] | None = None) -> Graph:
        """Return the graph of ``pairs`` in any order; repeated ones count once, with the weight of the first.

        Raises:
            HoldfastError: a node does not exist, or is its own neighbour.

        Example:
            >>> Graph.of(3, np.array([[2, 1], [0, 1], [1, 2]])).edges.tolist()
            [[0, 1], [1, 2]]
        """
        if len(pairs) and (pairs.min() < 0 or pairs.max() >= n):
            raise HoldfastError(f"edges must join nodes 0 to {n - 1}, got {pairs.min()} to {pairs.max()}")
        if (pairs[:, 0] == pairs[:, 1]).any():
            raise HoldfastError("an edge joins a node with itself; leave such edges out")
        low, high = pairs.astype(np.int64).min(axis=1), pairs.astype(np.int64).max(axis=1)
        keys, first = np.unique(low * n + high, return_index=True)
        kept = np.ones(len(keys)) if weights is None else weights[first].astype(np.float64)
        return cls(n, np.stack([keys // n, keys % n], axis=1), kept)

    @cached_property
    def adjacency(self) -> Sparse:
        """Return the weights as a symmetric matrix."""
        from scipy.sparse import coo_array

        i, j = self.edges.T.astype(np.int32)  # eight bytes per index would be most of the memory
        weights = np.concatenate([self.weights, self.weights])
        both = coo_array((weights, (np.concatenate([i, j]), np.concatenate([j, i]))), shape=(self.n, self.n))
        return both.tocsr()

    @cached_property
    def laplacian(self) -> Sparse:
        """Return ``D - A``."""
        from scipy.sparse import diags_array

        return (diags_array(self.adjacency.sum(axis=1)) - self.adjacency).tocsr()

    @cached_property
    def neighbours(self) -> Int[np.ndarray, "n"]:
        """Return the number of neighbours of each node."""
        return np.bincount(self.edges.ravel(), minlength=self.n)

    @cached_property
    def component(self) -> Int[np.ndarray, "n"]:
        """Return the number of the component that each node is in."""
        from scipy.sparse.csgraph import connected_components

        return connected_components(self.adjacency, directed=False)[1].astype(np.int64)

    @property
    def components(self) -> int:
        """Return the number of components."""
        return int(self.component.max()) + 1

    def within(self, nodes: Bool[np.ndarray, "n"]) -> Graph:
        """Return the graph on ``nodes`` alone, numbered again in their order."""
        number = np.cumsum(nodes) - 1
        kept = nodes[self.edges].all(axis=1)
        return Graph(int(nodes.sum()), number[self.edges[kept]], self.weights[kept])

    def renumbered(self, number: Int[np.ndarray, "n"]) -> Graph:
        """Return the same graph where node i is called ``number[i]``."""
        return Graph.of(self.n, number[self.edges], self.weights)

    def differences(self, values: Float[np.ndarray, "n r"]) -> Float[np.ndarray, "m r"]:
        """Return ``values(p) - values(q)`` along each edge."""
        return values[self.edges[:, 0]] - values[self.edges[:, 1]]

    def node_means(self, values: Float[np.ndarray, "m"]) -> Float[np.ndarray, "n"]:
        """Return for each node the mean of ``values`` over its edges: inf if one is, nan for a node without edges."""
        with np.errstate(invalid="ignore"):
            means = self._sums(values) / self.neighbours
        means[self._sums(np.isinf(values)) > 0] = np.inf  # beside an unknown one the sum is unknown, the mean is not
        return means

    def _sums(self, values: Shaped[np.ndarray, "m"]) -> Float[np.ndarray, "n"]:
        first, second = (np.bincount(side, values, self.n).astype(np.float64) for side in self.edges.T)
        return first + second


def union(index: Int[np.ndarray, "n k"]) -> Graph:
    """Return the graph that joins each node with each in its row of ``index``: unit weights."""
    n, k = index.shape
    return Graph.of(n, np.stack([np.repeat(np.arange(n), k), index.ravel()], axis=1))


# When the largest eigenvalue is finite: the components rule, its witness, and the repairs one may ask for.
#
# If the graph of the outputs falls apart and an edge of the inputs' graph joins two of its parts, the vector that is
# one on a part and zero elsewhere costs nothing in ``L_Y`` and something in ``L_X``: ``lambda_max`` is infinite. A
# ridge or a pseudo-inverse would print an arbitrary number instead. If no such edge exists, each part has its own
# finite spectrum.

REPAIRS = ("none", "increase_k", "largest", "mst")
TILE = 2048


@dataclass(frozen=True)
class Split:
    """Why the score is infinite."""

    sizes: tuple[int, ...]
    """Sizes of the output graph's components, largest first."""
    crossing: int
    """Number of input neighbours that the output components separate."""
    pair: tuple[int, int]
    """One such pair of samples."""

    def __str__(self) -> str:
        shown = ", ".join(map(str, self.sizes[:5])) + (", ..." if len(self.sizes) > 5 else "")
        return (
            f"the graph of the outputs has {len(self.sizes)} components (sizes {shown}) and {self.crossing} pairs of input "
            f"neighbours lie in different ones, such as samples {self.pair[0]} and {self.pair[1]}, so the stretch is "
            "infinite; a larger k, or a repair (increase_k, largest or mst), gives a finite score of another question"
        )


def crossing(inputs: Graph, outputs: Graph) -> Bool[np.ndarray, "m"]:
    """Return which edges of ``inputs`` join two components of ``outputs``."""
    ends = outputs.component[inputs.edges]
    return ends[:, 0] != ends[:, 1]


def split(inputs: Graph, outputs: Graph) -> Split | None:
    """Return why the largest eigenvalue is infinite, or None where it is finite.

    Example:
        >>> path, parts = Graph.of(4, np.array([[0, 1], [1, 2], [2, 3]])), Graph.of(4, np.array([[0, 1], [2, 3]]))
        >>> split(parts, path) is None, split(path, parts).sizes
        (True, (2, 2))
    """
    crosses = crossing(inputs, outputs)
    if not crosses.any():
        return None
    sizes = np.sort(np.bincount(outputs.component))[::-1]
    first = inputs.edges[crosses][0]
    return Split(tuple(sizes.tolist()), int(crosses.sum()), (int(first[0]), int(first[1])))


def largest(outputs: Graph) -> Bool[np.ndarray, "n"]:
    """Return the nodes of the largest component; of equal ones, that of the first node."""
    return outputs.component == np.bincount(outputs.component).argmax()


def bridged(outputs: Graph, points: Points) -> Graph:
    """Return the graph with the edges of the points' minimum spanning tree that join its components (Boruvka 1926)."""
    while outputs.components > 1:
        sizes = np.bincount(outputs.component)
        pairs = [_way_out(outputs, points, part) for part in np.argsort(sizes)[:-1].tolist()]
        edges = np.concatenate([outputs.edges, np.array(pairs)])
        weights = np.concatenate([outputs.weights, np.ones(len(pairs))])
        outputs = Graph.of(outputs.n, edges, weights)
    return outputs


def _way_out(outputs: Graph, points: Points, part: int) -> tuple[int, int]:
    """Return the shortest pair of one point of component ``part`` and one outside."""
    inside = np.flatnonzero(outputs.component == part)
    outside = np.flatnonzero(outputs.component != part)
    best: tuple[float, int, int] = (np.inf, -1, -1)
    for top in range(0, len(inside), TILE):
        queries = points.tile(torch.from_numpy(inside[top : top + TILE]), torch.float64)
        for left in range(0, len(outside), TILE):
            distance = torch.cdist(queries, points.tile(torch.from_numpy(outside[left : left + TILE]), torch.float64))
            position = int(distance.argmin())
            row, column = divmod(position, distance.shape[1])
            here = float(distance[row, column]), int(inside[top + row]), int(outside[left + column])
            best = min(best, here)
    return best[1:]


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
