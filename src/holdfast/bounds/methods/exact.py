"""Exact minima of linear functions of an embedding, by mixed-integer programming.

This serves small ReLU networks; the solver's own output is silenced.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils._pytree import tree_map_only

from holdfast.bounds.methods.alpha import ascend_specifications
from holdfast.bounds.methods.base import RadiusProblem, RadiusResult, RadiusSearch
from holdfast.bounds.methods.branch import relax_and_refine
from holdfast.bounds.methods.crown import NetworkRelaxation, taken
from holdfast.bounds.network.network_graph import RULES, Affine, Graph, Node
from holdfast.bounds.regions import Region, check_box
from holdfast.bounds.relaxations import Box
from holdfast.bounds.rounding.formats import size
from holdfast.core.errors import HoldfastError

_TURN = Lock()


@contextmanager
def silent() -> Iterator[None]:
    """Send all that the process writes to its standard output and error to nowhere, in one thread at a time."""
    with _TURN:
        _flush()
        closed = [descriptor for descriptor in (1, 2) if not _is_open(descriptor)]
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for descriptor in closed:  # first, or copies of the others would take their numbers
            os.dup2(nowhere, descriptor)
        copies = {descriptor: os.dup(descriptor) for descriptor in (1, 2) if descriptor not in closed}
        for descriptor in copies:
            os.dup2(nowhere, descriptor)
        try:
            yield
        finally:
            _flush()
            for descriptor, original in copies.items():
                os.dup2(original, descriptor)
            for descriptor in {nowhere, *closed, *copies.values()}:
                os.close(descriptor)


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def _flush() -> None:
    """Write out what Python and C hold back: it must not go where the other's text goes."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):  # no stream, a broken or a closed one
            stream.flush()
    with suppress(AttributeError, OSError, TypeError):  # systems whose C library cannot be found so
        ctypes.CDLL(None).fflush(None)


# A ReLU network as a mixed-integer linear program (Tjeng et al. 2019, https://arxiv.org/abs/1711.07356).
#
# Each unstable ReLU ``a = relu(z)``, with ``z`` in [l, u], has one binary variable ``d``: ``a >= z, a >= 0, a <= u d,
# a <= z - l (1 - d)``. The solver is HiGHS. It satisfies constraints up to a tolerance of 1e-6: margins in every
# constraint account for that.

Matrix = Float[np.ndarray, "_ _"]
Vector = Float[np.ndarray, "_"]

MARGIN = 1e-5
"""Fraction of the clean value by which a specification must stay positive, beside the solver's tolerance."""
LET_PASS = 2e-6
"""By how much a scaled constraint may be violated, and a binary miss 0 or 1: twice the solver's tolerance."""
PRICED = 2e-7
"""By how much, for each variable, a dual bound may be too high in the unit of the largest cost: twice that tolerance."""
ROUNDINGS = 8
"""Roundings for each term of a sum, more than there are where matrices are multiplied and the solver evaluates them."""
SHORT = 1 - 1e-4
"""Fraction of a proved radius that is claimed, because of the same tolerance."""
OVERFLOW = (
    "exact bounds need finite numbers, and {} holds infinite ones; check the encoder's weights, take a smaller radius, "
    "or give specifications in float64"
)


@dataclass(frozen=True)
class Expression:
    """A node's values as ``matrix @ v + constant``; columns beyond the matrix's are zero."""

    matrix: Matrix
    constant: Vector
    error: Vector
    """Largest difference of these values from the network's, due to the solver's tolerance."""


@dataclass
class Program:
    """Variables ``v``, pixels, then outputs of unstable ReLUs, each with its binary, and ``constraints @ v <= limits``."""

    low: list[float]
    high: list[float]
    binary: list[int]
    constraints: list[Vector]
    limits: list[float]
    output: Expression | None = None

    def add(self, low: float, high: float, binary: bool = False) -> int:
        """Add a variable and return its position."""
        self.low.append(low)
        self.high.append(high)
        self.binary.append(int(binary))
        return len(self.low) - 1

    def at_most(self, coefficients: Vector, limit: float, others: dict[int, float]) -> None:
        """Add the constraint ``coefficients @ v + sum others[k] v_k <= limit``."""
        full = _padded(coefficients, max(len(coefficients), *(position + 1 for position in others)))
        for position, factor in others.items():
            full[position] += factor
        self.constraints.append(full)
        self.limits.append(limit)

    @np.errstate(all="ignore")  # what overflows is refused in words
    def minimise(self, weights: Vector, seconds: float) -> float:
        """Return a lower bound of ``weights . code``, the minimum if time allows."""
        assert self.output is not None
        cost = weights @ self.output.matrix
        bound, _ = self._solve(cost, {"time_limit": seconds, "mip_rel_gap": 1e-9})
        return bound + float(weights @ self.output.constant - np.abs(weights) @ self.output.error)

    @np.errstate(all="ignore")
    def nearest(
        self, weights: Vector, centre: Vector, low: float, cap: float, seconds: float, gap: float
    ) -> tuple[float, Vector | None]:
        """Return a radius from ``low`` to ``cap`` within which ``weights . code`` is positive, and a point where it is not.

        ``weights . code`` is 1 at ``centre``. The program may also give up, at the price of ``cap``, so that it always has
        a solution, and with it a bound.
        """
        assert self.output is not None
        whole = Program(list(self.low), list(self.high), list(self.binary), list(self.constraints), list(self.limits))
        radius, giving_up = whole.add(low, cap), whole.add(0.0, 1.0, binary=True)
        for pixel, value in enumerate(centre):
            for sign in (1.0, -1.0):
                whole.at_most(sign * np.eye(1, pixel + 1, pixel)[0], sign * value, {radius: -1.0})
        whole.at_most(np.zeros(0), 0.0, {giving_up: cap, radius: -1.0})
        value, constant = weights @ self.output.matrix, float(weights @ self.output.constant)
        passed = LET_PASS * whole.largest(value) + float(np.abs(weights) @ self.output.error)
        margin = MARGIN + passed
        if not margin < 1:  # the solver's tolerance exceeds all that is to be proved
            return low, None
        whole.at_most(value, margin - constant, {giving_up: margin - 1.0})
        options = {"time_limit": max(seconds, 0.1), "mip_rel_gap": gap}
        bound, best = whole._solve(np.eye(1, radius + 1, radius)[0], options)
        point = best[: len(centre)] if best is not None and best[giving_up] < 0.5 else None
        return max(low, SHORT * (min(bound, cap) - LET_PASS * cap)), point

    def largest(self, coefficients: Vector) -> float:
        """Return the largest coefficient of a constraint as the solver sees it."""
        low, high = (np.array(ends)[: len(coefficients)] for ends in (self.low, self.high))
        return float((np.abs(coefficients) * (high - low) / 2).max(initial=0.0))

    def _solve(self, cost: Vector, options: Any) -> tuple[float, Vector | None]:
        """Return a proved lower bound of ``cost @ v``, and the best ``v`` found.

        The solver's tolerances are absolute: variables are scaled to [-1, 1], and the largest entries of constraints and
        costs to 1.
        """
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import csr_array

        n, low, high, binary = len(self.low), np.array(self.low), np.array(self.high), np.array(self.binary, dtype=bool)
        middle, half = np.where(binary, 0.0, (low + high) / 2), np.where(binary, 1.0, (high - low) / 2)
        cost = _padded(cost, n)
        matrix = np.array([_padded(coefficients, n) for coefficients in self.constraints]).reshape(-1, n)
        limits = np.array(self.limits) - matrix @ middle
        matrix, sizes = matrix * half, np.abs(matrix * half).max(1, initial=0.0)
        sizes, scale = np.where(sizes > 0, sizes, 1.0), float(np.abs(cost * half).max(initial=0.0)) or 1.0
        if not all(np.isfinite(part).all() for part in (cost, half, matrix, limits, scale)):
            raise HoldfastError(OVERFLOW.format("the program to solve"))
        with silent():  # HiGHS prints some lines whatever its settings
            solved: Any = milp(  # a result whose fields depend on how it ended
                cost * half / scale,
                integrality=binary.astype(int),
                bounds=Bounds(np.where(binary, 0.0, -1.0), np.ones(n)),
                constraints=LinearConstraint(csr_array(matrix / sizes[:, None]), ub=limits / sizes)
                if self.constraints
                else None,
                options=options,
            )
        best = None if solved.x is None else middle + half * solved.x
        if solved.mip_dual_bound is None:
            return -np.inf, best
        return scale * (float(solved.mip_dual_bound) - PRICED * n) + float(cost @ middle), best


def _padded(coefficients: Vector, n: int) -> Vector:
    return np.concatenate([coefficients, np.zeros(n - len(coefficients))])


@np.errstate(all="ignore")
def encode(graph: Graph, boxes: list[Box], rounding: Mapping[int, torch.Tensor] | None = None) -> Program:
    """Return the program of a graph of affine operations and ReLUs, whose nodes lie in ``boxes`` (batches of one).

    ``rounding`` is by how much what the network computes may differ from what it would compute without it, node by node.
    """
    low, high = (end.flatten().tolist() for end in boxes[0])
    program = Program(low, high, [0] * len(low), [], [])
    values: list[Expression] = []
    for node in graph.nodes:
        inputs = [values[i] for i in node.inputs]
        if not all(end.isfinite().all() for index in node.inputs for end in boxes[index]):
            raise HoldfastError(OVERFLOW.format(f"what goes into {node.name!r}"))
        if node.operation is None:
            values.append(Expression(np.eye(len(low)), np.zeros(len(low)), np.zeros(len(low))))
        elif isinstance(node.operation, Affine):
            values.append(_affine(graph, node, node.operation, inputs, program))
        elif node.operation is RULES["relu"]:
            values.append(_relu(program, inputs[0], boxes[node.inputs[0]]))
        else:
            raise HoldfastError(f"exact bounds are for affine operations and ReLUs, not {node.name!r}; use crown")
        if rounding and node.index in rounding:
            lost = rounding[node.index].flatten().cpu().double().numpy()
            values[-1] = replace(values[-1], error=values[-1].error + lost)
        if not (np.isfinite(values[-1].matrix).all() and np.isfinite(values[-1].constant).all()):
            raise HoldfastError(OVERFLOW.format(f"{node.name!r}"))
    program.output = values[-1]
    return program


def _affine(graph: Graph, node: Node, operation: Affine, inputs: list[Expression], program: Program) -> Expression:
    """Propagate each column forward, as a batch; the constant is one more column.

    What their rounding may falsify is in proportion to the terms that are summed, not to their sum.
    """
    width = max(expression.matrix.shape[1] for expression in inputs)
    most = np.maximum(np.abs(program.low), np.abs(program.high))
    batches, errors, sizes = list[torch.Tensor](), list[torch.Tensor](), list[torch.Tensor]()
    for source, expression in zip(node.inputs, inputs, strict=True):
        matrix, constant = expression.matrix, expression.constant
        columns = np.zeros((width + 2, len(constant)))
        columns[: matrix.shape[1]], columns[-1] = matrix.T, constant
        size = np.abs(matrix) @ most[: matrix.shape[1]] + np.abs(constant)
        for parts, values in ((batches, columns), (errors, expression.error), (sizes, size)):
            tensor = torch.tensor(values, dtype=graph.dtype, device=graph.device)
            parts.append(tensor.reshape(-1, *graph.nodes[source].shape))
    images = operation.forward(*batches).flatten(1).double().cpu().numpy()
    origin = images[-2]  # what zero becomes
    scales = operation.magnitude(*sizes)
    scales = scales if operation.offset is None else scales + operation.offset.abs()
    terms = width + sum(part.numel() for part in sizes)
    error = operation.magnitude(*errors) + ROUNDINGS * terms * torch.finfo(graph.dtype).eps * scales
    return Expression((images[:-2] - origin).T, images[-1], error.flatten().double().cpu().numpy())


def _relu(program: Program, z: Expression, box: Box) -> Expression:
    lows, highs = (end.flatten().tolist() for end in box)
    entries: list[tuple[Vector, float, float]] = []
    for coefficients, constant, error, low, high in zip(z.matrix, z.constant, z.error, lows, highs, strict=True):
        if low >= 0:
            entries.append((coefficients, constant, error))
        elif high <= 0:
            entries.append((np.zeros(0), 0.0, 0.0))
        else:
            # Violations of both constraints of a half, their slope in d, and the error of the ReLU's input.
            passed = 4 * LET_PASS * max(program.largest(coefficients), high, -low)
            low, high = low - error, high + error  # where the program's value of the input may lie
            a, d = program.add(0.0, high), program.add(0.0, 1.0, binary=True)
            program.at_most(coefficients, -constant, {a: -1.0})  # z <= a
            program.at_most(np.zeros(0), 0.0, {a: 1.0, d: -high})  # a <= u d
            program.at_most(-coefficients, constant - low, {a: 1.0, d: -low})  # a <= z - l (1 - d)
            entries.append((np.eye(1, a + 1, a)[0], 0.0, error + passed))
    weights, constants, errors = zip(*entries, strict=True)
    n = len(program.low)
    matrix = np.array([_padded(coefficients, n) for coefficients in weights])
    return Expression(matrix, np.array(constants), np.array(errors))


# Exact bounds: the minimum of a linear function of the code, for small ReLU networks, as a mixed-integer program.
#
# The robust radius is the optimum of one such program too: the least ``r`` with ``|x - centre| <= r`` and ``w . f(x)
# <= 0``, so that no search over radii is needed.

FURTHER = 1.003
GROWTH = 2.0
"""Factor from the certified radius to the first region: a smaller region has tighter boxes and is solved sooner."""


@final
@dataclass(frozen=True)
class Exact(RadiusSearch):
    """The minimum or the robust radius itself, in ``seconds`` for each specification; out of time, the bound proved so far.

    The search of a radius ends within ``gap``, as a fraction of it, of a point where the specification fails. Intermediate
    bounds are those of alpha-CROWN after ``inner`` steps at ``rate``, tightened for the share ``boxes`` of the time.
    """

    seconds: float = 60.0
    """Time per specification."""
    gap: float = 0.02
    """Relative gap at which a radius counts as settled."""
    boxes: float = 0.1
    """Fraction of the time for the bounds of inner layers."""
    inner: int = 20
    """Ascent steps for the bounds of inner layers, as in `alpha`."""
    rate: float = 0.25
    """Learning rate, as in `alpha`."""
    name = "exact"

    @torch.no_grad()
    def __call__(self, graph: Graph, region: Region, specifications: Float[Tensor, "b s d"]) -> Float[Tensor, "b s"]:
        network = self._relax(graph, region)
        bounds, _ = ascend_specifications(network, specifications, self.inner, self.rate)
        for image in range(len(specifications)):
            alone = slice(image, image + 1)
            boxes, rounding = taken((network.intermediate_bounds, network.rounding), alone)
            program = encode(graph, tree_map_only(Tensor, Tensor.double, boxes), rounding)
            for index, weights in enumerate(specifications[image]):
                least = program.minimise(weights.cpu().double().numpy(), self.seconds)
                bounds[image, index] = max(float(bounds[image, index]), least)
        return bounds

    @torch.no_grad()
    def search_radii(self, problem: RadiusProblem) -> RadiusResult:
        check_box(problem.region_at(problem.low))
        radii, points = problem.low.clone(), []
        for index, largest in enumerate(problem.high.tolist()):
            end, cap, point = time.monotonic() + self.seconds, 0.0, None
            while cap < largest and time.monotonic() < end:
                # Where nothing is certified, there is no scale to begin at.
                cap = min(largest, GROWTH * max(cap, float(radii[index]))) or largest
                radii[index], point = self._nearest(problem, index, float(radii[index]), cap, end - time.monotonic())
                if point is not None:
                    break
            points.append(torch.full(problem.graph.nodes[0].shape[1:], torch.nan) if point is None else point)
        return RadiusResult(radii, torch.stack(points).to(radii))

    def _nearest(
        self, problem: RadiusProblem, index: int, low: float, cap: float, seconds: float
    ) -> tuple[float, Tensor | None]:
        """Return a radius from ``low`` to ``cap`` that is proved within ``seconds``, and a point beyond it, if found."""
        graph, weights = problem.graph, problem.specifications[index]
        region = problem.region_at(weights.new_full((1,), cap))
        network = self._relax(graph, region)
        boxes = tree_map_only(Tensor, Tensor.double, network.intermediate_bounds)
        clean = float(weights @ graph(region.centre[:, 0])[0])
        moved = 0.0 if graph.inputs is None else graph.inputs.unit * float(size(region.box).max()) + graph.inputs.tiny
        scaled = weights.cpu().double().numpy() / clean
        centre = region.centre.flatten().cpu().double().numpy()
        program = encode(graph, boxes, network.rounding)
        # The program's pixels are converted ones, which may lie ``moved`` beyond the ball.
        radius, point = program.nearest(scaled, centre, max(low - moved, 0.0), cap + moved, seconds, self.gap)
        radius = max(low, min(radius - moved, cap))
        if point is None:
            return radius, None
        # At the program's point the specification fails up to the margin: a little further it fails indeed.
        beyond = torch.tensor(centre + FURTHER * (point - centre)).reshape(graph.nodes[0].shape[1:])
        return radius, torch.minimum(torch.maximum(beyond, boxes[0].lower[0, 0].cpu()), boxes[0].upper[0, 0].cpu())

    def _relax(self, graph: Graph, region: Region) -> NetworkRelaxation:
        check_box(region)
        return relax_and_refine(graph, region, self.inner, self.rate, self.boxes * self.seconds)
