"""The score-only attack: random search with square updates, for encoders without gradients and as a masking check.

Follows Andriushchenko et al. 2020, https://arxiv.org/abs/1912.00049: propose a change on a random window whose size
shrinks along the published schedule, keep it if the objective rises. Their l2 update moves mass between windows; ours
writes a sign pattern into the window and rescales to the sphere, which serves every ball with one rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import final

import torch
from torch import Tensor

from holdfast.attacks.base import Attack, Gain, better
from holdfast.core.balls import Ball
from holdfast.core.encoder import Encoder, Pixels
from holdfast.core.errors import HoldfastError
from holdfast.core.noise import Noise
from holdfast.objectives.base import ObjectiveFunction

SCHEDULE = (0.001, 0.005, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8)
"""Shares of the query budget after which the window's area halves."""


@final
@dataclass(frozen=True)
class SquareAttack(Attack):
    """Climb the objective by random search: ``queries`` forward passes per sample, no gradient.

    ``area`` is the share of the image that the first square covers."""

    queries: int = 1000
    area: float = 0.3
    name = "square"
    blind = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.queries < 2 or not 0 < self.area <= 1:
            raise HoldfastError(f"square: needs queries >= 2 and area in (0, 1], got {self.queries} and {self.area}")

    @property
    def forwards(self) -> int:
        return self.restarts * self.queries

    @torch.no_grad()
    def search(
        self, encoder: Encoder, pixels: Pixels, objective: ObjectiveFunction, ball: Ball, noise: Noise
    ) -> tuple[Pixels, Gain]:
        best = self._placed(encoder, pixels, stripes(pixels, noise.fork("stripes")), ball)
        gain = objective(encoder.forward(best))
        for query in range(1, self.queries):
            share = self.area / 2 ** sum(query / self.queries > mark for mark in SCHEDULE)
            window, signs = windows(pixels, share, noise.fork(query))
            # The largest entry the ball allows: projection brings dense patterns of l2 and l1 back to its surface.
            proposal = torch.where(window, signs * ball.radius, best - pixels)
            moved = self._placed(encoder, pixels, proposal, ball)
            best, gain = better(best, gain, moved, objective(encoder.forward(moved)))
        return best, gain

    def _placed(self, encoder: Encoder, pixels: Pixels, delta: Tensor, ball: Ball) -> Pixels:
        return encoder.domain.clip(pixels + ball.project(delta))


def stripes(pixels: Pixels, noise: Noise) -> Pixels:
    """Return a start of vertical stripes: one random sign per channel and column, which moves convolutions far."""
    shape = list(pixels.shape[1:])
    if len(shape) == 3:
        shape[1] = 1
    return noise.signs(shape, pixels.dtype).expand_as(pixels).clone()


def windows(pixels: Pixels, share: float, noise: Noise) -> tuple[Tensor, Tensor]:
    """Return a mask of one random window per sample that covers ``share`` of its area, and one sign per channel."""
    *_, height, width = (1, *pixels.shape[1:]) if pixels.ndim < 4 else pixels.shape
    square = pixels.ndim == 4
    tall = max(1, round((share * height * width) ** 0.5)) if square else 1
    tall = min(tall, height)
    wide = min(width, tall) if square else max(1, round(share * width))
    corner = noise.fork("corner").uniform((2,))
    top = (corner[:, 0] * (height - tall + 1)).long()
    left = (corner[:, 1] * (width - wide + 1)).long()
    rows = torch.arange(height, device=pixels.device)
    columns = torch.arange(width, device=pixels.device)
    inside_rows = (rows >= top[:, None]) & (rows < top[:, None] + tall)
    inside_columns = (columns >= left[:, None]) & (columns < left[:, None] + wide)
    mask = inside_rows[:, :, None] & inside_columns[:, None, :]
    channels = prod(pixels.shape[1:]) // (height * width)
    signs = noise.fork("sign").signs((channels, 1, 1), pixels.dtype)
    shape = (len(pixels), channels, height, width)
    return mask[:, None].expand(shape).reshape(pixels.shape), signs.expand(shape).reshape(pixels.shape)
