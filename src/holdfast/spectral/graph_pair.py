"""From two feature arrays to two graphs on the same samples: checked, without duplicates, with the repair that is wanted."""

from __future__ import annotations

from dataclasses import dataclass, replace
from numbers import Integral

import numpy as np
from jaxtyping import Bool, Int

from holdfast.core.errors import HoldfastError, OutOfRange, UnknownName
from holdfast.core.points.neighbours import Neighbours
from holdfast.core.points.points import Points, distinct, points
from holdfast.spectral.graph import REPAIRS, Graph, Split, bridged, largest, split
from holdfast.spectral.graphs import GraphConstruction
from holdfast.spectral.neighbours import neighbours
from holdfast.spectral.solve import FACTORED

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
    """The sample that each node is; ascending, but for large graphs (see ``local``)."""
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
        k: neighbours of each sample.
        manifold: which graph is drawn from them.
        repair: what to do about an infinite score: ``none``, ``increase_k``, ``largest`` or ``mst``.
        seed: of the approximate search, above the size that is searched exactly.
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
