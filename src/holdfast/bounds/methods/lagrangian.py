"""The Lagrangian of a ReLU network with quadratic constraints, and ascent of its multipliers.

A positive semidefinite matrix proves the bound that the multipliers give.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils._pytree import tree_map_only

from holdfast.bounds.methods.crown import taken, unit_vectors
from holdfast.bounds.methods.lipschitz import EnclosingBall
from holdfast.bounds.network.network_graph import RULES, Affine, Graph, Node
from holdfast.bounds.network.operations import cast
from holdfast.bounds.relaxations import Box
from holdfast.core.balls import column
from holdfast.core.errors import HoldfastError

# The Lagrangian of a ReLU network with quadratic constraints, and the bound that a positive semidefinite matrix
# proves.
#
# Each unstable ReLU ``y = relu(z)`` with ``z`` in [l, u] satisfies ``y (y - z) = 0``, ``y >= z``, ``y >= 0`` and ``y
# (u - l) <= u (z - l)``. Taken into the objective with multipliers they leave a quadratic function ``v' M v / 2`` of
# ``v = (1, s)``, where ``s`` in [-1, 1] are the pixels and unstable outputs, centred and scaled. If ``M +
# diag(kappa)`` is positive semidefinite, the objective is at least ``-sum(kappa) / 2`` (Raghunathan et al. 2018,
# https://arxiv.org/abs/1811.01057; Dathathri et al. 2020, https://arxiv.org/abs/2010.11645). Unlike relaxations of
# single neurons, the products tie neurons of a layer to each other.
#
# In an l2 ball the scaled pixels have one norm of at most 1 together, so that one entry of ``kappa``, which counts
# once, stands for all of them. Pixels ``x`` in [l, u] then satisfy ``(x - l) (x - u) <= 0``, with multipliers of
# their own.

Multipliers = dict[tuple[int, str], Float[Tensor, "b ..."]]
"""Multipliers of each ReLU node, 0 where it is stable: ``square`` of y (y - z) = 0, ``above`` of y >= z, and so on."""
KINDS = ("square", "above", "positive", "chord")
RANGE = 0, "range"
"""Key of the multipliers of (x - l) (x - u) <= 0, in l2 balls."""
COLUMNS = 64
"""Number of matrix columns computed at a time."""


@dataclass(frozen=True)
class Lagrangian:
    """``b`` specifications, each over its own region, in which nodes lie within ``intermediate_bounds``.

    Vectors are (b, r, 1 + n): ``r`` copies of ``v``, for a matrix ``V V'`` of rank r in place of ``v v'``.
    """

    graph: Graph
    intermediate_bounds: list[Box]
    specifications: Float[Tensor, "b d"]
    ball: EnclosingBall | None = None
    """An l2 ball that holds the pixels; None: their box is all that is known of them."""

    @cached_property
    def relus(self) -> list[Node]:
        """The ReLU nodes; a graph with anything else that is not affine is refused."""
        relus = [node for node in self.graph.nodes if node.operation and not isinstance(node.operation, Affine)]
        for node in relus:
            if node.operation is not RULES["relu"]:
                raise HoldfastError(f"semidefinite bounds are for ReLU networks, not {node.name!r}; use alpha")
        return relus

    @cached_property
    def unstable(self) -> dict[int, Tensor]:
        """Masks of unstable ReLUs, per node."""
        return {n.index: (self._input(n).lower < 0) & (self._input(n).upper > 0) for n in self.relus}

    @cached_property
    def spans(self) -> dict[int, tuple[Tensor, Tensor]]:
        """Middle and half width of the variables: pixels, and outputs of ReLUs (0 where they are stable)."""
        low, high = self.intermediate_bounds[0]
        pixels = (low + high) / 2, (high - low) / 2
        if self.ball is not None:
            pixels = self.ball.centre, column(self.ball.radius, low).expand_as(low)
        half = {n.index: torch.where(self.unstable[n.index], self._input(n).upper / 2, 0.0) for n in self.relus}
        return {0: pixels, **{node: (width, width) for node, width in half.items()}}

    @cached_property
    def widths(self) -> Float[Tensor, "b n"]:
        """Half widths of all variables; those of width 0 are none."""
        return torch.cat([half.flatten(1) for _, half in self.spans.values()], 1)

    @property
    def pixels(self) -> slice:
        """Positions of the pixels among the entries of v."""
        return slice(1, 1 + self.spans[0][0][0].numel())

    @cached_property
    def weights(self) -> Float[Tensor, "n1"]:
        """Weight of each entry of ``kappa``; pixels of a ball share one."""
        weights = torch.ones_like(torch.cat([self.widths[:1, :1], self.widths[:1]], 1)[0])
        if self.ball is not None:
            weights[self.pixels] /= len(weights[self.pixels])
        return weights

    def shared(self, values: Float[Tensor, "... n1"]) -> Float[Tensor, "... n1"]:
        """Return values of entries, with those of the pixels of a ball replaced by their sum."""
        if self.ball is None:
            return values
        values = values.clone()
        values[..., self.pixels] = values[..., self.pixels].sum(-1, keepdim=True)
        return values

    def lengths(self, vectors: Float[Tensor, "b r n1"]) -> Float[Tensor, "b 1 n1"]:
        """Return the norms over the r vectors, which are at most 1; those of a ball's pixels together."""
        return self.shared((vectors * vectors).sum(1, keepdim=True)).sqrt()

    def _input(self, node: Node) -> Box:
        return self.intermediate_bounds[node.inputs[0]]

    def cast(self, dtype: torch.dtype) -> Lagrangian:
        """Return the same in another precision."""
        return replace(self._of(lambda values: values.to(dtype)), graph=cast(self.graph, dtype))

    def take(self, which: slice | Int[Tensor, "a"]) -> Lagrangian:
        """Return the Lagrangian of some specifications."""
        return self._of(lambda values: values[which])

    def _of(self, change: Callable[[Tensor], Tensor]) -> Lagrangian:
        parts = (self.intermediate_bounds, self.specifications, self.ball)
        return Lagrangian(self.graph, *tree_map_only(Tensor, change, parts))

    def value(self, vectors: Float[Tensor, "b r n1"], multipliers: Multipliers) -> Float[Tensor, "b"]:
        """Return ``sum v' M v / 2`` over the r vectors of each specification; ``M v`` is its derivative."""
        homogeneous_unit, total = vectors[..., :1], torch.zeros_like(vectors[:, 0, 0])
        values: list[Tensor] = []
        start = 1
        for node in self.graph.nodes:
            inputs = [values[i] for i in node.inputs]
            if isinstance(node.operation, Affine):
                values.append(_homogeneous(node.operation, inputs, homogeneous_unit))
                continue
            middle, half = (end[:, None] for end in self.spans[node.index])
            count = middle[0].numel()
            scaled = vectors[..., start : start + count].unflatten(2, middle.shape[2:])
            start += count
            unit = homogeneous_unit.reshape(*homogeneous_unit.shape[:2], *(1,) * (middle.ndim - 2))
            variable = middle * unit + half * scaled
            if node.operation is None:
                values.append(variable)
                total = total + self._range_penalty(variable, unit, multipliers)
                continue
            active = self._input(node).lower[:, None] >= 0
            y = torch.where(self.unstable[node.index][:, None], variable, torch.where(active, inputs[0], 0.0))
            total = total + self._penalty(node, inputs[0], y, unit, multipliers)
            values.append(y)
        return total + ((values[-1].flatten(2) * homogeneous_unit).sum(1) * self.specifications).sum(1)

    def _range_penalty(self, x: Tensor, unit: Tensor, multipliers: Multipliers) -> Float[Tensor, "b"] | float:
        """Return the constraints of a ball's pixels times their multipliers."""
        if self.ball is None:
            return 0.0
        low, high = (end[:, None] for end in self.intermediate_bounds[0])
        return (multipliers[RANGE][:, None] * (x - low * unit) * (x - high * unit)).flatten(1).sum(1)

    def pixel_diagonal(self, multipliers: Multipliers) -> Float[Tensor, "p"] | float:
        """Return the diagonal of ``M`` at the pixels, for a single specification."""
        if self.ball is None:
            return 0.0
        half = self.spans[0][1]
        return (2 * multipliers[RANGE] * half * half)[half > 0]

    def _penalty(self, node: Node, z: Tensor, y: Tensor, unit: Tensor, multipliers: Multipliers) -> Float[Tensor, "b"]:
        """Return the constraints of a ReLU node times their multipliers: never positive where they hold."""
        low, high = self._input(node)
        slope = torch.where(self.unstable[node.index], high / (high - low), 0.0)
        square, above, positive, chord = (multipliers[node.index, kind] for kind in KINDS)
        by_y, by_z = (chord - above - positive)[:, None], (above - chord * slope)[:, None]
        spent = y * (square[:, None] * (y - z) + by_y * unit) + by_z * (z * unit)
        constant = (chord * slope * low).flatten(1).sum(1)
        return spent.flatten(1).sum(1) + constant * (unit * unit).flatten(1).sum(1)

    def slope(self, vectors: Float[Tensor, "b r n1"], multipliers: Multipliers) -> tuple[Tensor, Tensor]:
        """Return the value at ``vectors`` and ``M`` times them."""
        with torch.enable_grad():
            leaf = vectors.detach().requires_grad_()
            value = self.value(leaf, multipliers)
            (slope,) = torch.autograd.grad(value.sum(), leaf)
        return value.detach(), slope

    @cached_property
    def kept(self) -> Int[Tensor, "m"]:
        """The entries of v that exist for a single specification: the constant 1, and the variables of positive width."""
        return torch.cat([torch.ones_like(self.widths[:, :1]), self.widths], 1)[0].nonzero()[:, 0]

    def matrix(self, multipliers: Multipliers) -> Float[Tensor, "i m"]:
        """Return the rows of ``M``, for a single specification, that belong to no pixel, at the entries ``kept``.

        No constraint multiplies two pixels: their block is ``pixel_diagonal``, and symmetry gives the rest of their rows.
        """
        kept = self.kept
        inner = kept[(kept == 0) | (kept > self.spans[0][0][0].numel())]
        size, dtype = self.widths.shape[1] + 1, self.specifications.dtype
        units = (unit_vectors(some[None], size, dtype) for some in inner.split(COLUMNS))
        return torch.cat([self.slope(some, multipliers)[1][0][:, kept] for some in units])


def _homogeneous(operation: Affine, inputs: list[Tensor], unit: Tensor) -> Tensor:
    """Return the operation with its constant multiplied by the first entry of each vector."""
    moved = operation.forward(*(x.flatten(0, 1) for x in inputs)).unflatten(0, unit.shape[:2])
    if operation.offset is None:
        return moved
    return moved + operation.offset * (unit - 1).reshape(*unit.shape[:2], *(1,) * operation.offset.ndim)


def positive(rows: Float[Tensor, "i m"], kappa: Float[Tensor, "m"], pixels: int) -> bool:
    """Return whether a matrix plus ``kappa`` on its diagonal is positive definite, with room for rounding.

    Its variables are the constant, then ``pixels``, whose block is diagonal so that they are eliminated first, then the
    others. ``rows`` are the matrix rows of all but the pixels.
    """
    from scipy.sparse import csr_array

    added, sums = kappa.double().cpu().numpy(), rows.double().cpu().numpy()
    inner, outer = np.r_[0, pixels + 1 : len(added)], slice(1, pixels + 1)
    scale = np.empty_like(added)
    scale[inner] = sums[np.arange(len(inner)), inner] + added[inner]
    scale[outer] = added[outer]
    if not (scale > 0).all() or not np.isfinite(sums).all() or not np.isfinite(scale).all():
        return False
    scale = 1 / np.sqrt(scale)
    # Backward errors of elimination and Cholesky are below m^2 roundings of entries that are at most 1.
    diagonal = 1 - 4 * len(added) ** 2 * np.finfo(float).eps
    cross = csr_array(sums[:, outer] * scale[outer] * scale[inner, None])
    reduced = sums[:, inner] * scale[inner] * scale[inner, None]
    np.fill_diagonal(reduced, diagonal)
    reduced -= (cross @ cross.T).toarray() / diagonal
    return int(torch.linalg.cholesky_ex(torch.from_numpy(reduced)).info) == 0


# Ascent of the multipliers of a Lagrangian, with descent of the vectors that stand for its matrix; and the proof.
#
# For given multipliers, the best ``kappa`` is dual to minimising ``v' M v / 2`` over matrices ``V V'`` whose rows are
# unit vectors. Descent on a ``V`` of low rank finds that minimum (Burer and Monteiro 2003,
# https://doi.org/10.1007/s10107-002-0352-8), where the gradient of each multiplier is the violation of its
# constraint.

STRIDE, MOMENTUM = 0.3, 0.8
FLOOR = 0.02  # of kappa, as a share of its mean
HOPE = 0.005
"""A proof is attempted only if the diagonal can be raised by this share."""


@dataclass
class Ascent:
    """The ascent of ``b`` specifications: vectors, multipliers, and running means of their gradients."""

    exact: Lagrangian
    multipliers: Multipliers
    scales: Multipliers
    vectors: Float[Tensor, "b r n1"]
    rate: float
    problem: Lagrangian = field(init=False)
    """Lagrangian in single precision, for the search."""
    velocity: Tensor = field(init=False)
    sizes: Tensor = field(init=False)
    means: Multipliers = field(init=False)
    squares: Multipliers = field(init=False)
    steps: int = 0

    def __post_init__(self) -> None:
        self.problem = self.exact.cast(torch.float32)
        self.velocity = torch.zeros_like(self.vectors)
        self.sizes = self.problem.lengths(self.problem.slope(self.vectors, self.multipliers)[1])
        self.means, self.squares = (tree_map_only(Tensor, torch.zeros_like, self.multipliers) for _ in range(2))

    def pick(self, which: Int[Tensor, "a"]) -> Ascent:
        """Return the ascent of some specifications, with new running means."""
        parts = taken((self.multipliers, self.scales, self.vectors), which)
        return Ascent(self.exact.take(which), *parts, self.rate)

    def resume(self, last: Ascent) -> None:
        """Start from the result of an ascent of the same specifications over other regions."""
        for key, value in last.multipliers.items():
            if key == RANGE:
                self.multipliers[key] = value.clone()
                continue
            both = last.problem.unstable[key[0]] & self.problem.unstable[key[0]]
            self.multipliers[key] = torch.where(both, value, self.multipliers[key])
        self.vectors = last.vectors.clone()

    def descend(self, steps: int) -> None:
        """Move the vectors against their slope, each variable by its own scale, with unit length or less."""
        for _ in range(steps):
            _, slope = self.problem.slope(self.vectors, self.multipliers)
            self._move(slope)

    def _move(self, slope: Tensor) -> None:
        self.sizes = 0.9 * self.sizes + 0.1 * self.problem.lengths(slope)
        scale = self.sizes + FLOOR * self._mean(self.sizes) + torch.finfo(slope.dtype).tiny
        moved = self.vectors + MOMENTUM * self.velocity - STRIDE * slope / scale
        moved = moved / self.problem.lengths(moved).clamp_min(1)
        moved[..., 0] = self.vectors[..., 0]  # only angles between vectors matter
        self.velocity, self.vectors = moved - self.vectors, moved

    def _mean(self, values: Float[Tensor, "b 1 n1"]) -> Float[Tensor, "b 1 1"]:
        """Return the mean over all variables but the constant."""
        weights = self.problem.weights[1:]
        return (values[..., 1:] * weights).sum(-1, keepdim=True) / weights.sum()

    def total(self, kappa: Float[Tensor, "n1"]) -> float:
        """Return the sum of a diagonal, minus half of which is the bound."""
        return float((kappa * self.problem.weights.to(kappa)).sum())

    def ascend(self, share: float) -> None:
        """Move the multipliers along the violation of their constraints, by Adam; ``share`` of the steps is done."""
        with torch.enable_grad():
            leaves = {key: value.requires_grad_() for key, value in self.multipliers.items()}
            points = self.vectors.detach().requires_grad_()
            value = self.problem.value(points, leaves)
            slope, *gains = torch.autograd.grad(value.sum(), [points, *leaves.values()])
        self._move(slope)
        self.steps += 1
        step = self.rate * max(1 - share, 0.01)
        for (key, multiplier), gain in zip(self.multipliers.items(), gains, strict=True):
            scaled = gain * self.scales[key]
            self.means[key] = 0.9 * self.means[key] + 0.1 * scaled
            self.squares[key] = 0.99 * self.squares[key] + 0.01 * scaled * scaled
            mean, square = self.means[key] / (1 - 0.9**self.steps), self.squares[key] / (1 - 0.99**self.steps)
            moved = multiplier.detach() + step * self.scales[key] * mean / (square.sqrt() + 1e-12)
            self.multipliers[key] = moved if key[1] == "square" else moved.clamp_min(0)

    def kappa(self) -> Float[Tensor, "b n1"]:
        """Return the diagonal that the vectors suggest; if it is feasible, the bound is minus half its sum."""
        slope = self.problem.slope(self.vectors, self.multipliers)[1]
        kappa = self.problem.shared(-(self.vectors * slope).sum(1))
        return torch.cat([kappa[:, :1], kappa[:, 1:].clamp_min(0)], 1)

    def proved(self, index: int, kappa: Float[Tensor, "n1"], halvings: int) -> float:
        """Return a proved bound of one specification; without ``halvings``, 0 if that is proved, else minus infinity.

        The diagonal is raised in proportion to itself: by as much as a bound of 0 allows, or by bisection.
        """
        alone = slice(index, index + 1)
        problem = self.exact.take(alone)
        kappa, weights = kappa[problem.kept].to(problem.specifications.dtype), problem.weights[problem.kept]
        mean = (kappa * weights)[1:].sum() / weights[1:].sum()
        raised = torch.maximum(kappa.abs(), FLOOR * mean)
        room = -float((kappa * weights).sum() / (raised * weights).sum()) * (1 - 1e-6)
        if not halvings and room < HOPE:
            return -torch.inf
        dtype = problem.specifications.dtype
        multipliers = tree_map_only(Tensor, lambda values: values[alone].to(dtype), self.multipliers)
        matrix, pixels = problem.matrix(multipliers), int((problem.spans[0][1] > 0).sum())

        def feasible(share: float) -> bool:
            added = kappa + share * raised
            added[1 : 1 + pixels] += problem.pixel_diagonal(multipliers)
            return positive(matrix, added, pixels)

        if not halvings:
            return 0.0 if feasible(room) else -torch.inf
        low, high = 0.0, 1.0
        if not feasible(high):
            return -torch.inf
        for _ in range(halvings):
            middle = (low + high) / 2
            low, high = (low, middle) if feasible(middle) else (middle, high)
        return -float(((kappa + high * raised) * weights).sum()) / 2
