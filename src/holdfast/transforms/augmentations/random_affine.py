"""Turned, scaled and shifted a little, as handwriting is."""

from __future__ import annotations

from dataclasses import dataclass
from math import radians
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.core.errors import HoldfastError
from holdfast.core.noise import Noise
from holdfast.transforms.base import ImagePixels, Transform
from holdfast.transforms.sampling import centred, sampled


@final
@dataclass(frozen=True)
class RandomAffine(Transform):
    """Turned by up to ``degrees``, scaled by up to ``scale`` and shifted by up to ``translate`` of each side.

    About the middle, bilinear, with black around the image. The defaults are those of the built-in digit encoders.
    """

    degrees: float = 15.0
    scale: float = 0.15
    translate: float = 0.0625
    name = "random-affine"
    draws = True

    def __post_init__(self) -> None:
        if not 0 <= self.degrees <= 180:
            raise HoldfastError(f"degrees of random-affine must lie in 0..180, got {self.degrees}")
        if not 0 <= self.scale < 1:
            raise HoldfastError(f"scale of random-affine must lie in 0..1, below 1, got {self.scale}")
        if not 0 <= self.translate <= 1:
            raise HoldfastError(f"translate of random-affine is a share of the side in 0..1, got {self.translate}")

    def change(self, pixels: ImagePixels, noise: Noise) -> ImagePixels:
        height, width = pixels.shape[-2:]
        limits = [radians(self.degrees), self.scale, self.translate * height, self.translate * width]
        draws = (2 * noise.uniform((4,), torch.float64) - 1) * torch.tensor(limits, device=pixels.device)
        return moved(pixels, draws[:, 0], 1 + draws[:, 1], draws[:, 2:])


def moved(
    pixels: ImagePixels, angles: Float[Tensor, "b"], scales: Float[Tensor, "b"], shifts: Float[Tensor, "b 2"]
) -> ImagePixels:
    """Return images turned clockwise by ``angles`` in radians and scaled about the middle, then shifted (down, right)."""
    rows, columns = (axis.to(pixels) for axis in centred(pixels))
    down, across = shifts.T[..., None, None].to(pixels)
    rows, columns = rows - down, columns - across
    cosine, sine = ((side / scales)[:, None, None].to(pixels) for side in (angles.cos(), angles.sin()))
    height, width = pixels.shape[-2:]
    at = cosine * rows - sine * columns + (height - 1) / 2, cosine * columns + sine * rows + (width - 1) / 2
    return sampled(pixels, *at, beyond="zeros")
