"""Ascent of the multipliers of a Lagrangian, with descent of the vectors that stand for its matrix; and the proof.

For given multipliers, the best ``kappa`` is dual to minimising ``v' M v / 2`` over matrices ``V V'`` whose rows are unit
vectors. Descent on a ``V`` of low rank finds that minimum (Burer and Monteiro 2003,
https://doi.org/10.1007/s10107-002-0352-8), where the gradient of each multiplier is the violation of its constraint.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor

from holdfast.bounds.methods.enclosing_balls import EnclosingBall
from holdfast.bounds.methods.lagrangian import RANGE, Lagrangian, Multipliers, positive
from holdfast.bounds.relaxations.rules import Box

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
    """The same in single precision, for the search."""
    velocity: Tensor = field(init=False)
    sizes: Tensor = field(init=False)
    means: Multipliers = field(init=False)
    squares: Multipliers = field(init=False)
    steps: int = 0

    def __post_init__(self) -> None:
        self.problem = self.exact.cast(torch.float32)
        self.velocity = torch.zeros_like(self.vectors)
        self.sizes = self.problem.lengths(self.problem.slope(self.vectors, self.multipliers)[1])
        self.means = {key: torch.zeros_like(value) for key, value in self.multipliers.items()}
        self.squares = {key: torch.zeros_like(value) for key, value in self.multipliers.items()}

    def pick(self, which: Int[Tensor, "a"]) -> Ascent:
        """Return the ascent of some specifications, with new running means."""
        boxes = [Box(*(end[which] for end in box)) for box in self.exact.intermediate_bounds]
        ball = self.exact.ball and EnclosingBall(*(values[which] for values in self.exact.ball))
        return Ascent(
            Lagrangian(self.exact.graph, boxes, self.exact.specifications[which], ball),
            {key: value[which] for key, value in self.multipliers.items()},
            {key: value[which] for key, value in self.scales.items()},
            self.vectors[which],
            self.rate,
        )

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
        problem = self.exact.pick(index)
        kappa, weights = kappa[problem.kept].to(problem.specifications.dtype), problem.weights[problem.kept]
        mean = (kappa * weights)[1:].sum() / weights[1:].sum()
        raised = torch.maximum(kappa.abs(), FLOOR * mean)
        room = -float((kappa * weights).sum() / (raised * weights).sum()) * (1 - 1e-6)
        if not halvings and room < HOPE:
            return -torch.inf
        dtype, image = problem.specifications.dtype, slice(index, index + 1)
        multipliers = {key: value[image].to(dtype) for key, value in self.multipliers.items()}
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
