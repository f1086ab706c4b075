"""Graphs on samples, their Laplacians, and the rule that keeps the largest eigenvalue finite."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Shaped

from holdfast.core.errors import HoldfastError
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
