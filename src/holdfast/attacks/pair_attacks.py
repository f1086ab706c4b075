"""Attacks on pairs of images, and attacks with one radius per image.

Both wrap the encoder, so any attack on single images with one radius can be used.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from holdfast.attacks.gradient import passable
from holdfast.core.balls import Ball, column
from holdfast.core.encoder import Codes, Domain, Encoder, Pixels
from holdfast.core.errors import Conflict
from holdfast.core.noise import Noise
from holdfast.measure.population import Population


@final
@dataclass(frozen=True)
class EachOfTwo(Ball):
    """Perturbations of two images side by side, each within its own ball of the same radius."""

    of: type[Ball]
    """Ball of a single image."""
    name = "each of two"

    @property
    def alone(self) -> Ball:
        """The ball of one image."""
        return self.of(self.radius)

    def norm(self, delta: Pixels) -> Float[Tensor, "b"]:
        return self.alone.norm(halves(delta)).reshape(-1, 2).amax(1)

    def dual_norm(self, gradient: Pixels) -> Float[Tensor, "b"]:
        return self.alone.dual_norm(halves(gradient)).reshape(-1, 2).sum(1)

    def steepest(self, gradient: Pixels, spread: float = 0.0) -> Pixels:
        return self.alone.steepest(halves(gradient), spread).reshape(gradient.shape)

    def project(self, delta: Pixels) -> Pixels:
        return self.alone.project(halves(delta)).reshape(delta.shape)

    def sample(self, noise: Noise, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Pixels:
        half = (shape[0] // 2, *shape[1:])
        return torch.cat([self.alone.sample(noise.fork(which), half, dtype) for which in ("first", "second")], 1)


class Both(nn.Module):
    """Network from two images side by side to their embeddings side by side."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        return self.module(halves(x)).reshape(len(x), -1)


def side_by_side(first: Pixels, second: Pixels) -> Float[Tensor, "b *two"]:
    """Join the images of each pair to one input.

    Returns:
        Inputs, shape (b, 2 * channels, ...).
    """
    return torch.cat([first, second], 1)


def halves(pixels: Float[Tensor, "b *two"]) -> Float[Tensor, "2*b *half"]:
    """Return the two images of each pair, one after the other.

    Example:
        >>> halves(torch.tensor([[1.0, 2.0, 3.0, 4.0]]))
        tensor([[1., 2.],
                [3., 4.]])
    """
    return pixels.reshape(2 * len(pixels), pixels.shape[1] // 2, *pixels.shape[2:])


def pair_encoder(encoder: Encoder) -> Encoder:
    """Make ``encoder`` a function of two images side by side, without copying the weights."""
    first, *rest = encoder.domain.shape
    paired = copy.copy(encoder)
    paired.module = Both(encoder.module).eval()
    paired.domain = Domain((2 * first, *rest), encoder.domain.low, encoder.domain.high)
    paired.__dict__.pop("fingerprint", None)
    return paired


def codes_of_both(codes: Float[Tensor, "b two"]) -> tuple[Codes, Codes]:
    """Split the embeddings of pairs into those of the first and of the second images."""
    first, second = codes.chunk(2, dim=1)
    return first, second


def between_classes(population: Population) -> Population:
    """The same images, where an image of the same class is no other image; for ``partners`` and ``disjoint_pairs``.

    Raises:
        HoldfastError: The images have no labels, or groups that would be overruled.
    """
    if population.images.groups is not None:
        raise Conflict("by_class", "groups of images", "images without groups")
    images = copy.copy(population.images)
    images.groups = tuple(map(str, population.labels.tolist()))
    apart = copy.copy(population)
    apart.images = images
    for name in ("groups", "partners"):
        apart.__dict__.pop(name, None)
    return apart


# A radius of its own for every image: ``delta -> f(clip(x + radius * delta))`` turns each ball into the unit ball.
#
# There one attack, which knows a single radius, serves all images at once.


class UnitBallModule(nn.Module):
    """Network of an encoder as a function of ``delta`` in the unit ball."""

    def __init__(self, encoder: Encoder, centres: Pixels, radii: Float[Tensor, "b"]) -> None:
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


def on_unit_ball(encoder: Encoder, centres: Pixels, radii: Float[Tensor, "b"]) -> tuple[Encoder, UnitBallModule]:
    """Make ``encoder`` a function of ``delta`` in the unit ball around zero.

    The weights are not copied, since this is called at every radius that is tried.

    Args:
        centres: Clean images, shape (b, *pixels).
        radii: Radius of each image in pixel units, shape (b,).

    Returns:
        The encoder and its network, which also returns the pixels.
    """
    module = UnitBallModule(encoder, centres, radii).eval()
    moved = copy.copy(encoder)
    moved.module, moved.domain = module, Domain(encoder.domain.shape, -1.0, 1.0)
    moved.__dict__.pop("fingerprint", None)
    return moved, module
