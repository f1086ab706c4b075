"""From two feature arrays to two graphs on the same samples: checked, without duplicates, repaired if asked."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Int

from holdfast.errors import HoldfastError, nearest
from holdfast.spectral.components import REPAIRS, Split, bridged, largest, split
from holdfast.spectral.graph import Graph
from holdfast.spectral.graphs.approximate import neighbours
from holdfast.spectral.graphs.base import Manifold
from holdfast.spectral.points import Points, distinct, points

SAMPLES_PER_NEIGHBOUR = 3
"""Below so many samples per neighbour the graphs are nearly complete and say nothing of a manifold."""
WIDEST = 4
"""Largest multiple of k that the repair by a larger k tries."""


@dataclass(frozen=True, eq=False)
class Drawing:
    """The graphs of inputs and outputs, and how they came about."""

    inputs: Graph
    outputs: Graph
    rows: Int[np.ndarray, "m"]
    """The sample that each node is."""
    place: Int[np.ndarray, "n"]
    """The node of each sample, its first copy's for a duplicate; -1 for a sample left out by a repair."""
    k: int
    duplicates: int
    """Samples whose input equals an earlier one's."""
    ties: int
    """Samples whose output equals those of at least k others: which of these are neighbours is decided by order."""
    recall: tuple[float, float]
    """Shares of the true neighbours found among inputs and among outputs."""
    repaired: str = ""

    @property
    def split(self) -> Split | None:
        """Return why the score is infinite, if it is, in terms of samples."""
        found = split(self.inputs, self.outputs)
        if found is None:
            return None
        return replace(found, pair=(int(self.rows[found.pair[0]]), int(self.rows[found.pair[1]])))

    def restricted(self, nodes: Bool[np.ndarray, "m"]) -> Drawing:
        """Return the drawing of ``nodes`` alone."""
        number = np.where(nodes, np.cumsum(nodes) - 1, -1)
        place = np.where(self.place >= 0, number[self.place], -1)
        graphs = self.inputs.within(nodes), self.outputs.within(nodes)
        return replace(self, inputs=graphs[0], outputs=graphs[1], rows=self.rows[nodes], place=place)

    def renamed(self, order: Int[np.ndarray, "n"]) -> Drawing:
        """Return the drawing of samples that were taken in ``order``, in terms of the samples as they were before."""
        place = np.empty_like(self.place)
        place[order] = self.place
        return replace(self, rows=order[self.rows], place=place)


def checked(inputs: object, outputs: object) -> tuple[Points, Points]:
    """Return both arrays as points.

    Raises:
        HoldfastError: they are no finite numeric arrays of equal length, or all of one's rows are the same.
    """
    x, y = points(inputs, "inputs"), points(outputs, "outputs")
    if len(x) != len(y):
        raise HoldfastError(
            f"inputs and outputs must have one row per sample, got {len(x)} and {len(y)} rows; "
            "pass the features of the same samples in the same order"
        )
    for array, name in ((x, "inputs"), (y, "outputs")):
        if array.constant:
            raise HoldfastError(
                f"{name} are constant: all {len(array)} rows are equal up to rounding, so no sample has nearest "
                "neighbours; a collapsed encoder is useless, not robust"
            )
    return x, y


def draw(x: Points, y: Points, k: int, manifold: Manifold, repair: str = "none", seed: int = 0) -> Drawing:
    """Return the graphs of the distinct samples.

    Args:
        x, y: inputs and outputs, from ``checked``.
        k: neighbours of each sample.
        manifold: which graph is drawn from them.
        repair: what to do about an infinite score: ``none``, ``increase_k``, ``largest`` or ``mst``.
        seed: of the approximate search, above the size that is searched exactly.

    Raises:
        HoldfastError: there are too few samples for ``k``, or no such repair.
    """
    if repair not in REPAIRS:
        raise HoldfastError(f"unknown repair {repair!r}; {nearest(repair, list(REPAIRS))}")
    kept, place = distinct(x)
    duplicates = len(x) - len(kept)
    if k < 1 or len(kept) < SAMPLES_PER_NEIGHBOUR * k or len(kept) <= k + 1:
        need = max(SAMPLES_PER_NEIGHBOUR * k, k + 2)
        copies = f" after {duplicates} duplicates were removed" if duplicates else ""
        raise HoldfastError(
            f"k = {k} neighbours need k >= 1 and at least {need} samples (3 k), got {len(kept)}{copies}; "
            "add samples or lower k"
        )
    if duplicates:
        x, y = x.subset(kept), y.subset(kept)
    shown = manifold.view(x), manifold.view(y)
    most = min(WIDEST * k, len(kept) // SAMPLES_PER_NEIGHBOUR) if repair == "increase_k" else k
    near = neighbours(shown[0], most, seed), neighbours(shown[1], most, seed)

    def drawn(count: int) -> Drawing:
        first = near[0].first(count), near[1].first(count)
        return Drawing(
            manifold.connect(first[0]),
            manifold.connect(first[1]),
            kept,
            place,
            count,
            duplicates,
            int((first[1].distance[:, -1] == 0).sum()),
            (near[0].recall, near[1].recall),
        )

    first = drawn(k)
    if repair == "none" or first.split is None:
        return first
    if repair == "largest":
        left = first.restricted(largest(first.outputs))
        return replace(left, repaired=f"only the largest output component: {left.inputs.n} of {len(kept)} samples")
    if repair == "mst":
        whole = bridged(first.outputs, shown[1])
        added = len(whole.edges) - len(first.outputs.edges)
        return replace(first, outputs=whole, repaired=f"{added} edges of the outputs' minimum spanning tree added")
    for count in range(k + 1, most + 1):
        wider = drawn(count)
        if wider.split is None:
            return replace(wider, repaired=f"k increased from {k} to {count} in both graphs")
    return replace(first, repaired=f"increasing k to {most} did not help")
