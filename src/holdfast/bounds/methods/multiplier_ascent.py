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

from holdfast.bounds.methods.lagrangian import Lagrangian, Multipliers, positive
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
        self.sizes = lengths(self.problem.slope(self.vectors, self.multipliers)[1])
        self.means = {key: torch.zeros_like(value) for key, value in self.multipliers.items()}
        self.squares = {key: torch.zeros_like(value) for key, value in self.multipliers.items()}

    def pick(self, which: Int[Tensor, "a"]) -> Ascent:
        """Return the ascent of some specifications, with new running means."""
        boxes = [Box(*(end[which] for end in box)) for box in self.exact.intermediate_bounds]
        return Ascent(
            Lagrangian(self.exact.graph, boxes, self.exact.specifications[which]),
            {key: value[which] for key, value in self.multipliers.items()},
            {key: value[which] for key, value in self.scales.items()},
            self.vectors[which],
            self.rate,
        )

    def resume(self, last: Ascent) -> None:
        """Start from the result of an ascent of the same specifications over other regions."""
        for key, value in last.multipliers.items():
            both = last.problem.unstable[key[0]] & self.problem.unstable[key[0]]
            self.multipliers[key] = torch.where(both, value, self.multipliers[key])
        self.vectors = last.vectors.clone()

    def descend(self, steps: int) -> None:
        """Move the vectors against their slope, each variable by its own scale, with unit length or less."""
        for _ in range(steps):
            _, slope = self.problem.slope(self.vectors, self.multipliers)
            self._move(slope)

    def _move(self, slope: Tensor) -> None:
        self.sizes = 0.9 * self.sizes + 0.1 * lengths(slope)
        scale = self.sizes + FLOOR * self.sizes[..., 1:].mean(2, keepdim=True) + torch.finfo(slope.dtype).tiny
        moved = self.vectors + MOMENTUM * self.velocity - STRIDE * slope / scale
        moved = moved / lengths(moved).clamp_min(1)
        moved[..., 0] = self.vectors[..., 0]  # only angles between vectors matter
        self.velocity, self.vectors = moved - self.vectors, moved

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
        kappa = -(self.vectors * slope).sum(1)
        return torch.cat([kappa[:, :1], kappa[:, 1:].clamp_min(0)], 1)

    def proved(self, index: int, kappa: Float[Tensor, "n1"], halvings: int) -> float:
        """Return a proved bound of one specification; without ``halvings``, 0 if that is proved, else minus infinity.

        The diagonal is raised in proportion to itself: by as much as a bound of 0 allows, or by bisection.
        """
        problem = self.exact.pick(index)
        kappa = kappa[problem.kept].to(problem.specifications.dtype)
        raised = torch.maximum(kappa.abs(), FLOOR * kappa[1:].mean())
        room = -float(kappa.sum() / raised.sum()) * (1 - 1e-6)
        if not halvings and room < HOPE:
            return -torch.inf
        dtype, image = problem.specifications.dtype, slice(index, index + 1)
        matrix = problem.matrix({key: value[image].to(dtype) for key, value in self.multipliers.items()})
        pixels = int((problem.spans[0][1] > 0).sum())
        if not halvings:
            return 0.0 if positive(matrix, kappa + room * raised, pixels) else -torch.inf
        low, high = 0.0, 1.0
        if not positive(matrix, kappa + high * raised, pixels):
            return -torch.inf
        for _ in range(halvings):
            middle = (low + high) / 2
            low, high = (low, middle) if positive(matrix, kappa + middle * raised, pixels) else (middle, high)
        return -float((kappa + high * raised).sum()) / 2


def lengths(vectors: Float[Tensor, "b r n1"]) -> Float[Tensor, "b 1 n1"]:
    """Return the norms over the r vectors, faster than ``Tensor.norm`` does."""
    return (vectors * vectors).sum(1, keepdim=True).sqrt()
