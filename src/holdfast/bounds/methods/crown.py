"""CROWN: linear bounds propagated backward to the input (Zhang et al. 2018, https://arxiv.org/abs/1811.00866).

A linear form ``coef . z`` of a node's values is bounded from below by a linear form of earlier values. An affine
operation multiplies the coefficients by its transpose. A nonlinear operation replaces its output by its linear lower
bound where the coefficient is positive and by its linear upper bound where it is negative. At the input, the minimum
of the linear form over the region is the bound.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.utils._pytree import tree_map_only

from holdfast.bounds.methods.interval import node_box
from holdfast.bounds.methods.interval import output_bounds as output_bounds_of_boxes
from holdfast.bounds.network.forms import Form, dense_form, identity
from holdfast.bounds.network.network_graph import Convolution, Diagonal, Graph, Node
from holdfast.bounds.regions import Region
from holdfast.bounds.relaxations import Box, LinearRelaxation, Rule
from holdfast.core.balls import Linf

MEMORY = 2**26
"""Bytes that the coefficients of one node may take at a time; more forms are bounded in chunks."""


Tensors = TypeVar("Tensors")


def taken(tensors: Tensors, which: slice | Tensor) -> Tensors:
    """Return some entries along the first axis of all tensors in lists, tuples and dicts.

    Example:
        >>> taken({"bounds": [torch.arange(3)], "none": None}, slice(1, None))
        {'bounds': [tensor([1, 2])], 'none': None}
    """
    return cast(Tensors, tree_map_only(Tensor, lambda values: values[which], tensors))


@dataclass
class NetworkRelaxation:
    """A graph relaxed over a region: bounds of every node, and a linear relaxation of every nonlinear one."""

    graph: Graph
    region: Region
    intermediate_bounds: list[Box] = field(default_factory=list)
    linear_relaxations: dict[int, LinearRelaxation] = field(default_factory=dict)
    interval_gains: Bool[Tensor, "b"] | bool = False
    """In which images intervals tightened a box of CROWN that a linear relaxation depends on."""
    without_intervals: NetworkRelaxation | None = None
    """CROWN without intervals, up to the first node where the two may differ; None if nothing is shared."""
    rounding: dict[int, Float[Tensor, "b ..."]] = field(default_factory=dict)
    """By how much rounding lowers forms of a node at most, for each unit of their coefficients, where that is charged."""
    passed: dict[int, Float[Tensor, "b ..."]] = field(default_factory=dict)
    """The same of nodes for which later ones are charged, while intermediate bounds are computed."""

    def pick(self, image: int) -> NetworkRelaxation:
        """Return the relaxation of one image."""
        alone = slice(image, None, self.region.distinct)
        parts = (self.intermediate_bounds, self.linear_relaxations, self.rounding)
        boxes, relaxations, rounding = taken(parts, alone)
        return NetworkRelaxation(self.graph, self.region.pick(image), boxes, relaxations, rounding=rounding)

    @classmethod
    def within(
        cls, graph: Graph, region: Region, boxes: list[Box], rounding: dict[int, Float[Tensor, "b ..."]] | None = None
    ) -> NetworkRelaxation:
        """Return the relaxation of a graph whose nodes are bounded by ``boxes``."""
        network = cls(graph, region, boxes, rounding=rounding or {})
        for node in graph.nodes:
            network.relax_node(node)
        return network

    def relax_node(self, node: Node, *clipped: Box) -> None:
        """Add the linear relaxation of a node over the boxes, or over ``clipped`` ones, if it needs one."""
        if isinstance(node.operation, Rule):
            boxes = clipped or (self.intermediate_bounds[i] for i in node.sources)
            self.linear_relaxations[node.index] = node.operation.relax(*boxes)

    def by_intervals(
        self, specifications: Float[Tensor, "b s d"], least: Callable[[int, Form], Float[Tensor, "b s"]] | None = None
    ) -> Float[Tensor, "b s"]:
        """Return lower bounds of ``specifications . code`` from the boxes, as ``interval.output_bounds`` does."""
        return output_bounds_of_boxes(self.graph, self.intermediate_bounds, specifications, self.rounding, least)

    def take(self, images: Int[Tensor, "a"]) -> NetworkRelaxation:
        """Return the relaxation of some images."""
        boxes, rounding = taken((self.intermediate_bounds, self.rounding), images)
        return NetworkRelaxation.within(self.graph, self.region.take(images), boxes, rounding)


class RelaxationParameters:
    """Free parameters of a relaxation: slopes and multipliers, here none. Every choice of them is sound."""

    def choose(self, node: int, form: Form, relaxation: LinearRelaxation) -> LinearRelaxation:
        """Return the linear relaxation of a node to be used for the coefficients ``form`` of its output."""
        return relaxation

    def propagate(
        self, network: NetworkRelaxation, node: int, form: Form
    ) -> tuple[Sequence[Form], Float[Tensor, "..."]]:
        """Return forms of a nonlinear node's inputs and constants whose sum bounds ``form`` of its output from below."""
        relaxation = self.choose(node, form, network.linear_relaxations[node])
        parts, constant = propagate_nonlinear(form, relaxation)
        return self.constrain(node, parts), constant

    def constrain(self, node: int, parts: Sequence[Form]) -> Sequence[Form]:
        """Return the forms of the node's inputs minus multiples of inequalities that its inputs satisfy."""
        return parts

    def at_regions(self, values: Float[Tensor, "b ..."]) -> Float[Tensor, "r ..."]:
        """Return, of values for each region, those of the regions that forms are propagated for."""
        return values


def minimise(
    network: NetworkRelaxation, target: int, form: Form, parameters: RelaxationParameters | None = None
) -> Float[Tensor, "b s"]:
    """Return lower bounds of the forms of the node ``target``, with free ``parameters`` if there are any."""
    form, total = propagate_backward(network, target, form, parameters or RelaxationParameters())
    return total + network.region.minimise(form)


def propagate_backward(
    network: NetworkRelaxation, target: int, form: Form, parameters: RelaxationParameters
) -> tuple[Form, Tensor]:
    """Return forms of the input and constants whose sum bounds the forms of the node ``target`` from below."""
    pending, total = {target: form}, torch.zeros((), dtype=form.coef.dtype, device=form.coef.device)
    for node in reversed(network.graph.nodes[: target + 1]):
        if node.index not in pending:
            continue
        form, operation = pending.pop(node.index), node.operation
        if node.index in network.rounding:
            rounding = parameters.at_regions(network.rounding[node.index])
            total = total - form.like(form.coef.abs()).dot(rounding)
        if operation is None:
            return form, total
        if isinstance(operation, Rule):
            parts, constant = parameters.propagate(network, node.index, form)
            total = total + constant
        else:
            parts = operation.transpose(form)
            total = total if operation.offset is None else total + form.dot(operation.offset)
        for source, part in zip(node.inputs, parts, strict=True):
            pending[source] = pending[source].plus(part) if source in pending else part
    raise AssertionError("a graph begins with its input")


def propagate_nonlinear(form: Form, relaxation: LinearRelaxation) -> tuple[Sequence[Form], Tensor]:
    """Return forms of a nonlinear operation's inputs and constants whose sum bounds ``form`` of its output from below."""
    positive = form.coef.clamp_min(0)
    negative = form.coef - positive
    parts = [
        form.like(torch.addcmul(positive * form.arrange(lower), negative, form.arrange(upper)))
        for lower, upper in zip(relaxation.lower, relaxation.upper, strict=True)
    ]
    constant = torch.zeros((), dtype=form.coef.dtype, device=form.coef.device)
    for part, values in ((positive, relaxation.floor), (negative, relaxation.ceiling)):
        if values is not None:
            constant = constant + form.like(part).dot(values)
    return parts, constant


class OuterRelaxations(RelaxationParameters):
    """Uses the linear relaxations of the outer regions of a nested batch."""

    def choose(self, node: int, form: Form, relaxation: LinearRelaxation) -> LinearRelaxation:
        return taken(relaxation, slice(len(relaxation.lower[0]) // 2))

    def at_regions(self, values: Float[Tensor, "b ..."]) -> Float[Tensor, "r ..."]:
        return values[: len(values) // 2]


def minimise_nested(network: NetworkRelaxation, target: int, form: Form) -> Float[Tensor, "b s"]:
    """Return lower bounds of the forms; nested regions share the backward propagation, which takes most of the time."""
    if not network.region.nested:
        return minimise(network, target, form)
    form, total = propagate_backward(network, target, form, OuterRelaxations())
    return torch.cat([total + half.minimise(form) for half in network.region.halves])


Bounder = Callable[[NetworkRelaxation, int, Form], Tensor]
"""Bounds forms of a node: ``minimise_nested``, or ``minimise`` with optimised slopes."""
Refiner = Callable[[NetworkRelaxation, int], Box]
"""Tightens the box of a node further."""


def relax(
    graph: Graph,
    region: Region,
    with_intervals: bool = True,
    bounder: Bounder = minimise_nested,
    initial: NetworkRelaxation | None = None,
    refiner: Refiner | None = None,
) -> NetworkRelaxation:
    """Return the relaxation of a graph, by CROWN where a tighter box changes a linear relaxation.

    ``with_intervals`` intersects intermediate bounds with interval bounds (each can be the tighter). ``initial`` holds
    those of the first nodes already.
    """
    network = initial or NetworkRelaxation(graph, region)
    wanted = {i for node in graph.nodes if isinstance(node.operation, Rule) for i in node.sources}
    wanted -= interval_exact_nodes(graph, region)
    for node in graph.nodes[len(network.intermediate_bounds) :]:
        box = node_box(node, network.intermediate_bounds, region)
        network.intermediate_bounds.append(box)
        network.relax_node(node)
        if graph.arithmetic is not None:
            relaxation, before = network.linear_relaxations.get(node.index), (network.rounding, network.passed)
            box = graph.arithmetic.account(graph, node, region, network.intermediate_bounds, *before, relaxation)
            network.intermediate_bounds[-1] = box
        if node.index in wanted:
            where = nonlinear(graph, node.index, box)
            if region.nested:  # the same entries in both, so that inner boxes stay inside outer ones
                where = where[: region.distinct].repeat(2, *(1,) * (where.ndim - 1))
            network.intermediate_bounds[-1], alone = tighten(network, node.index, where, with_intervals, bounder)
            if alone and node.index == min(wanted):
                boxes = [*network.intermediate_bounds[:-1], alone]
                kept = NetworkRelaxation(graph, region, boxes, dict(network.linear_relaxations))
                network.without_intervals = replace(kept, rounding=dict(network.rounding), passed=dict(network.passed))
            if refiner:
                network.intermediate_bounds[-1] = refiner(network, node.index)
    return network


def interval_exact_nodes(graph: Graph, region: Region) -> set[int]:
    """Return the nodes whose interval bounds are exact: over a box, one affine map of independent entries."""
    if region.ball is not Linf:
        return set()
    affine = [node for node in graph.nodes[1:] if not isinstance(node.operation, Rule) and len(node.inputs) == 1]
    return {0, *(node.index for node in affine if node.inputs[0] in graph.pixelwise)}


def nonlinear(graph: Graph, target: int, box: Box) -> Bool[Tensor, "b ..."]:
    """Return where a tighter box of the node would change the linear relaxations that use it."""
    users = [n.operation for n in graph.nodes if isinstance(n.operation, Rule) and target in n.sources]
    return torch.stack([rule.nonlinear(box) for rule in users]).any(0)


def tighten(
    network: NetworkRelaxation, target: int, where: Bool[Tensor, "b ..."], with_intervals: bool, bounder: Bounder
) -> tuple[Box, Box | None]:
    """Return the box of a node, tightened by CROWN ``where`` it matters, and the box by CROWN alone.

    The latter is None if CROWN bounded only some entries; without ``with_intervals`` it bounds all.
    """
    box = network.intermediate_bounds[target]
    if with_intervals and not where.any():
        return box, None
    whole = windowed(network.graph, target)
    if whole:
        crown = _by_windows(network, target, bounder)
    else:
        crown = _by_entries(network, target, where if with_intervals else torch.ones_like(where), bounder)
    if not with_intervals:
        return crown, crown
    # Where CROWN overflows, interval bounds remain. Entries that need no tighter box keep theirs too, even if they were
    # bounded: an image's bounds must not depend on what other images of its batch need.
    lower = torch.where(where, torch.maximum(box.lower, crown.lower.nan_to_num(nan=-torch.inf)), box.lower)
    upper = torch.where(where, torch.minimum(box.upper, crown.upper.nan_to_num(nan=torch.inf)), box.upper)
    gained = ~((lower == crown.lower) & (upper == crown.upper)) & where
    network.interval_gains = network.interval_gains | gained.flatten(1).any(1)
    return Box(lower, upper), crown if whole else None


def windowed(graph: Graph, target: int) -> bool:
    """Whether a node is a feature map whose entries each depend on a window of the one before."""
    node = graph.nodes[target]
    while isinstance(node.operation, Diagonal) and len(node.shape) == 4:
        node = graph.nodes[node.inputs[0]]
    return isinstance(node.operation, Convolution) and max(node.shape[2:]) > 1


def _by_windows(network: NetworkRelaxation, target: int, bounder: Bounder) -> Box:
    graph, shape, b = network.graph, network.graph.nodes[target].shape, len(network.region.centre)
    images, positions = network.region.distinct, shape[2] * shape[3]
    form = identity(shape, graph.dtype, graph.device)
    if images > 1 and chunk_size(graph, target, images * positions) < form.coef.shape[3]:
        # Chunks of a few forms of all images would arrange the linear relaxations of all images again for each chunk.
        alone = [_by_windows(network.pick(image), target, bounder) for image in range(images)]
        return Box(*(torch.stack(ends, 1).flatten(0, 1) for ends in zip(*alone, strict=True)))
    chunks = form.coef.split(chunk_size(graph, target, images * positions), 3)
    least = torch.cat([bounder(network, target, form.like(part)) for part in chunks], 1)
    lower, upper = least.unflatten(1, (1, -1, *shape[2:])).expand(b, -1, -1, -1, -1).chunk(2, 2)
    return Box(lower, -upper)


def _by_entries(network: NetworkRelaxation, target: int, where: Bool[Tensor, "b ..."], bounder: Bounder) -> Box:
    graph = network.graph
    shape, flat = graph.nodes[target].shape, where.flatten(1)[: network.region.distinct]
    count = int(flat.sum(1).max())
    # Entries to be tightened come first; images with fewer are padded with other entries, whose bounds are as sound.
    indices = flat.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :count]
    lower, upper = (end.flatten(1).clone() for end in network.intermediate_bounds[target])
    for part in indices.split(chunk_size(graph, target, 2 * len(indices)), 1):
        units = unit_vectors(part, flat.shape[1], graph.dtype)
        least = bounder(network, target, dense_form(torch.cat([units, -units], 1), shape))
        low, high = least.chunk(2, 1)
        part = part.repeat(len(low) // len(part), 1)
        lower, upper = lower.scatter(1, part, low), upper.scatter(1, part, -high)
    return Box(lower.unflatten(1, shape), upper.unflatten(1, shape))


def chunk_size(graph: Graph, target: int, multiple: int) -> int:
    """Return how many forms of a node may be bounded at once, each ``multiple`` times over."""
    largest = max(torch.Size(node.shape).numel() for node in graph.nodes[: target + 1])
    size = torch.finfo(graph.dtype).bits // 8
    return max(1, MEMORY // (largest * size * multiple))


def unit_vectors(indices: Int[Tensor, "b s"], n: int, dtype: torch.dtype) -> Float[Tensor, "b s n"]:
    """Return the unit vectors with a one at ``indices``."""
    return torch.zeros((*indices.shape, n), dtype=dtype, device=indices.device).scatter_(2, indices[..., None], 1.0)


def output_bounds(network: NetworkRelaxation, specifications: Float[Tensor, "b s d"]) -> Float[Tensor, "b s"]:
    """Return lower bounds of ``specifications . code``."""
    output = network.graph.nodes[-1]
    chunks = specifications.split(chunk_size(network.graph, output.index, len(specifications)), 1)
    return torch.cat([minimise(network, output.index, dense_form(part, output.shape)) for part in chunks], 1)
