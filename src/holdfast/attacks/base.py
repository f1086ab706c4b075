"""What all attacks have in common: restarts, the best point found, and a check that it lies inside the perturbation set."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from holdfast.core.balls import Ball, column
from holdfast.core.discovery import OldName, OldNames
from holdfast.core.encoder import Encoder, Pixels
from holdfast.core.errors import HoldfastError
from holdfast.core.noise import Noise
from holdfast.core.objective import ObjectiveFunction
from holdfast.core.settings import Searching, TextSettings, check_positive

Gain = Float[Tensor, "b"]
GRADIENT = 3
"""How many forwards a forward with its backward counts as."""


class NoGradientError(HoldfastError):
    """A gradient attack met an encoder that passes no gradient to its input."""


@dataclass(frozen=True)
class Attack(TextSettings, Searching, OldNames):
    """Search for a perturbation within ``ball`` that makes the objective large.

    Perturbed images also stay in the encoder's domain. An attack bounds the worst case from one side only: a failed
    attack proves nothing.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    """Version of the attack; it rises when equal settings give other points, and old results are then recomputed."""
    black_box: ClassVar[bool] = False
    """True if the attack uses no gradient."""
    blind = OldName("black_box")
    forwards = OldName("forward_passes")
    restarts: int = 1
    """Random starts."""

    def __post_init__(self) -> None:
        check_positive(self, "restarts")

    @classmethod
    def read(cls, text: str) -> Attack:
        from holdfast.attacks.presets import read_attack  # which knows every attack

        return read_attack(text)

    def __call__(
        self, encoder: Encoder, pixels: Pixels, objective: ObjectiveFunction, ball: Ball, noise: Noise
    ) -> Pixels:
        """Return the attacked images, shape (b, *pixels).

        Args:
            encoder: under attack.
            pixels: clean images in the encoder's domain; the ball stays centred on them throughout.
            objective: gain per sample, to climb.
            ball: allowed perturbations.
            noise: one random stream per image.
        """
        ball.check(encoder.domain)
        best, gain = self.search(encoder, pixels, objective, ball, noise.fork(self.name, 0))
        for restart in range(1, self.restarts):
            other, its_gain = self.search(encoder, pixels, objective, ball, noise.fork(self.name, restart))
            best, gain = better(best, gain, other, its_gain)
        assert_inside(encoder, pixels, best, ball)
        return best

    @property
    def forward_passes(self) -> int:
        """Forward passes per image, at most; a gradient counts as 3. Plans use this number.

        By default one per restart. An attack that does not state its cost is unknown until measured.
        """
        return self.restarts

    @abstractmethod
    def search(
        self, encoder: Encoder, pixels: Pixels, objective: ObjectiveFunction, ball: Ball, noise: Noise
    ) -> tuple[Pixels, Gain]:
        """Run the attack once.

        Args:
            encoder: Encoder under attack.
            pixels: Clean images, shape (b, *domain.shape), within the range of the domain.
            objective: Function of embeddings (b, d) to maximise; it returns one gain per image, shape (b,).
            ball: Perturbation set around each clean image; its radius is in pixel units.
            noise: Random streams, one per image.

        Returns:
            Attacked images, shape (b, *pixels), inside the ball and the domain, and their gains, shape (b,).
        """


def better(best: Pixels, gain: Gain, other: Pixels, its_gain: Gain) -> tuple[Pixels, Gain]:
    """Keep, for each image, the point that gains more; a gain of nan never wins.

    Args:
        best: Points so far, shape (b, *pixels).
        gain: Gains of ``best``, shape (b,).
        other: Points to compare with, shape (b, *pixels).
        its_gain: Gains of ``other``, shape (b,).

    Returns:
        The chosen points, shape (b, *pixels), and their gains, shape (b,).
    """
    wins = (its_gain > gain) | (gain.isnan() & ~its_gain.isnan())
    return torch.where(column(wins, best), other, best), torch.where(wins, its_gain, gain)


@torch.no_grad()
def best_of(points: Sequence[Pixels], encoder: Encoder, objective: ObjectiveFunction) -> Pixels:
    """For each image the first of its ``points`` with the largest gain.

    Args:
        points: Attacked images, each of shape (b, *pixels).
    """
    best, gain = points[0], objective(encoder.forward(points[0]))
    for point in points[1:]:
        best, gain = better(best, gain, point, objective(encoder.forward(point)))
    return best


def gain_and_gradient(encoder: Encoder, pixels: Pixels, objective: ObjectiveFunction) -> tuple[Gain, Pixels]:
    """Gain of each image and the gradient of the sum by the pixels: one forward, one backward.

    Args:
        pixels: Current images, shape (b, *pixels).

    Returns:
        Gains, shape (b,), and gradient, shape (b, *pixels).

    Raises:
        NoGradientError: The encoder passes no gradient to its input.
    """
    (found,) = gains_and_gradients(encoder, pixels, [objective])
    return found


def gains_and_gradients(
    encoder: Encoder, pixels: Pixels, objectives: Sequence[ObjectiveFunction]
) -> list[tuple[Gain, Pixels]]:
    """Gain and gradient of each of several objectives, as :func:`gain_and_gradient`, with one forward for all.

    Raises:
        NoGradientError: The encoder passes no gradient to its input.
    """
    pixels = pixels.detach().requires_grad_()
    with torch.enable_grad():
        codes = encoder.forward(pixels)
        gains = [objective(codes) for objective in objectives]
        if not all(gain.requires_grad for gain in gains):
            raise NoGradientError(
                f"{encoder.name} passes no gradient to its input (detached, quantised or wrapped in no_grad); "
                "use the score-only attack 'square', as holdfast evaluate --black-box does everywhere"
            )
        followed = gains
        if encoder.searched is not None:
            codes = encoder.searched.forward(pixels)
            followed = [objective(codes) for objective in objectives]
        last = len(followed) - 1
        slopes = [
            torch.autograd.grad(gain.sum(), pixels, retain_graph=place < last)[0] for place, gain in enumerate(followed)
        ]
    return [(gain.detach(), slope) for gain, slope in zip(gains, slopes, strict=True)]


def assert_inside(encoder: Encoder, pixels: Pixels, attacked: Pixels, ball: Ball) -> None:
    """Assert that attacked images lie in the domain and, up to rounding, in the ball.

    Raises:
        AssertionError: An image lies outside.
    """
    domain = encoder.domain
    low, high = torch.tensor([domain.low, domain.high], dtype=attacked.dtype).tolist()
    least, most = (float(end) for end in torch.aminmax(attacked))  # a NaN is both, and fails
    assert low <= least, "an attack left the domain"
    assert most <= high, "an attack left the domain"
    assert bool(within(pixels, attacked, ball).all()), f"an attack left its {ball} ball"


def within(pixels: Pixels, attacked: Pixels, ball: Ball) -> Bool[Tensor, "b"]:
    """True for attacked images that lie in the ball around ``pixels``, up to rounding."""
    # One rounding per pixel of x + delta and of its difference with x, in proportion to their size.
    eps = torch.finfo(attacked.dtype).eps
    largest = torch.maximum(pixels.abs(), attacked.abs()).clamp_min_(ball.radius)
    slack = ball.norm(largest.mul_(2 * eps)) + 8 * eps * ball.radius
    return ball.norm(attacked - pixels) <= ball.radius + slack
