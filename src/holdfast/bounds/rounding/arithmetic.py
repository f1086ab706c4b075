"""Rounding as one more term of every layer: of the executed network, and of the bound's own float64.

An executed network computes ``z_k = op_k(z) + d_k`` instead of each operation, with ``|d_k| <= D_k`` for every input of
the region. ``D_k`` follows from the format, the operation, and bounds on its executed operands. So boxes are widened by
``D_k``, and a linear form ``c . z_k`` that is propagated backward loses ``|c| . D_k``. The proof then holds for every
``d_k``: for every order of summation and every way to round to nearest.

The bound's own rounding has the same form. Coefficients ``c' = L^T c`` in floating point are off by at most
``gamma_n |L|^T |c|``, which moves ``c' . x`` by at most ``|c| . (gamma_n |L| |x|)``; with constants, slopes and the sums at
the end, ``|c| . gamma_n (|L| |x| + |b|)`` for generous ``n``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.bounds.network.network_graph import RULES, Affine, Diagonal, Graph, Node
from holdfast.bounds.regions import Region
from holdfast.bounds.relaxations import Box, LinearRelaxation
from holdfast.bounds.rounding.errors import local_error
from holdfast.bounds.rounding.formats import HALF, Format, size
from holdfast.core.balls import column

Values = Float[Tensor, "b ..."]

SPARE = 64
"""Roundings of a layer's bound beyond one for each entry of it: slopes, sums of several forms, the totals."""
OUTWARD = 1 + 2.0**-20
"""Error terms are computed in floating point themselves, from sums of what is not negative."""


@dataclass(frozen=True)
class Arithmetic:
    """Rounding that bounds account for: their own, of the inputs, and of the steps of a graph."""

    inputs: Format | None = None
    """The type that inputs are converted to; None: they are numbers of the bound's own type."""
    sums: Format | None = None
    """The type in which sums are kept whose results are of half precision; None: in that of each result."""

    def account(
        self,
        graph: Graph,
        node: Node,
        region: Region,
        boxes: Sequence[Box],
        charged: dict[int, Values],
        passed: dict[int, Values],
        relaxation: LinearRelaxation | None = None,
    ) -> Box:
        """Return the box of ``node`` with rounding, and note by how much that may lower a form of it, by unit coefficient.

        What is ``charged`` must be subtracted where forms of the node are propagated. What is ``passed`` becomes part of
        what is charged later: the bound's own rounding is so small that each layer is charged for it once.

        Args:
            graph: the network.
            node: of which there is a box without rounding.
            region: of its inputs.
            boxes: of the nodes up to this one.
            charged, passed: of the nodes before this one; this one is added to either.
            relaxation: of this node, if it has one.
        """
        boxes = list(boxes)
        widening, lost = own_rounding(graph, node, region, boxes, relaxation)
        boxes[node.index] = _widened(node, boxes, widening)
        if isinstance(node.operation, Affine) and any(i in passed for i in node.inputs):
            parts = [passed.get(i, torch.zeros_like(boxes[i].lower)) for i in node.inputs]
            lost = lost + node.operation.magnitude(*parts)
        if node.index == len(graph.nodes) - 1:  # and once more where codes are compared in the bound's type
            lost = lost + 4 * prod(node.shape) * torch.finfo(graph.dtype).eps * size(boxes[node.index])
        steps = [step for step in graph.steps if step.output.index == node.index]
        for step in steps:
            error = local_error(graph, step, boxes, self.sums_of(step.dtype)) * OUTWARD
            lower, upper = boxes[node.index]
            boxes[node.index] = Box(lower - error, upper + error)
            lost = lost + error
        (charged if steps or node.index in graph.charged else passed)[node.index] = lost * OUTWARD
        return boxes[node.index]

    def sums_of(self, result: torch.dtype) -> Format:
        """Return the format in which sums are kept until they are rounded to ``result``."""
        return self.sums if result in HALF and self.sums is not None else Format(result)


def rigorous(graph: Graph) -> Graph:
    """Return the graph of real numbers whose bounds account for their own rounding."""
    return replace(graph, arithmetic=Arithmetic())


def own_rounding(
    graph: Graph, node: Node, region: Region, boxes: Sequence[Box], relaxation: LinearRelaxation | None = None
) -> tuple[Values, Values]:
    """Return the bound's own rounding error, for the box of ``node`` and for a form per unit coefficient."""
    unit = torch.finfo(graph.dtype).eps / 2
    count = prod(node.shape) + sum(prod(graph.nodes[i].shape) for i in node.inputs) + SPARE
    # Twice, because the sizes are computed in floating point.
    share, sizes, box = 2 * count * unit, [size(boxes[i]) for i in node.inputs], boxes[node.index]
    operation = node.operation
    if operation is None:
        reached = size(box) + column(region.eps, box.lower)
        return 8 * unit * reached, share * reached
    if isinstance(operation, Affine):
        if _same_values(operation):
            return torch.zeros_like(box.lower), share * sizes[0]
        scale = operation.magnitude(*sizes)
        scale = share * (scale if operation.offset is None else scale + operation.offset.abs())
        return scale, scale
    scale, still = size(box), torch.zeros_like(box.lower)
    if len(sizes) == 2:
        scale = torch.maximum(scale, sizes[0] * sizes[1])
    # ReLUs are exact, curves are moved outward by more than their rounding.
    widening = 8 * unit * scale if operation is RULES["product"] else still
    if relaxation is not None:
        slopes = [size(Box(*ends)) for ends in zip(relaxation.lower, relaxation.upper, strict=True)]
        least = 1.0 if relaxation.unstable is not None else 0.0  # slopes that are chosen later are at most 1
        scale = scale + sum(slope.clamp_min(least) * s for slope, s in zip(slopes, sizes, strict=True))
        scale = sum((part.abs() for part in (relaxation.floor, relaxation.ceiling) if part is not None), scale)
    return widening, share * scale


def _same_values(operation: Affine) -> bool:
    """Return whether an operation returns its only input."""
    if not isinstance(operation, Diagonal) or len(operation.factors) != 1:
        return False
    offset = 0.0 if operation.offset is None else operation.offset
    return all(bool((torch.as_tensor(part) == at).all()) for part, at in ((operation.factors[0], 1), (offset, 0)))


def _widened(node: Node, boxes: Sequence[Box], by: Values) -> Box:
    """Return the box moved outward, but not below zero where sums of what is not negative cannot be."""
    lower, upper = boxes[node.index]
    moved, operation = lower - by, node.operation
    below = (moved < 0) & (lower >= 0)
    if isinstance(operation, Affine) and operation.offset is None and bool(below.any()):
        inputs = [boxes[i] for i in node.inputs]
        if all(bool((box.lower >= 0).all()) for box in inputs):
            ones = [torch.ones_like(box.lower[:1]) for box in inputs]
            if torch.equal(operation.forward(*ones), operation.magnitude(*ones)):
                moved = torch.where(below, 0.0, moved)
    return Box(moved, upper + by)
