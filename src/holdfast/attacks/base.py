"""What every attack has in common: restarts, the best point found, and proof after the fact that it stayed inside."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from holdfast.core.balls import Ball, column
from holdfast.core.encoder import Encoder, Pixels
from holdfast.core.errors import HoldfastError
from holdfast.core.noise import Noise
from holdfast.core.objective import ObjectiveFunction
from holdfast.core.settings import Searching, Spelled, require_positive

Gain = Float[Tensor, "b"]
GRADIENT = 3
"""How many forwards a forward with its backward counts as."""


class NoGradientError(HoldfastError):
    """An attack that climbs gradients met an encoder that passes none to its input."""


@dataclass(frozen=True)
class Attack(Spelled, Searching):
    """A search inside ``ball`` around each image, intersected with the encoder's domain, for a point of high objective.

    What it finds bounds the worst case from one side only: a failed attack proves nothing.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    """Raised when the same settings give other points: results of the old ones are then computed again."""
    blind: ClassVar[bool] = False
    """Whether it looks at no gradient."""
    restarts: int = 1
    """Random starts."""

    def __post_init__(self) -> None:
        require_positive(self, "restarts")

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
    def forwards(self) -> int:
        """How many forwards of the encoder an image takes at most, a gradient counted as three: what plans are made with.

        By default one per restart; the cost of an attack that does not state it is unknown until measured.
        """
        return self.restarts

    @abstractmethod
    def search(
        self, encoder: Encoder, pixels: Pixels, objective: ObjectiveFunction, ball: Ball, noise: Noise
    ) -> tuple[Pixels, Gain]:
        """Return one run's attacked images and their gains."""


def better(best: Pixels, gain: Gain, other: Pixels, its_gain: Gain) -> tuple[Pixels, Gain]:
    """Return for each sample whichever of two points gains more; a gain of nan never wins."""
    wins = (its_gain > gain) | (gain.isnan() & ~its_gain.isnan())
    return torch.where(column(wins, best), other, best), torch.where(wins, its_gain, gain)


@torch.no_grad()
def best_of(points: Sequence[Pixels], encoder: Encoder, objective: ObjectiveFunction) -> Pixels:
    """Return for each image the first of its attacked ``points`` than which none gains more."""
    best, gain = points[0], objective(encoder.forward(points[0]))
    for point in points[1:]:
        best, gain = better(best, gain, point, objective(encoder.forward(point)))
    return best


def climb(encoder: Encoder, pixels: Pixels, objective: ObjectiveFunction) -> tuple[Gain, Pixels]:
    """Return each sample's gain and the gradient of their sum by the pixels: one forward, one backward.

    Raises:
        NoGradientError: the encoder passes no gradient to its input.
    """
    pixels = pixels.detach().requires_grad_()
    with torch.enable_grad():
        gain = objective(encoder.forward(pixels))
        if not gain.requires_grad:
            raise NoGradientError(
                f"{encoder.name} passes no gradient to its input (detached, quantised or wrapped in no_grad); "
                "use the score-only attack 'square', as holdfast evaluate --black-box does everywhere"
            )
        (gradient,) = torch.autograd.grad(gain.sum(), pixels)
    return gain.detach(), gradient


def assert_inside(encoder: Encoder, pixels: Pixels, attacked: Pixels, ball: Ball) -> None:
    """Assert that ``attacked`` lies in the domain and, up to rounding, in the ball."""
    domain = encoder.domain
    low, high = torch.tensor([domain.low, domain.high], dtype=attacked.dtype).tolist()
    least, most = (float(end) for end in torch.aminmax(attacked))  # a NaN is both, and fails
    assert low <= least, "an attack left the domain"
    assert most <= high, "an attack left the domain"
    assert bool(within(pixels, attacked, ball).all()), f"an attack left its {ball} ball"


def within(pixels: Pixels, attacked: Pixels, ball: Ball) -> Bool[Tensor, "b"]:
    """Return which of ``attacked`` lie in the ball around ``pixels``, up to rounding."""
    # One rounding per pixel of x + delta and of its difference with x, in proportion to their size.
    eps = torch.finfo(attacked.dtype).eps
    largest = torch.maximum(pixels.abs(), attacked.abs()).clamp_min_(ball.radius)
    slack = ball.norm(largest.mul_(2 * eps)) + 8 * eps * ball.radius
    return ball.norm(attacked - pixels) <= ball.radius + slack
