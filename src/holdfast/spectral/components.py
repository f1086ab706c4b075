"""When the largest eigenvalue is finite: the components rule, its witness, and the repairs one may ask for.

If the graph of the outputs falls apart and an edge of the inputs' graph joins two of its parts, the vector that is one on
a part and zero elsewhere costs nothing in ``L_Y`` and something in ``L_X``: ``lambda_max`` is infinite. A ridge or a
pseudo-inverse would print an arbitrary number instead. If no such edge exists, each part has its own finite spectrum.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool

from holdfast.core.points import Points
from holdfast.spectral.graph import Graph

REPAIRS = ("none", "increase_k", "largest", "mst")
TILE = 2048


@dataclass(frozen=True)
class Split:
    """Why the score is infinite."""

    sizes: tuple[int, ...]
    """Sizes of the output graph's components, largest first."""
    crossing: int
    """How many input neighbours they separate."""
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
