"""Branch and bound: unstable ReLUs are split until every subdomain is proved.

Bounds of inner neurons come from branch and bound on the small network that each of them sees.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.utils._pytree import tree_map_only

from holdfast.bounds.certified_search import bisect_radii
from holdfast.bounds.methods.alpha import ascend, ascend_in_balls
from holdfast.bounds.methods.base import RadiusProblem, RadiusResult, RadiusSearch, vacuous_unless_finite
from holdfast.bounds.methods.branch_and_bound import BranchAndBound
from holdfast.bounds.methods.crown import NetworkRelaxation, relax, unit_vectors
from holdfast.bounds.methods.lipschitz import enclosing_balls
from holdfast.bounds.network.forms import Shape, Windows, dense_form, gather
from holdfast.bounds.network.network_graph import RULES, Affine, Convolution, Diagonal, Graph, Node
from holdfast.bounds.regions import Region
from holdfast.bounds.relaxations import Box, Rule
from holdfast.core.balls import L2, Linf

# Tighter intermediate bounds, by branch and bound on the receptive field of each neuron.
#
# The receptive field of a position of a convolution is a small network, the same at every position, with intermediate
# bounds of its own: thousands of neurons are bounded side by side. What one layer gains tightens every later one.

ROOT, STEPS, RATE = 20, 10, 0.1
"""Steps of ascent before the first split and after each one, and their size."""
MOST_SUBDOMAINS = 64
"""Subdomains of a neuron's region."""


@dataclass(frozen=True)
class ReceptiveField:
    """A network from windows of a pixelwise node to single positions of a later node."""

    graph: Graph
    sources: tuple[int, ...]
    """The node of the whole network of which each node of ``graph`` is a window."""
    windows: tuple[Windows, ...]

    def relax(self, whole: NetworkRelaxation, at: Int[Tensor, "p 3"]) -> NetworkRelaxation:
        """Return the relaxation of the receptive fields ``at`` image, y and x."""
        boxes, rounding = list[Box](), dict[int, Tensor]()
        for node, source in zip(self.graph.nodes, self.sources, strict=True):
            box = Box(*(self._windows(node, end, at) for end in whole.intermediate_bounds[source]))
            if any(n.operation is RULES["relu"] and node.index in n.inputs for n in self.graph.nodes):
                # The next convolution pads with zeros, which is what a ReLU returns for a negative input.
                ones = torch.ones_like(whole.intermediate_bounds[source].lower[:1])
                inside = self._windows(node, ones, at * at.new_tensor((0, 1, 1)))
                box = Box(*(torch.where(inside > 0, end, -1.0) for end in box))
            boxes.append(box)
            if source in whole.rounding:
                rounding[node.index] = self._windows(node, whole.rounding[source], at)
        return NetworkRelaxation.within(self.graph, self._region(whole, boxes[0], at), boxes, rounding)

    def _windows(self, node: Node, values: Float[Tensor, "b ..."], at: Int[Tensor, "p 3"]) -> Float[Tensor, "p ..."]:
        """Return the windows ``at`` image, y and x of values of the node that ``node`` is a window of."""
        image, y, x = at.unbind(1)
        windows = gather(values[:, 0], self.windows[node.index], node.shape[2:])
        return windows[:, :, :, 0, image, y, x].movedim(3, 0)[:, None]

    def _region(self, whole: NetworkRelaxation, box: Box, at: Int[Tensor, "p 3"]) -> Region:
        """Return the region of the windows ``at`` image, y and x: a box, and in other balls than linf an l2 ball with it."""
        low, high = box
        if whole.region.ball is Linf:
            middle = (low + high) / 2
            return Region(middle, low, high, (high - middle).flatten(1).amax(1), Linf)
        ball = enclosing_balls(whole)[self.sources[0]]
        centre = self._windows(self.graph.nodes[0], ball.centre, at)
        # The box puts padding elsewhere than the centre; it does not move, so that it takes nothing from the radius.
        return Region(torch.minimum(torch.maximum(centre, low), high), low, high, ball.radius[at[:, 0]], L2)


def relax_and_refine(graph: Graph, region: Region, inner: int, rate: float, seconds: float) -> NetworkRelaxation:
    """Return the relaxation by alpha-CROWN after ``inner`` steps, with intermediate bounds tightened for ``seconds``.

    In l2 balls SDP-CROWN stands beside it. Each layer takes half of the time that is left.
    """
    end = time.monotonic() + seconds

    def refiner(network: NetworkRelaxation, target: int) -> Box:
        return refine_node(network, target, (time.monotonic() + end) / 2)

    in_ball = region.ball is L2
    bounder = partial(ascend_in_balls, steps=inner) if in_ball else partial(ascend, steps=inner, rate=rate)
    return relax(graph, region, bounder=bounder, refiner=refiner)


def refine_node(network: NetworkRelaxation, target: int, end: float) -> Box:
    """Return the box of a node, tightened where it makes ReLUs unstable; unchanged where that is not possible."""
    box = network.intermediate_bounds[target]
    users = [node.operation for node in network.graph.nodes if target in node.inputs]
    unstable = ((box.lower < 0) & (box.upper > 0)).nonzero()
    useful = len(unstable) and users == [RULES["relu"]] and time.monotonic() < end
    problem = _branch_and_bound(network, target, unstable) if useful else None
    if problem is None or not problem.splittable():
        return box
    least = problem.solve(problem.root(ROOT), STEPS, MOST_SUBDOMAINS, 1, end).clamp_max(0)
    lower, upper = least.chunk(2)
    at = unstable.unbind(1)
    return Box(
        box.lower.index_put(at, torch.maximum(box.lower[at], lower)),
        box.upper.index_put(at, torch.minimum(box.upper[at], -upper)),
    )


def _branch_and_bound(
    network: NetworkRelaxation, target: int, unstable: Int[Tensor, "f axes"]
) -> BranchAndBound | None:
    """Return the problem of bounding the ``unstable`` entries, first from below, then from above; None if it is costly."""
    graph, shape = network.graph, network.graph.nodes[target].shape
    if len(shape) == 4:
        receptive = receptive_field(graph, target)
        if receptive is None:
            return None
        image, _, entry, y, x = unstable.unbind(1)
        positions, region_index = torch.stack([image, y, x], 1).unique(dim=0, return_inverse=True)
        field, width = receptive.relax(network, positions), shape[1]
    else:
        field, region_index, width = _up_to(network, target), unstable[:, 0], math.prod(shape)
        entry = torch.arange(width, device=unstable.device).reshape(shape)[unstable[:, 1:].unbind(1)]
    (units,) = unit_vectors(entry[None], width, graph.dtype)
    return BranchAndBound(field, region_index.repeat(2), torch.cat([units, -units]), RATE)


def _up_to(network: NetworkRelaxation, target: int) -> NetworkRelaxation:
    """Return the relaxation of the network that ends with ``target``."""
    graph = network.graph
    ended = Graph(graph.nodes[: target + 1], graph.dtype, graph.device)
    return replace(network, graph=ended, intermediate_bounds=network.intermediate_bounds[: target + 1])


def receptive_field(graph: Graph, target: int) -> ReceptiveField | None:
    """Return the receptive field of each position of ``target``, back to a pixelwise node; None unless it is a chain.

    A chain is made of convolutions, ReLUs before each but the first, and factors that are the same at all positions.
    """
    chain = [graph.nodes[target]]
    while chain[-1].index not in graph.pixelwise:
        if len(chain[-1].inputs) != 1:
            return None
        chain.append(graph.nodes[chain[-1].inputs[0]])
    window, size = Windows((0, 0), (1, 1), (chain[0].shape[2], chain[0].shape[3])), (1, 1)
    windows = [(window, size)]
    for node, before in pairwise(chain):
        if isinstance(node.operation, Convolution):
            if before is not chain[-1] and not isinstance(before.operation, Rule):
                return None
            window, size = _widen(window, size, node.operation)
        elif node.operation is not RULES["relu"] and not _uniform_over_positions(node.operation):
            return None
        windows.append((window, size))
    nodes: list[Node] = []
    for node, (_, size) in zip(chain[::-1], windows[::-1], strict=True):
        shape = (1, node.shape[1], *size)
        operation = _restrict(node.operation, nodes[-1].shape, shape) if nodes else None
        nodes.append(Node(len(nodes), node.name, shape, (len(nodes) - 1,) if nodes else (), operation))
    small, sources = Graph(tuple(nodes), graph.dtype, graph.device), tuple(node.index for node in chain[::-1])
    return ReceptiveField(small, sources, tuple(window for window, _ in windows[::-1]))


def _widen(window: Windows, size: tuple[int, int], operation: Convolution) -> tuple[Windows, tuple[int, int]]:
    """Return the windows of a convolution's input that windows of its output depend on."""
    (top, left), (down, right), (high, wide) = window.offset, operation.stride, operation.weight.shape[2:]
    offset = (top * down - operation.padding[0], left * right - operation.padding[1])
    stride = (window.stride[0] * down, window.stride[1] * right)
    height = (size[0] - 1) * down + operation.dilation[0] * (high - 1) + 1
    width = (size[1] - 1) * right + operation.dilation[1] * (wide - 1) + 1
    return Windows(offset, stride, window.count), (height, width)


def _uniform_over_positions(operation: Affine | Rule | None) -> bool:
    """Whether an operation multiplies each channel by one factor and adds one constant."""
    if not isinstance(operation, Diagonal):
        return False
    every = [t for t in (*operation.factors, operation.offset) if isinstance(t, Tensor)]
    return all(t.ndim == 4 and bool((t == t[..., :1, :1]).all()) for t in every)


def _restrict(operation: Affine | Rule | None, before: Shape, shape: Shape) -> Affine | Rule | None:
    """Return the operation between windows of these shapes."""
    if isinstance(operation, Convolution):
        return replace(operation, shape=before, padding=(0, 0))
    if isinstance(operation, Diagonal):
        parts = (operation.factors, operation.offset)
        return Diagonal(*tree_map_only(Tensor, lambda values: values[..., :1, :1].expand(shape), parts))
    return operation


# Branch and bound: unstable ReLUs are split into their two halves until every subdomain is proved.
#
# Intermediate bounds come first: the receptive field of a neuron is a small network, and a box tightened by branch
# and bound there improves every later bound. Then the specifications: the subdomains with the lowest bounds are
# split, and the least bound over all subdomains bounds the specification.


@final
@dataclass(frozen=True)
class Branch(RadiusSearch):
    """Alpha-CROWN, then branch and bound, in ``seconds`` for an image; ``boxes`` is the share for intermediate bounds.

    Intermediate bounds start with ``inner`` steps of alpha-CROWN, specifications with ``steps``. A specification is split
    into at most ``parts`` subdomains, ``batch`` in a round, until its bound is above ``target``; each subdomain is bounded
    by ``ascent`` steps at half of ``rate``. A search for radii leaves time for ``rounds`` that fail. In l2 balls what
    SDP-CROWN proves stands beside alpha-CROWN, for inner layers and before the first split.
    """

    seconds: float = 60.0
    """Time per image."""
    boxes: float = 0.3
    """Fraction of the time for the bounds of inner layers."""
    rounds: int = 4
    """Largest number of radii per specification that may fail."""
    parts: int = 4000
    """Largest number of subdomains of one specification."""
    target: float = 0.0
    """Bound above which a specification is not improved further."""
    ascent: int = 10
    """Ascent steps per subdomain."""
    batch: int = 32
    """Subdomains split in one round."""
    steps: int = 30
    """Ascent steps before the first split."""
    inner: int = 20
    """Ascent steps for the bounds of inner layers, as in `alpha`."""
    rate: float = 0.25
    """Learning rate, as in `alpha`."""
    name = "branch"

    @torch.no_grad()
    def __call__(self, graph: Graph, region: Region, specifications: Float[Tensor, "b s d"]) -> Float[Tensor, "b s"]:
        count, each, _ = specifications.shape
        image = torch.arange(count, device=specifications.device).repeat_interleave(each)
        end = time.monotonic() + self.seconds * len(specifications)
        return self._bounds(graph, region, specifications.flatten(0, 1), image, end).reshape(specifications.shape[:2])

    @torch.no_grad()
    def search_radii(self, problem: RadiusProblem) -> RadiusResult:
        def prove(
            region: Region, indices: Int[Tensor, "o"], region_index: Int[Tensor, "o"], end: float
        ) -> Bool[Tensor, "o"]:
            return self._bounds(problem.graph, region, problem.specifications[indices], region_index, end) > 0

        return bisect_radii(prove, problem, self.rounds, self.seconds)

    def _bounds(
        self,
        graph: Graph,
        region: Region,
        specifications: Float[Tensor, "t d"],
        region_index: Int[Tensor, "t"],
        end: float,
    ) -> Float[Tensor, "t"]:
        """Return lower bounds of specifications, each over the region that ``region_index`` names."""
        network = relax_and_refine(graph, region, self.inner, self.rate, self.boxes * (end - time.monotonic()))
        problem = BranchAndBound(network, region_index, specifications, self.rate / 2)
        root, picked = problem.root(self.steps), network.take(region_index)
        if region.ball is L2:
            output = graph.nodes[-1]
            form = dense_form(specifications[:, None], output.shape)
            by_balls = ascend_in_balls(picked, output.index, form, self.steps)
            root = replace(root, bounds=torch.fmax(root.bounds, vacuous_unless_finite(by_balls[:, 0])))
        bounds = problem.solve(root, self.ascent, self.parts, self.batch, end, self.target)
        by_intervals = vacuous_unless_finite(picked.by_intervals(specifications[:, None]))
        return torch.fmax(bounds, by_intervals[:, 0])
