"""Attacks with a radius of their own for every sample, by any attack there is.

``delta -> f(clip(x + radius * delta))`` turns every sample's ball into the unit ball, where one attack serves all.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from holdfast.attacks.base import Attack
from holdfast.attacks.gradient import passable
from holdfast.core.balls import Ball, column
from holdfast.core.encoder import Domain, Encoder, Pixels
from holdfast.evaluations.certified.pairs import Pairs


class UnitBallEncoder(nn.Module):
    """The encoder as a function of ``delta`` in the unit ball."""

    def __init__(self, encoder: Encoder, centres: Pixels, radii: Float[Tensor, "p"]) -> None:
        super().__init__()
        self.module, self.domain = encoder.module, encoder.domain
        self.centres, self.radii = centres, column(radii, centres)

    def pixels(self, delta: Pixels) -> Pixels:
        """Return the inputs that ``delta`` stands for."""
        return self.domain.clip(self.centres + self.radii * delta)

    def forward(self, delta: Tensor) -> Tensor:
        x = self.pixels(delta).detach()
        if delta.requires_grad:
            # Straight-through clip; outward gradients are zeroed.
            x = x + (delta - delta.detach()) * self.radii
            # Not of ``x`` itself, which would then hold its own hook and never be freed.
            here, domain = x.detach(), self.domain
            x.register_hook(lambda gradient: passable(here, gradient, domain))
        return self.module(x)


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
        module = UnitBallEncoder(self.pairs.encoder, self.pairs.images, radii).eval()
        noise = self.pairs.noise.fork(purpose)
        start = torch.zeros_like(self.pairs.images)
        delta = self.attack(self._encoder(module), start, self.pairs.objective, self.ball, noise)
        return self.evaluate(module.pixels(delta))

    def evaluate(self, points: Pixels) -> AttackResult:
        """Return ``points`` with their values."""
        return AttackResult(points, self.pairs.values(points))

    def sizes(self, points: Pixels) -> Float[Tensor, "p"]:
        """Return how far ``points`` are from their anchors."""
        return self.ball.norm(points - self.pairs.images)

    def _encoder(self, module: UnitBallEncoder) -> Encoder:
        """Return ``module`` as an encoder. A new ``Encoder`` would copy the weights, at every radius that is tried."""
        encoder = copy.copy(self.pairs.encoder)
        encoder.module, encoder.domain = module, Domain(encoder.domain.shape, -1.0, 1.0)
        encoder.__dict__.pop("fingerprint", None)
        return encoder
