"""The gradient attack; FGSM, BIM and PGD are settings of it.

From ``x_0`` near the clean image ``x``, repeat ``x_{t+1} = clip(x + project(x_t + step * steepest(gradient) - x))``.
Sources: Goodfellow et al. 2015 (FGSM), Kurakin et al. 2017 (BIM), Madry et al. 2018 (PGD); on embeddings,
Petrov and Kwiatkowska 2022, https://arxiv.org/abs/2210.04076, section 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

import torch

from holdfast.attacks.base import GRADIENT, Attack, Gain, assert_inside, better, gain_and_gradient
from holdfast.core.balls import Ball
from holdfast.core.encoder import Domain, Encoder, Pixels
from holdfast.core.errors import Conflict, UnknownName
from holdfast.core.noise import Noise
from holdfast.core.objective import ObjectiveFunction
from holdfast.core.settings import check_fraction, check_positive


@final
@dataclass(frozen=True)
class GradientAttack(Attack):
    """Maximise the objective by projected gradient ascent; settings give FGSM, BIM and PGD."""

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
        check_positive(self, "steps")
        check_fraction(self, "start")
        if self.step is not None and self.stride != 0.1:
            raise Conflict("pgd", f"step={self.step} and stride={self.stride}", "step or stride, not both")
        check_positive(self, "stride", "step")

    @property
    def forward_passes(self) -> int:
        return self.restarts * (GRADIENT * self.steps + 1)

    def search(
        self, encoder: Encoder, pixels: Pixels, objective: ObjectiveFunction, ball: Ball, noise: Noise
    ) -> tuple[Pixels, Gain]:
        start = random_start(pixels, ball, noise, self.start, encoder.domain)
        return ascend(encoder, pixels, start, objective, ball, self)


def fgsm() -> GradientAttack:
    """Gradient attack with one step of size ε (FGSM).

    U-FGSM starts a little off the clean image, where the gradient is zero.
    """
    return GradientAttack(steps=1, stride=1.0, start=0.01)


def bim() -> GradientAttack:
    """Ten steps of a tenth of the radius from a little off the clean image."""
    return GradientAttack(steps=10, stride=0.1, start=0.01)


def random_start(pixels: Pixels, ball: Ball, noise: Noise, share: float, domain: Domain) -> Pixels:
    """Uniform point of the ball shrunk to a fraction of its radius, clipped to the domain.

    Args:
        share: Fraction of the radius, 0 to 1; 0 returns the clean images.
    """
    if share == 0:
        return pixels
    return domain.clip(pixels + ball.scaled(share).sample(noise, pixels.shape[1:], pixels.dtype))


def ascend(
    encoder: Encoder, pixels: Pixels, start: Pixels, objective: ObjectiveFunction, ball: Ball, attack: GradientAttack
) -> tuple[Pixels, Gain]:
    """Follow the gradient from ``start`` with the settings of ``attack``.

    The gain is -inf where it is not needed: at the last point of the only restart.

    Args:
        attack: Settings: steps, step size, and which point to keep.
    """
    length = attack.stride * ball.radius if attack.step is None else attack.step
    moved, best, gain = start, pixels, torch.full_like(pixels.flatten(1)[:, 0], -torch.inf)
    for _ in range(attack.steps):
        here, gradient = gain_and_gradient(encoder, moved, objective)
        if attack.keep == "best":
            best, gain = better(best, gain, moved, here)
        moved = stepped(pixels, moved, gradient, length, ball, encoder.domain)
    if attack.keep == "last" and attack.restarts == 1:
        return moved, gain
    with torch.no_grad():
        here = objective(encoder.forward(moved))
    return better(best, gain, moved, here) if attack.keep == "best" else (moved, here)


def same_path(attacks: Sequence[Attack]) -> list[list[int]]:
    """Positions of attacks that pass through the same points and differ only in when they stop, shortest first.

    Example:
        >>> same_path([GradientAttack(steps=50, keep="last"), GradientAttack(), GradientAttack(steps=5, keep="last")])
        [[2, 0]]
    """
    groups: dict[GradientAttack, list[tuple[int, int]]] = {}
    for place, attack in enumerate(attacks):
        if isinstance(attack, GradientAttack) and (attack.keep, attack.restarts) == ("last", 1):
            # A stride is a share of the radius, whatever the number of steps.
            groups.setdefault(replace(attack, steps=1), []).append((attack.steps, place))
    return [[place for _, place in sorted(group)] for group in groups.values() if len(group) > 1]


def read_out(
    attacks: Sequence[Attack], encoder: Encoder, pixels: Pixels, objective: ObjectiveFunction, ball: Ball, noise: Noise
) -> list[Pixels]:
    """Points of one path where each of ``attacks`` stops; they are of the ``same_path``, shortest first.

    Each point is the one that its attack alone returns, for the gradients of the longest attack.

    Args:
        attacks: Attacks that differ in the number of steps.
    """
    ball.check(encoder.domain)
    points, taken = list[Pixels](), 0
    for attack in attacks:
        assert isinstance(attack, GradientAttack)
        start = random_start(pixels, ball, noise.fork(attack.name, 0), attack.start, encoder.domain)
        rest = replace(attack, steps=attack.steps - taken)
        moved, _ = ascend(encoder, pixels, points[-1] if points else start, objective, ball, rest)
        assert_inside(encoder, pixels, moved, ball)
        taken = attack.steps
        points.append(moved)
    return points


def stepped(pixels: Pixels, moved: Pixels, gradient: Pixels, length: float, ball: Ball, domain: Domain) -> Pixels:
    """Take one gradient step, then project onto the ball and clip to the domain.

    Args:
        length: Step size in pixel units.
    """
    if ball.sparse:
        gradient = passable(moved, gradient, domain)
    delta = ball.steepest(gradient).mul_(length).add_(moved).sub_(pixels)
    return ball.project(delta).add_(pixels).clamp_(domain.low, domain.high)


def passable(moved: Pixels, gradient: Pixels, domain: Domain) -> Pixels:
    """Set the gradient to 0 where a pixel is at the edge of the range and would leave it.

    A sparse step would otherwise be spent, step after step, on a pixel that cannot move.
    """
    stuck = ((moved >= domain.high) & (gradient > 0)) | ((moved <= domain.low) & (gradient < 0))
    return gradient.masked_fill(stuck, 0)
