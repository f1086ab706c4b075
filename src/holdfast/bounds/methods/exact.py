"""The exact minimum of a linear function of the code, for small ReLU networks, as a improved-integer linear program.

Each unstable ReLU is one binary variable: ``a >= z, a >= 0, a <= u d, a <= z - l (1 - d)`` (Tjeng et al. 2019,
https://arxiv.org/abs/1711.07356). The robust radius is the optimum of one such program too: the least ``r`` with
``|x - centre| <= r`` and ``w . f(x) <= 0``, so that no search over radii is needed. The solver is HiGHS; what it proves
holds up to its feasibility tolerance of 1e-6, beside which radii keep a margin.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.bounds.methods.alpha import ascend_specifications
from holdfast.bounds.methods.base import RadiusResult, RadiusSearch, RegionAtRadius
from holdfast.bounds.methods.crown import NetworkRelaxation
from holdfast.bounds.network.affine import Affine
from holdfast.bounds.network.graph import RULES, Graph, Node
from holdfast.bounds.regions import Region, require_box
from holdfast.bounds.relaxations.rules import Box
from holdfast.bounds.subdomains.receptive_fields import relax_and_refine
from holdfast.core.errors import HoldfastError

Matrix = Float[np.ndarray, "_ _"]
Vector = Float[np.ndarray, "_"]


MARGIN = 1e-5
"""Share of a row's clean value that must be left at a certified radius, beside what the solver lets pass."""
LET_PASS = 2e-6
"""By how much a scaled row may be passed, and a binary miss 0 or 1: twice the solver's tolerance."""
PRICED = 2e-7
"""By how much, for each variable, a dual bound may be too high in the unit of the largest cost: twice that tolerance."""
SHORT = 1 - 1e-4
"""Share of a proved radius that is claimed, for the same reason."""
FURTHER = 1.003
GROWTH = 2.0
"""How far beyond what is certified a program reaches at first: the tighter its boxes, the sooner it is solved."""


@final
@dataclass(frozen=True)
class Exact(RadiusSearch):
    """The minimum or the robust radius itself, given ``seconds`` for each row; out of time, the bound proved by then.

    A radius is settled once nearer than ``gap``, as a share of it, to a point that is confused. Boxes are those of
    alpha-CROWN after ``inner`` steps at ``rate``, tighten for the share ``boxes`` of the time.
    """

    seconds: float = 60.0
    gap: float = 0.02
    boxes: float = 0.1
    inner: int = 20
    rate: float = 0.25
    name = "exact"

    @torch.no_grad()
    def __call__(self, graph: Graph, region: Region, specifications: Float[Tensor, "b s d"]) -> Float[Tensor, "b s"]:
        network = self._relax(graph, region)
        found, _ = ascend_specifications(network, specifications, self.inner, self.rate)
        for image in range(len(specifications)):
            program = encode(
                graph, [Box(*(end[image : image + 1].double() for end in box)) for box in network.intermediate_bounds]
            )
            for index, weights in enumerate(specifications[image]):
                least = program.minimise(weights.cpu().double().numpy(), self.seconds)
                found[image, index] = max(float(found[image, index]), least)
        return found

    @torch.no_grad()
    def search_radii(
        self,
        graph: Graph,
        region_at: RegionAtRadius,
        specifications: Float[Tensor, "s d"],
        low: Float[Tensor, "s"],
        high: Float[Tensor, "s"],
    ) -> RadiusResult:
        require_box("exact", region_at(low))
        found, met = low.clone(), []
        for index, weights in enumerate(specifications):
            end, cap, point = time.monotonic() + self.seconds, 0.0, None
            while cap < float(high[index]) and time.monotonic() < end:
                cap = min(float(high[index]), GROWTH * max(cap, float(found[index])))
                if not cap:  # nothing is certified, so there is no scale to begin at
                    cap = float(high[index])
                found[index], point = self._nearest(
                    graph, region_at, weights, float(found[index]), cap, end - time.monotonic()
                )
                if point is not None:
                    break
            met.append(torch.full(graph.nodes[0].shape[1:], torch.nan) if point is None else point)
        return RadiusResult(found, torch.stack(met).to(found))

    def _nearest(
        self,
        graph: Graph,
        region_at: RegionAtRadius,
        weights: Float[Tensor, "d"],
        low: float,
        cap: float,
        seconds: float,
    ) -> tuple[float, Tensor | None]:
        """Return a radius from ``low`` to ``cap`` that is proved within ``seconds``, and a point beyond if one is met."""
        region = region_at(torch.full((1,), cap, dtype=weights.dtype, device=weights.device))
        boxes = [Box(*(end.double() for end in box)) for box in self._relax(graph, region).intermediate_bounds]
        clean = float(weights @ graph(region.centre[:, 0])[0])
        scaled = weights.cpu().double().numpy() / clean
        centre = region.centre.flatten().cpu().double().numpy()
        radius, point = encode(graph, boxes).nearest(scaled, centre, low, cap, seconds, self.gap)
        if point is None:
            return radius, None
        # What the program takes for confused is so up to its margin: a little further it is.
        beyond = torch.tensor(centre + FURTHER * (point - centre)).reshape(graph.nodes[0].shape[1:])
        return radius, torch.minimum(torch.maximum(beyond, boxes[0].lower[0, 0].cpu()), boxes[0].upper[0, 0].cpu())

    def _relax(self, graph: Graph, region: Region) -> NetworkRelaxation:
        require_box("exact", region)
        return relax_and_refine(graph, region, self.inner, self.rate, self.boxes * self.seconds)


@dataclass(frozen=True)
class Expression:
    """A node's values as ``matrix @ v + constant``; columns beyond the matrix's are zero."""

    matrix: Matrix
    constant: Vector
    error: Vector
    """How far what the solver takes for these values may lie from what the network computes of the same pixels."""


@dataclass
class Program:
    """Variables ``v``: pixels, then outputs of unstable ReLUs, each followed by its binary; ``rows @ v <= limits``."""

    low: list[float]
    high: list[float]
    binary: list[int]
    rows: list[Vector]
    limits: list[float]
    output: Expression | None = None

    def add(self, low: float, high: float, binary: bool = False) -> int:
        """Add a variable and return its position."""
        self.low.append(low)
        self.high.append(high)
        self.binary.append(int(binary))
        return len(self.low) - 1

    def at_most(self, row: Vector, limit: float, **others: float) -> None:
        """Add the constraint ``row @ v + sum others[k] v_k <= limit``, keys being ``v`` and a position."""
        full = np.zeros(max(len(row), *(int(key[1:]) + 1 for key in others)))
        full[: len(row)] = row
        for key, factor in others.items():
            full[int(key[1:])] += factor
        self.rows.append(full)
        self.limits.append(limit)

    def minimise(self, weights: Vector, seconds: float) -> float:
        """Return a lower bound of ``weights . code``, the minimum if time allows."""
        assert self.output is not None
        cost = weights @ self.output.matrix
        bound, _ = self._solve(cost, {"time_limit": seconds, "mip_rel_gap": 1e-9})
        return bound + float(weights @ self.output.constant - np.abs(weights) @ self.output.error)

    def nearest(
        self, weights: Vector, centre: Vector, low: float, cap: float, seconds: float, gap: float
    ) -> tuple[float, Vector | None]:
        """Return a radius between ``low`` and ``cap`` up to which ``weights . code`` stays positive, and a point where not.

        The code at ``centre`` has value 1. The program may also give up, at the price of ``cap``: so it always has a
        solution, and with it a bound.
        """
        assert self.output is not None
        whole = Program(list(self.low), list(self.high), list(self.binary), list(self.rows), list(self.limits))
        radius, giving_up = whole.add(low, cap), whole.add(0.0, 1.0, binary=True)
        for pixel, value in enumerate(centre):
            for sign in (1.0, -1.0):
                whole.at_most(sign * np.eye(1, pixel + 1, pixel)[0], sign * value, **{f"v{radius}": -1.0})
        whole.at_most(np.zeros(0), 0.0, **{f"v{giving_up}": cap, f"v{radius}": -1.0})
        value, constant = weights @ self.output.matrix, float(weights @ self.output.constant)
        passed = LET_PASS * whole.largest(value) + float(np.abs(weights) @ self.output.error)
        margin = MARGIN + passed
        if not margin < 1:  # the solver could let pass as much as all that is to be proved
            return low, None
        whole.at_most(value, margin - constant, **{f"v{giving_up}": margin - 1.0})
        options = {"time_limit": max(seconds, 0.1), "mip_rel_gap": gap}
        bound, best = whole._solve(np.eye(1, radius + 1, radius)[0], options)
        point = best[: len(centre)] if best is not None and best[giving_up] < 0.5 else None
        return max(low, SHORT * (min(bound, cap) - LET_PASS * cap)), point

    def largest(self, row: Vector) -> float:
        """Return the largest entry of a row as the solver sees it."""
        low, high = (np.array(ends)[: len(row)] for ends in (self.low, self.high))
        return float((np.abs(row) * (high - low) / 2).max(initial=0.0))

    def _solve(self, cost: Vector, options: Any) -> tuple[float, Vector | None]:
        """Return what was proved of the least ``cost @ v``, and the best ``v`` that was met.

        The solver's tolerances are absolute, so it sees variables in [-1, 1], and rows and costs whose largest entry is 1.
        """
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import csr_array

        n, low, high, binary = len(self.low), np.array(self.low), np.array(self.high), np.array(self.binary, dtype=bool)
        middle, half = np.where(binary, 0.0, (low + high) / 2), np.where(binary, 1.0, (high - low) / 2)
        cost = _padded(cost, n)
        rows = np.array([_padded(row, n) for row in self.rows]).reshape(-1, n)
        limits = np.array(self.limits) - rows @ middle
        rows, sizes = rows * half, np.abs(rows * half).max(1, initial=0.0)
        sizes, scale = np.where(sizes > 0, sizes, 1.0), float(np.abs(cost * half).max(initial=0.0)) or 1.0
        solved: Any = milp(  # a result whose fields depend on how it ended
            cost * half / scale,
            integrality=binary.astype(int),
            bounds=Bounds(np.where(binary, 0.0, -1.0), np.ones(n)),
            constraints=LinearConstraint(csr_array(rows / sizes[:, None]), ub=limits / sizes) if self.rows else None,
            options=options,
        )
        best = None if solved.x is None else middle + half * solved.x
        if solved.mip_dual_bound is None:
            return -np.inf, best
        return scale * (float(solved.mip_dual_bound) - PRICED * n) + float(cost @ middle), best


def _padded(row: Vector, n: int) -> Vector:
    return np.concatenate([row, np.zeros(n - len(row))])


def encode(graph: Graph, boxes: list[Box]) -> Program:
    """Return the program of a graph of affine operations and ReLUs, whose nodes lie in ``boxes`` (batches of one)."""
    low, high = (end.flatten().tolist() for end in boxes[0])
    program = Program(low, high, [0] * len(low), [], [])
    values: list[Expression] = []
    for node in graph.nodes:
        inputs = [values[i] for i in node.inputs]
        if node.operation is None:
            values.append(Expression(np.eye(len(low)), np.zeros(len(low)), np.zeros(len(low))))
        elif isinstance(node.operation, Affine):
            values.append(_affine(graph, node, node.operation, inputs))
        elif node.operation is RULES["relu"]:
            values.append(_relu(program, inputs[0], boxes[node.inputs[0]]))
        else:
            raise HoldfastError(f"exact bounds are for affine operations and ReLUs, not {node.name!r}; use crown")
    program.output = values[-1]
    return program


def _affine(graph: Graph, node: Node, operation: Affine, inputs: list[Expression]) -> Expression:
    """Carry each column forward, as a batch; the constant is one more column."""
    width = max(expression.matrix.shape[1] for expression in inputs)
    batches = []
    for source, expression in zip(node.inputs, inputs, strict=True):
        columns = np.zeros((width + 2, len(expression.constant)))
        columns[: expression.matrix.shape[1]] = expression.matrix.T
        columns[-1] = expression.constant
        batches.append(torch.tensor(columns, dtype=graph.dtype).unflatten(1, graph.nodes[source].shape))
    images = operation.forward(*batches).flatten(1).double().numpy()
    origin = images[-2]  # what zero becomes
    errors = [
        torch.tensor(expression.error, dtype=graph.dtype).reshape(1, *graph.nodes[source].shape)
        for source, expression in zip(node.inputs, inputs, strict=True)
    ]
    return Expression((images[:-2] - origin).T, images[-1], operation.magnitude(*errors).flatten().double().numpy())


def _relu(program: Program, z: Expression, box: Box) -> Expression:
    lows, highs = (end.flatten().tolist() for end in box)
    entries: list[tuple[Vector, float, float]] = []
    for row, constant, error, low, high in zip(z.matrix, z.constant, z.error, lows, highs, strict=True):
        if low >= 0:
            entries.append((row, constant, error))
        elif high <= 0:
            entries.append((np.zeros(0), 0.0, 0.0))
        else:
            # Both rows of its half, their slope in d, and a ReLU that takes an input that is itself off.
            passed = 4 * LET_PASS * max(program.largest(row), high, -low)
            a, d = program.add(0.0, high), program.add(0.0, 1.0, binary=True)
            program.at_most(row, -constant, **{f"v{a}": -1.0})  # z <= a
            program.at_most(np.zeros(0), 0.0, **{f"v{a}": 1.0, f"v{d}": -high})  # a <= u d
            program.at_most(-row, constant - low, **{f"v{a}": 1.0, f"v{d}": -low})  # a <= z - l (1 - d)
            entries.append((np.eye(1, a + 1, a)[0], 0.0, error + passed))
    rows, constants, errors = zip(*entries, strict=True)
    n = len(program.low)
    return Expression(np.array([_padded(row, n) for row in rows]), np.array(constants), np.array(errors))
