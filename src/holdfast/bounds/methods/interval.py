"""Interval bounds: boxes propagated forward, operation by operation (Gowal et al. 2018, https://arxiv.org/abs/1810.12715)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.bounds.network.forms import Form, dense_form
from holdfast.bounds.network.network_graph import Affine, Graph, Node
from holdfast.bounds.regions import Region
from holdfast.bounds.relaxations import Box, Rule


def node_box(node: Node, boxes: Sequence[Box], region: Region) -> Box:
    """Return the box of ``node`` from those of the nodes before it."""
    if node.operation is None:
        return region.box
    inputs = [boxes[i] for i in node.sources]
    if isinstance(node.operation, Rule):
        return node.operation.interval(*inputs)
    return affine_box(node.operation, inputs)


def affine_box(operation: Affine, inputs: Sequence[Box]) -> Box:
    """Return ``operation(middle) -+ |operation| radius``."""
    middle = operation.forward(*((box.lower + box.upper) / 2 for box in inputs))
    radius = operation.magnitude(*((box.upper - box.lower) / 2 for box in inputs))
    return Box(middle - radius, middle + radius)


def intermediate_bounds(
    graph: Graph, region: Region, rounding: dict[int, Float[Tensor, "b ..."]] | None = None
) -> list[Box]:
    """Return the box of every node; what it may lose by rounding, if that is accounted for, goes into ``rounding``."""
    boxes: list[Box] = []
    charged: dict[int, Tensor] = {} if rounding is None else rounding
    passed: dict[int, Tensor] = {}
    for node in graph.nodes:
        boxes.append(node_box(node, boxes, region))
        if graph.arithmetic is not None:
            boxes[-1] = graph.arithmetic.account(graph, node, region, boxes, charged, passed)
    return boxes


def least_in_box(box: Box, form: Form) -> Float[Tensor, "b s"]:
    """Return the minimum of a form over a box."""
    radius = Form(form.coef.abs(), form.shape).dot((box.upper - box.lower) / 2)
    return form.dot((box.lower + box.upper) / 2) - radius


def output_bounds(
    graph: Graph,
    boxes: Sequence[Box],
    specifications: Float[Tensor, "b s d"],
    rounding: Mapping[int, Float[Tensor, "b ..."]] | None = None,
    least: Callable[[int, Form], Float[Tensor, "b s"]] | None = None,
) -> Float[Tensor, "b s"]:
    """Return lower bounds of ``specifications . code``, with the affine maps at the end of the graph merged into them.

    Args:
        graph: the network.
        boxes: of its nodes.
        specifications: the linear functions.
        rounding: by how much it may lower a form of each node, for each unit of its coefficients.
        least: returns lower bounds of a form of a node, by more than its box.
    """
    output = graph.nodes[-1]
    pending, total = {output.index: dense_form(specifications, output.shape)}, torch.zeros_like(specifications[..., 0])
    for node in reversed(graph.nodes):
        form = pending.pop(node.index, None)
        if form is None:
            continue
        if rounding and node.index in rounding:
            total = total - form.like(form.coef.abs()).dot(rounding[node.index])
        if not isinstance(node.operation, Affine):
            total = total + (least(node.index, form) if least else least_in_box(boxes[node.index], form))
            continue
        total = total if node.operation.offset is None else total + form.dot(node.operation.offset)
        for source, part in zip(node.inputs, node.operation.transpose(form), strict=True):
            pending[source] = pending[source].plus(part) if source in pending else part
    return total
