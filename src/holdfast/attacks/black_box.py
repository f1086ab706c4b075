"""Black-box attacks: square search, estimated gradients (NES) and decision-based search (RayS).

They need scores or decisions of the encoder, but no gradients.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.attacks.base import Attack, Gain, better
from holdfast.attacks.gradient import random_start, stepped
from holdfast.attacks.radius_search import Goal
from holdfast.core.balls import Ball, Linf, column
from holdfast.core.encoder import Encoder, Pixels
from holdfast.core.errors import HoldfastError, OutOfRange
from holdfast.core.noise import Noise
from holdfast.core.objective import ObjectiveFunction
from holdfast.core.settings import check_positive

# The score-only attack: random search with square updates, for encoders without gradients and as a masking check.
#
# Follows Andriushchenko et al. 2020, https://arxiv.org/abs/1912.00049: propose a change on a random window whose size
# shrinks along the published schedule, keep it if the objective rises. Their l2 update moves mass between windows; ours
# writes a sign pattern into the window and rescales to the sphere, which serves every ball with one rule.

SCHEDULE = (0.001, 0.005, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8)
"""Shares of the query budget after which the window's area halves."""


@final
@dataclass(frozen=True)
class SquareAttack(Attack):
    """Maximise the objective by random search with squares; black-box."""

    queries: int = 1000
    """Forward passes per image and start."""
    area: float = 0.3
    """Fraction of the image under the first window; it shrinks along the published schedule."""
    name = "square"
    black_box = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.queries < 2 or not 0 < self.area <= 1:
            raise OutOfRange("square: queries and area", (self.queries, self.area), "at least 2 and in (0, 1]")

    @property
    def forward_passes(self) -> int:
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
    """Random vertical stripes to start from: they move convolutional networks far.

    Returns:
        One sign per channel and column, -1 or 1, shape (b, *pixels).
    """
    shape = list(pixels.shape[1:])
    if len(shape) == 3:
        shape[1] = 1
    return noise.signs(shape, pixels.dtype).expand_as(pixels).clone()


def windows(pixels: Pixels, share: float, noise: Noise) -> tuple[Tensor, Tensor]:
    """Random window of each image and one sign per channel.

    Args:
        share: Fraction of the image area that the window covers, in (0, 1].

    Returns:
        Mask of the windows and the signs, each of shape (b, *pixels).
    """
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


# The score-only attack by estimated gradients: natural evolution strategies.
#
# ``g = 1 / (2 k s) sum_i (L(x + s u_i) - L(x - s u_i)) u_i`` over ``k`` normal directions ``u_i`` estimates the
# gradient of the objective ``L`` smoothed by noise, from ``2 k`` queries; steps then are those of projected gradient
# ascent. Ilyas et al. 2018, https://arxiv.org/abs/1804.08598, section 2. Departures: noise and steps are shares of
# the radius, so that one default serves every ball, and the best point visited is returned.


@final
@dataclass(frozen=True)
class NaturalEvolution(Attack):
    """Maximise the objective along gradients estimated from its values (NES); black-box."""

    queries: int = 1000
    """Largest number of forward passes per image and start."""
    pairs: int = 10
    """Pairs of opposite points that estimate one gradient."""
    stride: float = 0.2
    """First step, as a fraction of the radius; later steps shrink to 0."""
    spread: float = 0.2
    """Distance of these points from the image, as a fraction of the radius."""
    name = "nes"
    black_box = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "pairs", "stride", "spread")
        if self.queries < 2 * self.pairs + 2:
            raise HoldfastError(
                f"nes: the start and one step take {2 * self.pairs + 2} queries with {self.pairs} pairs, got queries="
                f"{self.queries}; allow more, or fewer pairs"
            )

    @property
    def forward_passes(self) -> int:
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


# The smallest change found by asking for decisions alone: which image a search returns, no code, no distance, no
# gradient.
#
# RayS (Chen and Gu 2020, https://arxiv.org/abs/2006.12792, algorithms 2 and 3) looks for the direction of signs along
# which the decision changes soonest. It flips the signs of a block of pixels, asks whether the decision changes at
# the smallest radius known so far, and only if it does halves the way to the clean image. Blocks are halves of the
# image at first, then quarters, and so on down to single pixels, and from the whole image again.
#
# Departures. Bisection ends within a share of the radius, not at a fixed distance, for encoders give way at a
# thousandth and at a tenth of the range of pixels. And radii begin at the widest of interest instead of at infinity.

TOLERANCE = 0.01
"""Bisection ends where the radius is known to within this share of it."""


@torch.no_grad()
def radii_by_decisions(goal: Goal, widest: Ball, queries: int) -> Float[Tensor, "b"]:
    """Smallest ℓ∞ radius found from decisions alone (RayS) at which the event happens.

    Every image takes ``queries`` forward passes, one at a time. Each radius belongs to a perturbed image that was
    queried.

    Args:
        goal: Images and the event to search for.
        widest: Largest ℓ∞ ball to search.
        queries: Forward passes per image.

    Returns:
        Radii in pixel units, shape (b,); infinite where none was found.

    Raises:
        HoldfastError: ``widest`` is no ℓ∞ ball.
    """
    if not isinstance(widest, Linf):
        raise HoldfastError(f"decisions are searched along signs, in linf balls, got {widest}")
    clean, inputs = goal.pixels, goal.pixels[0].numel()
    signs = torch.ones(len(clean), inputs, dtype=clean.dtype, device=clean.device)
    radii, lower = (torch.full_like(signs[:, 0], value) for value in (widest.radius, 0.0))
    changed, bisecting = (torch.zeros_like(signs[:, 0], dtype=torch.bool) for _ in range(2))
    stage, block = (torch.zeros_like(signs[:, 0], dtype=torch.long) for _ in range(2))
    pixels = torch.arange(inputs, device=clean.device)

    def moved(signs: Float[Tensor, "b p"], radii: Float[Tensor, "b"]) -> Float[Tensor, "b ..."]:
        return goal.encoder.domain.clip(clean + column(radii, clean) * signs.view_as(clean))

    for query in range(queries):
        length = torch.div(inputs + 2**stage - 1, 2**stage, rounding_mode="floor")
        flipped = torch.div(pixels, length[:, None], rounding_mode="floor") == block[:, None]
        candidate = torch.where(flipped & ~bisecting[:, None] & (query > 0), -signs, signs)
        trial = torch.where(bisecting, (lower + radii) / 2, radii)
        happens = goal.happens(moved(candidate, trial))
        signs, radii = torch.where(happens[:, None], candidate, signs), torch.where(happens, trial, radii)
        lower = torch.where(bisecting, torch.where(happens, lower, trial), 0.0)
        changed |= happens
        wider = radii - lower > TOLERANCE * radii
        ended = ~(happens | bisecting) | ((happens | bisecting) & ~wider)
        bisecting = (happens | bisecting) & wider
        if query == 0:
            continue  # the first asks about the direction that all begin with
        block = block + ended
        full = block * length >= inputs
        stage = torch.where(full, (stage + 1) * (2**stage < inputs), stage)
        block = block.masked_fill(full, 0)
    sizes = widest.norm(moved(signs, radii) - clean)
    return sizes.masked_fill(~changed, torch.inf)
