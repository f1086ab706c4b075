"""Guess: the best of many random points of the ball, which every other attack should beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch

from holdfast.extend import Attack, Ball, Encoder, Gain, Noise, ObjectiveFunction, Pixels, better


@final
@dataclass(frozen=True)
class Guess(Attack):
    """Try ``tries`` random points of the ball and keep the best."""

    tries: int = 100
    name = "guess"

    @property
    def forward_passes(self) -> int:
        return self.restarts * (1 + self.tries)

    @torch.no_grad()
    def search(
        self, encoder: Encoder, pixels: Pixels, objective: ObjectiveFunction, ball: Ball, noise: Noise
    ) -> tuple[Pixels, Gain]:
        best, gain = pixels, objective(encoder.forward(pixels))
        for attempt in range(self.tries):
            delta = ball.sample(noise.fork(attempt), pixels.shape[1:], pixels.dtype)
            moved = encoder.domain.clip(pixels + delta)
            best, gain = better(best, gain, moved, objective(encoder.forward(moved)))
        return best, gain
