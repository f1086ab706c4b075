"""Continuous k-nearest neighbours: p and q are joined if ``d(p, q) < delta sqrt(d_k(p) d_k(q))``.

``d_k`` is the distance to the k-th neighbour, so that the graph follows the density of the points; unlike the kNN graph it
has the topology of the manifold in the limit. Berry and Sauer 2019, https://doi.org/10.3934/fods.2019001.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from holdfast.core.errors import HoldfastError
from holdfast.core.points.neighbours import Neighbours
from holdfast.spectral.graph import Graph, union
from holdfast.spectral.graphs.base import GraphConstruction


@final
@dataclass(frozen=True)
class CKNN(GraphConstruction):
    """Joins points that are nearer than ``delta`` times the geometric mean of their k-th neighbours' distances."""

    delta: float = 1.0
    name = "cknn"

    def __post_init__(self) -> None:
        # With delta <= 1 such a pair is nearer than the larger d_k, hence among the k nearest of one of the two.
        if not 0 < self.delta <= 1:
            raise HoldfastError(f"cknn: delta must lie in (0, 1], got {self.delta}; take a larger k instead")

    def connect(self, near: Neighbours) -> Graph:
        graph = union(near.index)
        k = near.index.shape[1]
        lengths = Graph.of(
            graph.n,
            np.stack([np.repeat(np.arange(graph.n), k), near.index.ravel()], axis=1),
            near.distance.ravel(),
        ).weights  # in the order of the edges of `graph`
        radius = near.distance[:, -1]
        kept = lengths < self.delta * np.sqrt(radius[graph.edges[:, 0]] * radius[graph.edges[:, 1]])
        return Graph(graph.n, graph.edges[kept], graph.weights[kept])
