"""Attacks on pairs, each with a radius of its own, by any attack there is."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from holdfast.attacks.base import Attack
from holdfast.attacks.unit_ball import on_unit_ball
from holdfast.core.balls import Ball, column
from holdfast.core.encoder import Pixels
from holdfast.evaluations.certified.pairwise.pairs import Pairs


@dataclass(frozen=True)
class AttackResult:
    """The best point that a search found for each pair, and ``W f`` there."""

    points: Pixels
    values: Float[Tensor, "p"]

    def replaced(self, where: Bool[Tensor, "p"], other: AttackResult) -> AttackResult:
        """Return this result with the points and values of ``other`` at the pairs ``where``."""
        points = torch.where(column(where, self.points), other.points, self.points)
        return AttackResult(points, torch.where(where, other.values, self.values))

    def or_better(self, other: AttackResult) -> AttackResult:
        """Return for each pair the point with the lower value; a value of nan never wins."""
        return self.replaced((other.values < self.values) | self.values.isnan(), other)


@dataclass(frozen=True)
class PairAttack:
    """Attacks ``pairs`` on the objective that certificates speak about, each pair at its own radius."""

    pairs: Pairs
    ball: Ball
    """The unit ball of the norm."""
    attack: Attack

    def __call__(self, radii: Float[Tensor, "p"], purpose: str) -> AttackResult:
        """Return the worst points that the attack finds within ``radii`` of the anchors."""
        encoder, module = on_unit_ball(self.pairs.encoder, self.pairs.images, radii)
        noise = self.pairs.noise.fork(purpose)
        start = torch.zeros_like(self.pairs.images)
        delta = self.attack(encoder, start, self.pairs.objective, self.ball, noise)
        return self.evaluate(module.pixels(delta))

    def evaluate(self, points: Pixels) -> AttackResult:
        """Return ``points`` with their values."""
        return AttackResult(points, self.pairs.values(points))

    def sizes(self, points: Pixels) -> Float[Tensor, "p"]:
        """Return how far ``points`` are from their anchors."""
        return self.ball.norm(points - self.pairs.images)
