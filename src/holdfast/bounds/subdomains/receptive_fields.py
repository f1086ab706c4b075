"""Tighter boxes of inner layers, by branch and bound on the part of the network that each neuron sees.

A position of a convolution sees a small network, the same everywhere, with boxes of its own: so thousands of neurons are
bounded side by side. What a layer's box gains is gained again by every layer after it.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import torch
from jaxtyping import Int
from torch import Tensor

from holdfast.bounds.methods.alpha import ascend
from holdfast.bounds.methods.crown import Relaxed, relax
from holdfast.bounds.network.affine import Affine, Convolution, Diagonal
from holdfast.bounds.network.forms import Shape, Windows, gather
from holdfast.bounds.network.graph import RULES, Graph, Node
from holdfast.bounds.regions import Region
from holdfast.bounds.relaxations.rules import Box, Rule
from holdfast.bounds.subdomains.subdomains import Tasks
from holdfast.core.balls import Linf

ROOT, STEPS, RATE = 20, 10, 0.1
"""Steps of ascent before the first split and after each one, and their size."""
MOST = 64
"""Parts of a neuron's region."""


@dataclass(frozen=True)
class ReceptiveField:
    """A network from windows of a node whose entries vary by themselves to single positions of another one."""

    graph: Graph
    shown: tuple[int, ...]
    """The node of the whole network of which each node of ``graph`` shows a window."""
    places: tuple[Windows, ...]

    def relaxed(self, whole: Relaxed, where: Int[Tensor, "p 3"]) -> Relaxed:
        """Return the crops at ``where``: image, y and x."""
        image, y, x = where.unbind(1)
        boxes = []
        for node, source, place in zip(self.graph.nodes, self.shown, self.places, strict=True):
            windows = [gather(end[:, 0], place, node.shape[2:]) for end in whole.boxes[source]]
            if any(n.operation is RULES["relu"] and node.index in n.inputs for n in self.graph.nodes):
                # Beyond the edge the next convolution takes zeros: what a ReLU makes of what is negative.
                inside = gather(torch.ones_like(whole.boxes[source].lower[:1, 0]), place, node.shape[2:])
                windows = [torch.where(inside > 0, end, -1.0) for end in windows]
            boxes.append(Box(*(end[:, :, :, 0, image, y, x].movedim(3, 0)[:, None] for end in windows)))
        low, high = boxes[0]
        middle = (low + high) / 2
        around = Region(middle, low, high, (high - middle).flatten(1).amax(1), Linf)
        return Relaxed.within(self.graph, around, boxes)


def refine(graph: Graph, region: Region, inner: int, rate: float, seconds: float) -> Relaxed:
    """Return boxes by alpha-CROWN after ``inner`` steps, tightened for ``seconds``: each layer has half of what is left."""
    end = time.monotonic() + seconds

    def refiner(relaxed: Relaxed, target: int) -> Box:
        return refined(relaxed, target, (time.monotonic() + end) / 2)

    return relax(graph, region, bounder=partial(ascend, steps=inner, rate=rate), refiner=refiner)


def refined(relaxed: Relaxed, target: int, end: float) -> Box:
    """Return the box of a node, tighter where it has both signs and ReLUs use it; as it is where that cannot be had."""
    box = relaxed.boxes[target]
    users = [node.operation for node in relaxed.graph.nodes if target in node.inputs]
    free = ((box.lower < 0) & (box.upper > 0)).nonzero()
    useful = len(free) and users == [RULES["relu"]] and time.monotonic() < end
    tasks = _tasks(relaxed, target, free) if useful else None
    if tasks is None or not tasks.relus():
        return box
    least = tasks.explored(tasks.root(ROOT), STEPS, MOST, 1, end).clamp_max(0)
    lower, upper = least.chunk(2)
    at = free.unbind(1)
    return Box(
        box.lower.index_put(at, torch.maximum(box.lower[at], lower)),
        box.upper.index_put(at, torch.minimum(box.upper[at], -upper)),
    )


def _tasks(relaxed: Relaxed, target: int, free: Int[Tensor, "f axes"]) -> Tasks | None:
    """Return the lower and then the upper ends of the entries ``free`` as tasks; None if there is no cheap way."""
    graph, shape = relaxed.graph, relaxed.graph.nodes[target].shape
    if len(shape) == 4:
        found = crop(graph, target) if relaxed.region.ball is Linf else None
        if found is None:
            return None
        image, _, entry, y, x = free.unbind(1)
        where, place = torch.stack([image, y, x], 1).unique(dim=0, return_inverse=True)
        seen, width = found.relaxed(relaxed, where), shape[1]
    else:
        seen, place, width = _before(relaxed, target), free[:, 0], math.prod(shape)
        entry = torch.arange(width, device=free.device).reshape(shape)[free[:, 1:].unbind(1)]
    units = torch.zeros(len(free), width, dtype=graph.dtype, device=free.device)
    units[torch.arange(len(free)), entry] = 1.0
    return Tasks(seen, place.repeat(2), torch.cat([units, -units]), RATE)


def _before(relaxed: Relaxed, target: int) -> Relaxed:
    """Return what is known of the network that ends with ``target``."""
    graph = relaxed.graph
    ended = Graph(graph.nodes[: target + 1], graph.dtype, graph.device)
    return Relaxed(ended, relaxed.region, relaxed.boxes[: target + 1], relaxed.planes)


def crop(graph: Graph, target: int) -> ReceptiveField | None:
    """Return what positions of ``target`` see, back to entries that vary by themselves; None unless it is a chain.

    A chain is made of convolutions, ReLUs before each but the first, and factors that are the same everywhere.
    """
    chain = [graph.nodes[target]]
    while chain[-1].index not in graph.apart:
        if len(chain[-1].inputs) != 1:
            return None
        chain.append(graph.nodes[chain[-1].inputs[0]])
    place, size = Windows((0, 0), (1, 1), _spatial(chain[0].shape)), (1, 1)
    windows = [(place, size)]
    for node, before in pairwise(chain):
        if isinstance(node.operation, Convolution):
            if before is not chain[-1] and not isinstance(before.operation, Rule):
                return None
            place, size = _widened(place, size, node.operation)
        elif node.operation is not RULES["relu"] and not _even(node.operation):
            return None
        windows.append((place, size))
    nodes: list[Node] = []
    for node, (_, size) in zip(chain[::-1], windows[::-1], strict=True):
        shape = (1, node.shape[1], *size)
        inputs, operation = ((len(nodes) - 1,), _cut(node.operation, nodes[-1].shape, shape)) if nodes else ((), None)
        nodes.append(Node(len(nodes), node.name, shape, inputs, operation))
    small = Graph(tuple(nodes), graph.dtype, graph.device)
    return ReceptiveField(small, tuple(node.index for node in chain[::-1]), tuple(place for place, _ in windows[::-1]))


def _widened(place: Windows, size: tuple[int, int], operation: Convolution) -> tuple[Windows, tuple[int, int]]:
    """Return the windows of a convolution's input that windows of its output see."""
    (top, left), (down, right), (high, wide) = place.offset, operation.stride, operation.weight.shape[2:]
    offset = (top * down - operation.padding[0], left * right - operation.padding[1])
    stride = (place.stride[0] * down, place.stride[1] * right)
    rows = (size[0] - 1) * down + operation.dilation[0] * (high - 1) + 1
    columns = (size[1] - 1) * right + operation.dilation[1] * (wide - 1) + 1
    return Windows(offset, stride, place.count), (rows, columns)


def _spatial(shape: Shape) -> tuple[int, int]:
    return shape[2], shape[3]


def _even(operation: Affine | Rule | None) -> bool:
    """Whether it multiplies each channel by one factor, and adds one constant."""
    if not isinstance(operation, Diagonal):
        return False
    every = [t for t in (*operation.factors, operation.offset) if isinstance(t, Tensor)]
    return all(t.ndim == 4 and bool((t == t[..., :1, :1]).all()) for t in every)


def _cut(operation: Affine | Rule | None, before: Shape, shape: Shape) -> Affine | Rule | None:
    """Return the operation between windows of these shapes."""
    if isinstance(operation, Convolution):
        return replace(operation, shape=before, padding=(0, 0))
    if isinstance(operation, Diagonal):
        factors = tuple(f[..., :1, :1].expand(shape) if isinstance(f, Tensor) else f for f in operation.factors)
        return Diagonal(factors, None if operation.offset is None else operation.offset[..., :1, :1].expand(shape))
    return operation
