"""Graphs that stand for the manifold of points: kNN, continuous kNN, principal components, sparsified.

To add one, add a class, or name it in an entry point of the group ``holdfast.spectral.graphs``.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from math import inf
from typing import ClassVar, final

import numpy as np
import torch

from holdfast.core.discovery import named_classes
from holdfast.core.errors import OutOfRange
from holdfast.core.points.neighbours import Neighbours
from holdfast.core.points.points import Points, points
from holdfast.core.settings import TextSettings, read
from holdfast.spectral.graph import Graph, union
from holdfast.spectral.resistance import resistances


@dataclass(frozen=True)
class GraphConstruction(TextSettings):
    """A graph that stands for the manifold near which the points lie."""

    name: ClassVar[str]

    @classmethod
    def read(cls, text: str) -> GraphConstruction:
        import holdfast.spectral.graphs as home  # whose files import this one

        return read(text, named_classes(home, GraphConstruction), "graph")

    def view(self, points: Points) -> Points:
        """Return the points between which distances are taken: the same ones by default."""
        return points

    def remark(self, inputs: Points) -> str:
        """Return a sentence on settings that ``inputs`` do not allow; empty if there are none."""
        return ""

    @abstractmethod
    def connect(self, near: Neighbours) -> Graph:
        """Return the graph of points with these nearest neighbours."""


# Continuous k-nearest neighbours: p and q are joined if ``d(p, q) < delta sqrt(d_k(p) d_k(q))``.
#
# ``d_k`` is the distance to the k-th neighbour, so that the graph follows the density of the points; unlike the kNN
# graph it has the topology of the manifold in the limit. Berry and Sauer 2019, https://doi.org/10.3934/fods.2019001.


@final
@dataclass(frozen=True)
class CKNN(GraphConstruction):
    """Joins points that are nearer than ``delta`` times the geometric mean of their k-th neighbours' distances."""

    delta: float = 1.0
    name = "cknn"

    def __post_init__(self) -> None:
        # With delta <= 1 such a pair is nearer than the larger d_k, hence among the k nearest of one of the two.
        if not 0 < self.delta <= 1:
            raise OutOfRange("cknn: delta", self.delta, "in (0, 1]", fix="take a larger k instead")

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


@final
@dataclass(frozen=True)
class KNN(GraphConstruction):
    """Joins each point with its ``k`` nearest others."""

    name = "knn"

    def connect(self, near: Neighbours) -> Graph:
        return union(near.index)


@final
@dataclass(frozen=True)
class PCA(GraphConstruction):
    """Joins each point with its ``k`` nearest others among the first ``components`` principal components."""

    components: int = 50
    name = "pca"

    def __post_init__(self) -> None:
        if self.components < 1:
            raise OutOfRange("pca: components", self.components, "at least 1")

    def view(self, points_: Points) -> Points:
        from sklearn import decomposition

        if self.components >= min(len(points_), points_.features):
            return points_  # all of them: distances stay the same
        values = points_.tile(slice(None), torch.float64).cpu().numpy()
        reduced = decomposition.PCA(self.components, svd_solver="auto", random_state=0).fit_transform(values)
        return points(np.ascontiguousarray(reduced), "principal components")

    def remark(self, inputs: Points) -> str:
        most = min(len(inputs), inputs.features)
        if self.components < most:
            return ""
        return (
            f"Graph {self}: {len(inputs)} inputs of {inputs.features} features have no more than {most} principal "
            "components, so all are kept and their graph is that of knn."
        )

    def connect(self, near: Neighbours) -> Graph:
        return union(near.index)


# A kNN graph with fewer edges and nearly the same Laplacian, by sampling edges by their effective resistance.
#
# ``density * n`` draws with replacement, edge e with probability ``p_e = w_e R_e / (n - 1)``; each draw adds ``w_e /
# (draws p_e)`` to its weight, so that the expected Laplacian is the old one. Spielman and Srivastava 2011,
# https://doi.org/10.1137/080734029. (The sparsifier of Cheng et al. 2021 is not public; this one has a proof.)


@final
@dataclass(frozen=True)
class Sparsified(GraphConstruction):
    """Samples the edges of the kNN graph by their effective resistance and reweights them."""

    density: float = 6.0
    seed: int = 0
    name = "sparsified"

    def __post_init__(self) -> None:
        if not 1 < self.density < inf:
            raise OutOfRange("sparsified: density", self.density, "above 1 draw per sample")

    def connect(self, near: Neighbours) -> Graph:
        return sparsified(union(near.index), round(self.density * len(near.index)), self.seed)


def sparsified(graph: Graph, draws: int, seed: int) -> Graph:
    """Return ``graph`` after ``draws`` draws of its edges."""
    chance = graph.weights * resistances(graph, graph.edges, seed=seed)
    chance = chance / chance.sum()
    counts = np.random.default_rng(seed).multinomial(draws, chance)
    kept = counts > 0
    weights = graph.weights[kept] * counts[kept] / (draws * chance[kept])
    return Graph(graph.n, graph.edges[kept], weights)


__all__ = ["CKNN", "KNN", "PCA", "GraphConstruction", "Sparsified"]
