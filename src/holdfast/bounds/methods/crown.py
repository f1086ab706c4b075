"""CROWN: linear bounds carried backward from a node to the input (Zhang et al. 2018, https://arxiv.org/abs/1811.00866).

A lower bound of ``coef . z`` becomes one by the values of earlier nodes: affine operations hand the coefficients on by
their transpose; a nonlinear one replaces its output by its lower plane where the coefficient is positive and by its
upper plane where it is negative. At the input the region's minimum of the linear function is the bound.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from holdfast.bounds.methods.interval import step
from holdfast.bounds.network.affine import Convolution, Diagonal
from holdfast.bounds.network.forms import Form, chosen, identity
from holdfast.bounds.network.graph import Graph
from holdfast.bounds.regions import Region
from holdfast.bounds.relaxations.rules import Box, LinearRelaxation, Rule
from holdfast.core.balls import Linf

MEMORY = 2**26
"""Bytes that the coefficients of one node may take at a time; more rows are bounded in turns."""


@dataclass
class Relaxed:
    """What is known of a graph over a region: the box of every node, the planes of every nonlinear one."""

    graph: Graph
    region: Region
    boxes: list[Box] = field(default_factory=list)
    planes: dict[int, LinearRelaxation] = field(default_factory=dict)
    mixed: Bool[Tensor, "b"] | bool = False
    """In which images intervals improved on CROWN where it matters."""
    plain: Relaxed | None = None
    """CROWN without intervals, up to the first node where the two may part; None if nothing is shared."""

    def pick(self, image: int) -> Relaxed:
        """Return the region and the planes of one image."""
        alone = slice(image, None, self.region.distinct)
        planes = {node: some_planes(planes, alone) for node, planes in self.planes.items()}
        return Relaxed(self.graph, self.region.pick(image), planes=planes)

    @classmethod
    def within(cls, graph: Graph, region: Region, boxes: list[Box]) -> Relaxed:
        """Return what is known where every box is."""
        relaxed = cls(graph, region, boxes)
        for node in graph.nodes:
            if isinstance(node.operation, Rule):
                relaxed.planes[node.index] = node.operation.relax(*(boxes[i] for i in node.inputs))
        return relaxed

    def take(self, images: Int[Tensor, "a"]) -> Relaxed:
        """Return the same of some images."""
        boxes = [Box(*(end[images] for end in box)) for box in self.boxes]
        return Relaxed.within(self.graph, self.region.take(images), boxes)


class Slopes:
    """Choices left to whoever bounds: here, none. What is chosen for ReLUs is as sound, whatever it is."""

    def choose(self, node: int, form: Form, planes: LinearRelaxation) -> LinearRelaxation:
        """Return the planes to use at a nonlinear node for the coefficients ``form`` over its output."""
        return planes

    def constrain(self, node: int, parts: Sequence[Form]) -> Sequence[Form]:
        """Return the forms over its inputs with multiples of known inequalities taken off."""
        return parts


def minimise(relaxed: Relaxed, target: int, form: Form, slopes: Slopes | None = None) -> Float[Tensor, "b s"]:
    """Return lower bounds of the forms over the node ``target``.

    ``slopes`` chooses the lower slopes of ReLUs, and may add multiplied constraints on their inputs.
    """
    form, total = carried(relaxed, target, form, slopes)
    return total + relaxed.region.minimise(form)


def carried(relaxed: Relaxed, target: int, form: Form, slopes: Slopes | None = None) -> tuple[Form, Tensor]:
    """Return the forms over the input that, with a constant, bound the forms over the node ``target`` from below."""
    pending, total = {target: form}, torch.zeros((), dtype=form.coef.dtype, device=form.coef.device)
    for node in reversed(relaxed.graph.nodes[: target + 1]):
        if node.index not in pending:
            continue
        form, operation = pending.pop(node.index), node.operation
        if operation is None:
            return form, total
        if isinstance(operation, Rule):
            planes = relaxed.planes[node.index]
            parts, constant = through(form, planes if slopes is None else slopes.choose(node.index, form, planes))
            parts = parts if slopes is None else slopes.constrain(node.index, parts)
            total = total + constant
        else:
            parts = operation.transpose(form)
            total = total if operation.offset is None else total + form.dot(operation.offset)
        for source, part in zip(node.inputs, parts, strict=True):
            pending[source] = pending[source].plus(part) if source in pending else part
    raise AssertionError("a graph begins with its input")


def through(form: Form, planes: LinearRelaxation) -> tuple[Sequence[Form], Tensor]:
    """Return the forms over the inputs of a nonlinear operation that bound ``form`` over its output, and a constant."""
    positive = form.coef.clamp_min(0)
    negative = form.coef - positive
    parts = [
        form.like(torch.addcmul(positive * form.lay(lower), negative, form.lay(upper)))
        for lower, upper in zip(planes.lower, planes.upper, strict=True)
    ]
    constant = torch.zeros((), dtype=form.coef.dtype, device=form.coef.device)
    for part, values in ((positive, planes.floor), (negative, planes.ceiling)):
        if values is not None:
            constant = constant + form.like(part).dot(values)
    return parts, constant


def some_planes(planes: LinearRelaxation, some: slice) -> LinearRelaxation:
    """Return the planes of some images."""
    lower, upper = (tuple(slope[some] for slope in slopes) for slopes in (planes.lower, planes.upper))
    rest = (None if ends is None else ends[some] for ends in (planes.floor, planes.ceiling, planes.free))
    return LinearRelaxation(lower, upper, *rest)


class Outer(Slopes):
    """The planes of the outer regions of a nested batch."""

    def choose(self, node: int, form: Form, planes: LinearRelaxation) -> LinearRelaxation:
        return some_planes(planes, slice(len(planes.lower[0]) // 2))


def minimise_nested(relaxed: Relaxed, target: int, form: Form) -> Float[Tensor, "b s"]:
    """Return lower bounds of the forms, in inner regions by what is carried for outer ones: it takes most of the work."""
    if not relaxed.region.nested:
        return minimise(relaxed, target, form)
    form, total = carried(relaxed, target, form, Outer())
    return torch.cat([total + half.minimise(form) for half in relaxed.region.halves])


Bounder = Callable[[Relaxed, int, Form], Tensor]
"""How forms over a node are bounded: ``minimise_nested``, or ``minimise`` with optimised slopes."""
Refiner = Callable[[Relaxed, int], Box]
"""How the box of a node is made tighter once it is known."""


def relax(
    graph: Graph,
    region: Region,
    joint: bool = True,
    bounder: Bounder = minimise_nested,
    begun: Relaxed | None = None,
    refiner: Refiner | None = None,
) -> Relaxed:
    """Return boxes and planes of all nodes, by CROWN where a tighter box changes a relaxation.

    ``joint`` intersects with interval bounds (each can be the tighter); without it the boxes are CROWN's own.
    ``begun`` already has the first of them.
    """
    relaxed = begun or Relaxed(graph, region)
    wanted = {i for node in graph.nodes if isinstance(node.operation, Rule) for i in node.inputs}
    wanted -= exact_nodes(graph, region)
    for node in graph.nodes[len(relaxed.boxes) :]:
        box = step(node, relaxed.boxes, region)
        relaxed.boxes.append(box)
        if isinstance(node.operation, Rule):
            relaxed.planes[node.index] = node.operation.relax(*(relaxed.boxes[i] for i in node.inputs))
        if node.index in wanted:
            where = curved(graph, node.index, box)
            if region.nested:  # the same entries inside, so that each box stays inside
                where = where[: region.distinct].repeat(2, *(1,) * (where.ndim - 1))
            relaxed.boxes[-1], alone = tightened(relaxed, node.index, where, joint, bounder)
            if alone and node.index == min(wanted):
                relaxed.plain = Relaxed(graph, region, [*relaxed.boxes[:-1], alone], dict(relaxed.planes))
            if refiner:
                relaxed.boxes[-1] = refiner(relaxed, node.index)
    return relaxed


def exact_nodes(graph: Graph, region: Region) -> set[int]:
    """Return the nodes whose interval bounds nothing can improve: in a box, one affine map of separate entries."""
    if region.ball is not Linf:
        return set()
    affine = [node for node in graph.nodes[1:] if not isinstance(node.operation, Rule) and len(node.inputs) == 1]
    return {0, *(node.index for node in affine if node.inputs[0] in graph.apart)}


def curved(graph: Graph, target: int, box: Box) -> Bool[Tensor, "b ..."]:
    """Return where a tighter box of the node would change what is made of it."""
    users = [n.operation for n in graph.nodes if isinstance(n.operation, Rule) and target in n.inputs]
    return torch.stack([rule.curved(box) for rule in users]).any(0)


def tightened(
    relaxed: Relaxed, target: int, where: Bool[Tensor, "b ..."], joint: bool, bounder: Bounder
) -> tuple[Box, Box | None]:
    """Return the box of a node, by CROWN ``where`` it matters (everywhere, unless ``joint``), and by CROWN alone.

    The latter is None where only some entries were asked for.
    """
    box = relaxed.boxes[target]
    if joint and not where.any():
        return box, None
    whole = windowed(relaxed.graph, target)
    if whole:
        found = _by_windows(relaxed, target, bounder)
    else:
        found = _by_rows(relaxed, target, where if joint else torch.ones_like(where), bounder)
    if not joint:
        return found, found
    # CROWN may fail where intervals do not (overflow): what it cannot say changes nothing. Nor does what was not asked
    # for, so that an image's bounds do not depend on what other images of its batch need.
    lower = torch.where(where, torch.maximum(box.lower, found.lower.nan_to_num(nan=-torch.inf)), box.lower)
    upper = torch.where(where, torch.minimum(box.upper, found.upper.nan_to_num(nan=torch.inf)), box.upper)
    gained = ~((lower == found.lower) & (upper == found.upper)) & where
    relaxed.mixed = relaxed.mixed | gained.flatten(1).any(1)
    return Box(lower, upper), found if whole else None


def windowed(graph: Graph, target: int) -> bool:
    """Whether a node is a map of which each entry sees a window of the one before."""
    node = graph.nodes[target]
    while isinstance(node.operation, Diagonal) and len(node.shape) == 4:
        node = graph.nodes[node.inputs[0]]
    return isinstance(node.operation, Convolution) and max(node.shape[2:]) > 1


def _by_windows(relaxed: Relaxed, target: int, bounder: Bounder) -> Box:
    graph, shape, b = relaxed.graph, relaxed.graph.nodes[target].shape, len(relaxed.region.centre)
    images, positions = relaxed.region.distinct, shape[2] * shape[3]
    form = identity(shape, graph.dtype, graph.device)
    if images > 1 and per_turn(graph, target, images * positions) < form.coef.shape[3]:
        # Turns of a few forms of all images would lay out the planes of all of them again and again.
        alone = [_by_windows(relaxed.pick(image), target, bounder) for image in range(images)]
        return Box(*(torch.stack(ends, 1).flatten(0, 1) for ends in zip(*alone, strict=True)))
    turns = form.coef.split(per_turn(graph, target, images * positions), 3)
    least = torch.cat([bounder(relaxed, target, form.like(part)) for part in turns], 1)
    lower, upper = least.unflatten(1, (1, -1, *shape[2:])).expand(b, -1, -1, -1, -1).chunk(2, 2)
    return Box(lower, -upper)


def _by_rows(relaxed: Relaxed, target: int, where: Bool[Tensor, "b ..."], bounder: Bounder) -> Box:
    graph = relaxed.graph
    shape, flat = graph.nodes[target].shape, where.flatten(1)[: relaxed.region.distinct]
    count = int(flat.sum(1).max())
    # The entries that matter come first; samples with fewer fill up with others, whose bounds are as sound.
    rows = flat.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :count]
    lower, upper = (end.flatten(1).clone() for end in relaxed.boxes[target])
    for part in rows.split(per_turn(graph, target, 2 * len(rows)), 1):
        units = unit_rows(part, flat.shape[1], graph.dtype)
        least = bounder(relaxed, target, chosen(torch.cat([units, -units], 1), shape))
        low, high = least.chunk(2, 1)
        part = part.repeat(len(low) // len(part), 1)
        lower, upper = lower.scatter(1, part, low), upper.scatter(1, part, -high)
    return Box(lower.unflatten(1, shape), upper.unflatten(1, shape))


def per_turn(graph: Graph, target: int, multiple: int) -> int:
    """Return how many rows may be bounded at once, each ``multiple`` times over."""
    largest = max(torch.Size(node.shape).numel() for node in graph.nodes[: target + 1])
    size = torch.finfo(graph.dtype).bits // 8
    return max(1, MEMORY // (largest * size * multiple))


def unit_rows(rows: Int[Tensor, "b s"], n: int, dtype: torch.dtype) -> Float[Tensor, "b s n"]:
    """Return the rows of the identity matrix that ``rows`` names."""
    return torch.zeros((*rows.shape, n), dtype=dtype, device=rows.device).scatter_(2, rows[..., None], 1.0)


def output_bounds(relaxed: Relaxed, rows: Float[Tensor, "b s d"]) -> Float[Tensor, "b s"]:
    """Return lower bounds of ``rows . code``."""
    output = relaxed.graph.nodes[-1]
    turns = rows.split(per_turn(relaxed.graph, output.index, len(rows)), 1)
    return torch.cat([minimise(relaxed, output.index, chosen(part, output.shape)) for part in turns], 1)
