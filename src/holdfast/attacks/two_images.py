"""Two images attacked as one: side by side along the first axis, each within a ball of its own."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from holdfast.core.balls import Ball
from holdfast.core.encoder import Codes, Domain, Encoder, Pixels
from holdfast.core.noise import Noise


@final
@dataclass(frozen=True)
class EachOfTwo(Ball):
    """All changes of two images of which each lies within the ball ``of`` that radius."""

    of: type[Ball]
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
    """Two images side by side to their codes side by side."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        return self.module(halves(x)).reshape(len(x), -1)


def side_by_side(first: Pixels, second: Pixels) -> Float[Tensor, "b *two"]:
    """Return the images of each pair as one input."""
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
    """Return ``encoder`` as a function of two images side by side; a new ``Encoder`` would copy the weights."""
    first, *rest = encoder.domain.shape
    paired = copy.copy(encoder)
    paired.module = Both(encoder.module).eval()
    paired.domain = Domain((2 * first, *rest), encoder.domain.low, encoder.domain.high)
    paired.__dict__.pop("fingerprint", None)
    return paired


def codes_of_both(codes: Float[Tensor, "b two"]) -> tuple[Codes, Codes]:
    """Return the codes of the first and of the second image of each pair."""
    first, second = codes.chunk(2, dim=1)
    return first, second
