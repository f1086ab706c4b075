"""The gradient attack, whose settings are FGSM, BIM and PGD.

From ``x_0`` near the clean image ``x``, repeat ``x_{t+1} = clip(x + project(x_t + step * steepest(gradient) - x))``.
Sources: Goodfellow et al. 2015 (FGSM), Kurakin et al. 2017 (BIM), Madry et al. 2018 (PGD); on representations,
Petrov and Kwiatkowska 2022, https://arxiv.org/abs/2210.04076, section 4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch

from holdfast.attacks.base import GRADIENT, Attack, Gain, better, climb
from holdfast.core.balls import Ball
from holdfast.core.encoder import Domain, Encoder, Pixels
from holdfast.core.errors import Conflict, HoldfastError, UnknownName
from holdfast.core.noise import Noise
from holdfast.core.objective import ObjectiveFunction
from holdfast.core.settings import require_positive


@final
@dataclass(frozen=True)
class GradientAttack(Attack):
    """Climb the objective by projected steepest ascent; its settings give FGSM, BIM and PGD.

    ``stride`` is the step as a share of the radius, so that one default serves every ball; ``step`` gives it in the
    domain's units instead, as published settings do. ``start`` is the radius of the random start as a share of the
    ball's: 0 begins at the clean image, where an untargeted objective has no gradient. ``keep`` returns the ``best``
    point visited, or the ``last`` as published programs do.
    """

    steps: int = 20
    """Gradient steps per start."""
    stride: float = 0.1
    """Step, as a fraction of the radius."""
    step: float | None = None
    """Step in pixel units, instead of `stride`."""
    start: float = 1.0
    """Radius of the random start, as a fraction of the ball's; at 0 an untargeted distance has no gradient."""
    keep: str = "best"
    """Returned point: the `best` visited or the `last`."""
    name = "pgd"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.keep not in ("best", "last"):
            raise UnknownName("pgd: keep", self.keep, ["best", "last"])
        if self.steps < 1 or not 0 <= self.start <= 1:
            raise HoldfastError(
                f"pgd: steps must be positive and start lie in [0, 1], got {self.steps} and {self.start}"
            )
        if self.step is not None and self.stride != 0.1:
            raise Conflict("pgd", f"step={self.step} and stride={self.stride}", "step or stride, not both")
        require_positive(self, "stride", "step")

    @property
    def forwards(self) -> int:
        return self.restarts * (GRADIENT * self.steps + 1)

    def search(
        self, encoder: Encoder, pixels: Pixels, objective: ObjectiveFunction, ball: Ball, noise: Noise
    ) -> tuple[Pixels, Gain]:
        start = random_start(pixels, ball, noise, self.start, encoder.domain)
        return ascend(encoder, pixels, start, objective, ball, self)


def fgsm() -> GradientAttack:
    """One step as long as the radius (U-FGSM starts a little off the clean image, where the gradient is zero)."""
    return GradientAttack(steps=1, stride=1.0, start=0.01)


def bim() -> GradientAttack:
    """Ten steps of a tenth of the radius from a little off the clean image."""
    return GradientAttack(steps=10, stride=0.1, start=0.01)


def random_start(pixels: Pixels, ball: Ball, noise: Noise, share: float, domain: Domain) -> Pixels:
    """Return a uniform point of the ball shrunk to ``share`` of its radius, clipped before the first gradient."""
    if share == 0:
        return pixels
    return domain.clip(pixels + ball.scaled(share).sample(noise, pixels.shape[1:], pixels.dtype))


def ascend(
    encoder: Encoder, pixels: Pixels, start: Pixels, objective: ObjectiveFunction, ball: Ball, attack: GradientAttack
) -> tuple[Pixels, Gain]:
    """Return where ``attack.steps`` steps from ``start`` lead, and the gain there.

    The gain is -inf where nobody compares it: at the last point of the only restart.
    """
    length = attack.stride * ball.radius if attack.step is None else attack.step
    moved, best, gain = start, pixels, torch.full_like(pixels.flatten(1)[:, 0], -torch.inf)
    for _ in range(attack.steps):
        here, gradient = climb(encoder, moved, objective)
        if attack.keep == "best":
            best, gain = better(best, gain, moved, here)
        moved = stepped(pixels, moved, gradient, length, ball, encoder.domain)
    if attack.keep == "last" and attack.restarts == 1:
        return moved, gain
    with torch.no_grad():
        here = objective(encoder.forward(moved))
    return better(best, gain, moved, here) if attack.keep == "best" else (moved, here)


def stepped(pixels: Pixels, moved: Pixels, gradient: Pixels, length: float, ball: Ball, domain: Domain) -> Pixels:
    """Return ``moved`` after one step of ``length`` up the ``gradient``, back inside the ball and the domain."""
    if ball.sparse:
        gradient = passable(moved, gradient, domain)
    delta = ball.steepest(gradient).mul_(length).add_(moved).sub_(pixels)
    return ball.project(delta).add_(pixels).clamp_(domain.low, domain.high)


def passable(moved: Pixels, gradient: Pixels, domain: Domain) -> Pixels:
    """Return ``gradient`` without the coordinates that are at an edge of the domain and point out of it.

    A sparse step would otherwise spend itself, step after step, on a coordinate that cannot move.
    """
    stuck = ((moved >= domain.high) & (gradient > 0)) | ((moved <= domain.low) & (gradient < 0))
    return gradient.masked_fill(stuck, 0)
