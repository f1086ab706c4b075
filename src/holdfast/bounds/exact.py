"""The exact minimum of a linear function of the code, for small ReLU networks, as a mixed-integer linear program.

Each unstable ReLU is one binary variable: ``a >= z, a >= 0, a <= u d, a <= z - l (1 - d)`` (Tjeng et al. 2019,
https://arxiv.org/abs/1711.07356). The solver is HiGHS; what it proves holds up to its feasibility tolerance of 1e-6.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.balls import Linf
from holdfast.bounds.affine import Affine
from holdfast.bounds.crown import relax
from holdfast.bounds.graph import RULES, Graph, Node
from holdfast.bounds.method import Method
from holdfast.bounds.regions import Region
from holdfast.bounds.relaxations import Box
from holdfast.errors import HoldfastError

Matrix = Float[np.ndarray, "_ _"]
Vector = Float[np.ndarray, "_"]


@final
@dataclass(frozen=True)
class Exact(Method):
    """The minimum itself, given ``seconds`` for each row; out of time, the bound proved by then."""

    seconds: float = 60.0
    name = "exact"

    @torch.no_grad()
    def __call__(self, graph: Graph, region: Region, rows: Float[Tensor, "b s d"]) -> Float[Tensor, "b s"]:
        if region.ball is not Linf:
            raise HoldfastError(f"exact bounds are for linf balls, got {region.ball.name}; use alpha or branch")
        relaxed = relax(graph, region)
        found = torch.empty_like(rows[..., 0])
        for image in range(len(rows)):
            program = encode(graph, [Box(*(end[image : image + 1].double() for end in box)) for box in relaxed.boxes])
            for row, weights in enumerate(rows[image]):
                found[image, row] = program.minimise(weights.cpu().double().numpy(), self.seconds)
        return found


@dataclass(frozen=True)
class Expression:
    """A node's values as ``matrix @ v + constant``; columns beyond the matrix's are zero."""

    matrix: Matrix
    constant: Vector


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
        from scipy.optimize import Bounds, LinearConstraint, milp

        assert self.output is not None
        n = len(self.low)
        cost = _padded(weights @ self.output.matrix, n)
        constraints = LinearConstraint(np.array([_padded(row, n) for row in self.rows]), ub=np.array(self.limits))
        solved = milp(
            cost,
            integrality=np.array(self.binary),
            bounds=Bounds(np.array(self.low), np.array(self.high)),
            constraints=constraints if self.rows else None,
            options={"time_limit": seconds, "mip_rel_gap": 1e-9},
        )
        bound = solved.mip_dual_bound if solved.mip_dual_bound is not None else -np.inf
        return float(bound + weights @ self.output.constant)


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
            values.append(Expression(np.eye(len(low)), np.zeros(len(low))))
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
    return Expression((images[:-2] - origin).T, images[-1])


def _relu(program: Program, z: Expression, box: Box) -> Expression:
    lows, highs = (end.flatten().tolist() for end in box)
    entries: list[tuple[Vector, float]] = []
    for row, constant, low, high in zip(z.matrix, z.constant, lows, highs, strict=True):
        if low >= 0:
            entries.append((row, constant))
        elif high <= 0:
            entries.append((np.zeros(0), 0.0))
        else:
            a, d = program.add(0.0, high), program.add(0.0, 1.0, binary=True)
            program.at_most(row, -constant, **{f"v{a}": -1.0})  # z <= a
            program.at_most(np.zeros(0), 0.0, **{f"v{a}": 1.0, f"v{d}": -high})  # a <= u d
            program.at_most(-row, constant - low, **{f"v{a}": 1.0, f"v{d}": -low})  # a <= z - l (1 - d)
            entries.append((np.eye(1, a + 1, a)[0], 0.0))
    n = len(program.low)
    return Expression(
        np.array([_padded(row, n) for row, _ in entries]), np.array([constant for _, constant in entries])
    )
