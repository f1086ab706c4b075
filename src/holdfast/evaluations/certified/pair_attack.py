"""Attacks with a radius of their own for every sample, by any attack there is.

``delta -> f(clip(x + radius * delta))`` turns every sample's ball into the unit ball, where one attack serves all.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from holdfast.attacks.base import Attack
from holdfast.attacks.gradient import passable
from holdfast.core.balls import Ball, column
from holdfast.core.encoder import Domain, Encoder, Pixels
from holdfast.evaluations.certified.pairs import Pairs


class UnitBallEncoder(nn.Module):
    """The encoder as a function of ``delta`` in the unit ball.

    Clipping would hide the gradient of every pixel at an edge of the range. Here it passes, but for what points out.
    """

    def __init__(self, encoder: Encoder, centres: Pixels, radii: Float[Tensor, "p"]) -> None:
        super().__init__()
        self.module, self.domain = encoder.module, encoder.domain
        self.centres, self.radii = centres, column(radii, centres)

    def place(self, delta: Pixels) -> Pixels:
        """Return the inputs that ``delta`` stands for."""
        return self.domain.clip(self.centres + self.radii * delta)

    def forward(self, delta: Tensor) -> Tensor:
        x = self.place(delta).detach()
        if delta.requires_grad:
            x = x + (delta - delta.detach()) * self.radii
            x.register_hook(lambda gradient: passable(x.detach(), gradient, self.domain))
        return self.module(x)


@dataclass(frozen=True)
class AttackResult:
    """The best points of a search, one per pair, and ``W f`` there."""

    points: Pixels
    values: Float[Tensor, "p"]

    def or_better(self, other: AttackResult) -> AttackResult:
        """Return for each pair the point with the lower value; nan is no value."""
        wins = (other.values < self.values) | self.values.isnan()
        points = torch.where(column(wins, self.points), other.points, self.points)
        return AttackResult(points, torch.where(wins, other.values, self.values))


@dataclass(frozen=True)
class PairAttack:
    """Attacks ``pairs`` on the objective that certificates speak about, each pair at its own radius."""

    pairs: Pairs
    ball: Ball
    """The unit ball of the norm."""
    attack: Attack

    def __call__(self, radii: Float[Tensor, "p"], purpose: str) -> AttackResult:
        """Return the worst points that the attack finds within ``radii`` of the anchors."""
        around = UnitBallEncoder(self.pairs.encoder, self.pairs.images, radii)
        encoder = Encoder(around.eval(), self.pairs.encoder.name, Domain(self.pairs.encoder.domain.shape, -1.0, 1.0))
        start = torch.zeros_like(self.pairs.images)
        noise = self.pairs.noise.fork(purpose)
        return self.at(around.place(self.attack(encoder, start, self.pairs.objective, self.ball, noise)))

    def at(self, points: Pixels) -> AttackResult:
        """Return ``points`` with their values."""
        return AttackResult(points, self.pairs.values(points))

    def sizes(self, points: Pixels) -> Float[Tensor, "p"]:
        """Return how far ``points`` are from their anchors."""
        return self.ball.norm(points - self.pairs.images)
