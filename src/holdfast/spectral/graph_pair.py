"""From two arrays of features to two graphs on the same samples: checked, without duplicates, repaired as requested.

Also here: graphs that approximate the manifold of points: kNN, continuous kNN, principal components, sparsified. To add one,
add a class, or name it in an entry point of the group ``holdfast.spectral.graphs``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from numbers import Integral
from typing import ClassVar, final

import numpy as np
import torch
from jaxtyping import Bool, Int

from holdfast.core.discovery import named_classes
from holdfast.core.errors import HoldfastError, OutOfRange, UnknownName
from holdfast.core.points.neighbours import Neighbours
from holdfast.core.points.points import Points, distinct, points
from holdfast.core.settings import TextSettings, read
from holdfast.spectral.graph import REPAIRS, Graph, Split, bridged, largest, neighbours, split, union
from holdfast.spectral.resistance import FACTORED, resistances


@dataclass(frozen=True)
class GraphConstruction(TextSettings):
    """A graph that stands for the manifold near which the points lie."""

    name: ClassVar[str]

    @classmethod
    def read(cls, text: str) -> GraphConstruction:
        import holdfast.spectral.graph_pair as home

        return read(text, named_classes(home, GraphConstruction, "holdfast.spectral.graphs"), "graph")

    def view(self, points: Points) -> Points:
        """Return the points between which distances are taken: the same ones by default."""
        return points

    def remark(self, inputs: Points) -> str:
        """Return a sentence on settings that ``inputs`` do not allow; empty if there are none."""
        return ""

    def connect(self, near: Neighbours) -> Graph:
        """Return the graph of points with these nearest neighbours; by default each point is joined with its own."""
        return union(near.index)


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
            graph.n, np.stack([np.repeat(np.arange(graph.n), k), near.index.ravel()], axis=1), near.distance.ravel()
        ).weights  # in the order of the edges of `graph`
        radius = near.distance[:, -1]
        kept = lengths < self.delta * np.sqrt(radius[graph.edges[:, 0]] * radius[graph.edges[:, 1]])
        return Graph(graph.n, graph.edges[kept], graph.weights[kept])


@final
class KNN(GraphConstruction):
    """Joins each point with its ``k`` nearest others."""

    name = "knn"


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


SAMPLES_PER_NEIGHBOUR = 3
"""Least samples per neighbour; with fewer, graphs are nearly complete and show no manifold."""
WIDEST = 4
"""Largest multiple of k that the repair by a larger k tries."""


class TooFewSamplesError(HoldfastError):
    """Graphs with ``k`` neighbours would be nearly complete."""


@dataclass(frozen=True, eq=False)
class GraphPair:
    """The graphs of inputs and outputs, and how they came about."""

    inputs: Graph
    outputs: Graph
    rows: Int[np.ndarray, "m"]
    """The sample that each node is; ascending, except in large graphs (see ``local``)."""
    node_of: Int[np.ndarray, "n"]
    """The node of each sample, its first copy's for a duplicate; -1 for a sample left out by a repair."""
    k: int
    duplicates: int
    """Samples whose input equals an earlier one's."""
    ties: int
    """Samples whose output equals those of at least k others: which of these are neighbours is decided by order."""
    recall: tuple[float, float]
    """Fractions of the true neighbours found among inputs and among outputs."""
    repaired: str = ""
    remark: str = ""
    """Settings that could not be followed, in a sentence."""

    @property
    def split(self) -> Split | None:
        """Return why the score is infinite, if it is, in terms of samples."""
        parts = split(self.inputs, self.outputs)
        if parts is None:
            return None
        return replace(parts, pair=(int(self.rows[parts.pair[0]]), int(self.rows[parts.pair[1]])))

    def restricted(self, nodes: Bool[np.ndarray, "m"]) -> GraphPair:
        """Return the graphs of ``nodes`` alone."""
        number = np.where(nodes, np.cumsum(nodes) - 1, -1)
        node_of = np.where(self.node_of >= 0, number[self.node_of], -1)
        graphs = self.inputs.within(nodes), self.outputs.within(nodes)
        return replace(self, inputs=graphs[0], outputs=graphs[1], rows=self.rows[nodes], node_of=node_of)

    def local(self) -> GraphPair:
        """Return the same graphs with nodes numbered so that neighbours are near each other in memory.

        Reverse Cuthill-McKee; products with several vectors are three times as fast on large graphs.
        """
        from scipy.sparse.csgraph import reverse_cuthill_mckee

        order = reverse_cuthill_mckee(self.outputs.adjacency, symmetric_mode=True).astype(np.int64)
        number = np.empty_like(order)
        number[order] = np.arange(len(order))
        return replace(
            self,
            inputs=self.inputs.renumbered(number),
            outputs=self.outputs.renumbered(number),
            rows=self.rows[order],
            node_of=np.where(self.node_of >= 0, number[self.node_of], -1),
        )

    def renamed(self, order: Int[np.ndarray, "n"]) -> GraphPair:
        """Return the graphs of samples that were taken in ``order``, in terms of the samples as they were before."""
        node_of = np.empty_like(self.node_of)
        node_of[order] = self.node_of
        return replace(self, rows=order[self.rows], node_of=node_of)


def checked(inputs: object, outputs: object) -> tuple[Points, Points]:
    """Return both arrays as points.

    Raises:
        HoldfastError: they are no finite numeric arrays of equal length, or all of one's rows are the same.
    """
    x, y = points(inputs, "inputs"), points(outputs, "outputs")
    if len(x) != len(y):
        raise OutOfRange(
            "rows of outputs",
            len(y),
            f"{len(x)}, one per input",
            fix="pass the features of the same samples in the same order",
        )
    for array, name in ((x, "inputs"), (y, "outputs")):
        if array.constant:
            raise HoldfastError(
                f"{name} are constant: all {len(array)} rows are equal up to rounding, so no sample has nearest "
                "neighbours; a collapsed encoder is useless, not robust"
            )
    return x, y


def draw(
    x: Points,
    y: Points,
    k: int,
    manifold: GraphConstruction,
    repair: str = "none",
    seed: int = 0,
    near: Neighbours | None = None,
) -> GraphPair:
    """Return the graphs of the distinct samples.

    Args:
        x, y: inputs and outputs, from ``checked``.
        repair: what to do about an infinite score: ``none``, ``increase_k``, ``largest`` or ``mst``.
        near: the nearest ``k`` of each input, if they are known: of distinct ones, and for graphs without repair.

    Raises:
        HoldfastError: there are too few samples for ``k``, or no such repair.
    """
    if repair not in REPAIRS:
        raise UnknownName("repair", repair, REPAIRS)
    kept, node_of = distinct(x)
    _enough(k, len(kept), len(x) - len(kept))
    if len(kept) < len(x):
        assert near is None, "neighbours are known of distinct inputs alone"
        x, y = x.subset(kept), y.subset(kept)
    shown = manifold.view(x), manifold.view(y)
    most = min(WIDEST * k, len(kept) // SAMPLES_PER_NEIGHBOUR) if repair == "increase_k" else k
    near = neighbours(shown[0], most, seed) if near is None else near
    sketch = _Sketch((near, neighbours(shown[1], most, seed)), manifold, shown[1], kept, node_of, manifold.remark(x))
    graphs = sketch.drawn(k)
    if graphs.split is not None:
        graphs = sketch.repaired(graphs, repair)
    return graphs.local() if len(kept) > FACTORED else graphs


def _enough(k: int, samples: int, duplicates: int) -> None:
    if not isinstance(k, Integral) or k < 1:
        raise OutOfRange("k", k, "a whole number of neighbours, at least 1")
    need = SAMPLES_PER_NEIGHBOUR * k
    if samples < need:
        copies = f" after {duplicates} duplicates were removed" if duplicates else ""
        raise TooFewSamplesError(
            f"k = {k} neighbours need at least {need} samples ({SAMPLES_PER_NEIGHBOUR} k), got {samples}{copies}; "
            "add samples or lower k"
        )


@dataclass(frozen=True, eq=False)
class _Sketch:
    """Neighbours of inputs and outputs, from which graphs of any smaller k are drawn."""

    near: tuple[Neighbours, Neighbours]
    manifold: GraphConstruction
    y: Points
    kept: Int[np.ndarray, "m"]
    node_of: Int[np.ndarray, "n"]
    remark: str

    def drawn(self, k: int) -> GraphPair:
        """Return the graphs with the nearest ``k`` of each."""
        x, y = (near.first(k) for near in self.near)
        return GraphPair(
            inputs=self.manifold.connect(x),
            outputs=self.manifold.connect(y),
            rows=self.kept,
            node_of=self.node_of,
            k=k,
            duplicates=len(self.node_of) - len(self.kept),
            ties=int((y.distance[:, -1] == 0).sum()),
            recall=(x.recall, y.recall),
            remark=self.remark,
        )

    def repaired(self, first: GraphPair, repair: str) -> GraphPair:
        """Return graphs with an infinite score after ``repair``."""
        if repair == "largest":
            left = first.restricted(largest(first.outputs))
            count = f"{left.inputs.n} of {first.inputs.n} samples"
            return replace(left, repaired=f"only the largest output component: {count}")
        if repair == "mst":
            whole = bridged(first.outputs, self.y)
            added = len(whole.edges) - len(first.outputs.edges)
            return replace(first, outputs=whole, repaired=f"{added} edges of the outputs' minimum spanning tree added")
        return self._wider(first) if repair == "increase_k" else first

    def _wider(self, first: GraphPair) -> GraphPair:
        most = self.near[0].index.shape[1]
        for k in range(first.k + 1, most + 1):
            wider = self.drawn(k)
            if wider.split is None:
                return replace(wider, repaired=f"k increased from {first.k} to {k} in both graphs")
        return replace(first, repaired=f"increasing k to {most} did not help")
