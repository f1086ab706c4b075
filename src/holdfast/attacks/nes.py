"""The score-only attack by estimated gradients: natural evolution strategies.

``g = 1 / (2 k s) sum_i (L(x + s u_i) - L(x - s u_i)) u_i`` over ``k`` normal directions ``u_i`` estimates the gradient of
the objective ``L`` smoothed by noise, from ``2 k`` queries; steps then are those of projected gradient ascent. Ilyas et al.
2018, https://arxiv.org/abs/1804.08598, section 2. Departures: noise and steps are shares of the radius, so that one default
serves every ball, and the best point visited is returned.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch

from holdfast.attacks.base import Attack, Gain, better
from holdfast.attacks.gradient import random_start, stepped
from holdfast.core.balls import Ball, column
from holdfast.core.encoder import Encoder, Pixels
from holdfast.core.errors import HoldfastError
from holdfast.core.noise import Noise
from holdfast.core.settings import require_positive
from holdfast.objectives.base import ObjectiveFunction


@final
@dataclass(frozen=True)
class NaturalEvolution(Attack):
    """Climb the objective along gradients estimated from its values: at most ``queries`` forward passes, no gradient.

    Each step looks at ``pairs`` of opposite points, apart by ``spread`` of the radius, and at where it leads.
    """

    queries: int = 1000
    pairs: int = 10
    stride: float = 0.2
    spread: float = 0.2
    name = "nes"
    blind = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "pairs", "stride", "spread")
        if self.queries < 2 * self.pairs + 2:
            raise HoldfastError(
                f"nes: the start and one step take {2 * self.pairs + 2} queries with {self.pairs} pairs, got queries="
                f"{self.queries}; allow more, or fewer pairs"
            )

    @property
    def forwards(self) -> int:
        return self.restarts * (1 + self._steps * (2 * self.pairs + 1))

    @property
    def _steps(self) -> int:
        return (self.queries - 1) // (2 * self.pairs + 1)

    @torch.no_grad()
    def search(
        self, encoder: Encoder, pixels: Pixels, objective: ObjectiveFunction, ball: Ball, noise: Noise
    ) -> tuple[Pixels, Gain]:
        moved = random_start(pixels, ball, noise.fork("start"), 1.0, encoder.domain)
        best, gain = moved, objective(encoder.forward(moved))
        for step in range(self._steps):
            gradient = self._estimate(encoder, moved, objective, ball, noise.fork(step))
            length = self.stride * ball.radius * (1 - step / self._steps)
            moved = stepped(pixels, moved, gradient, length, ball, encoder.domain)
            best, gain = better(best, gain, moved, objective(encoder.forward(moved)))
        return best, gain

    def _estimate(
        self, encoder: Encoder, moved: Pixels, objective: ObjectiveFunction, ball: Ball, noise: Noise
    ) -> Pixels:
        """Return the gradient at ``moved`` up to its length, from the objective's values around it."""
        size = column(self.spread * ball.radius / ball.norm(torch.ones_like(moved)), moved)
        gradient = torch.zeros_like(moved)
        for pair in range(self.pairs):
            direction = noise.fork(pair).normal(moved.shape[1:], moved.dtype)
            ahead, back = (encoder.domain.clip(moved + sign * size * direction) for sign in (1, -1))
            rise = objective(encoder.forward(ahead)) - objective(encoder.forward(back))
            gradient += column(rise.to(moved.dtype).nan_to_num(0, 0, 0), moved) * direction
        return gradient
