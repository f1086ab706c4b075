"""Motion blur: weights of half a Gaussian along a line, as ImageMagick's ``motion_blur`` computes it.

out(p) = sum_i k_i x(p + round(i (cos a, sin a))),   k_i ~ exp(-i^2 / (2 sigma^2)),   i = 0..2 radius
"""

from __future__ import annotations

from math import ceil, cos, radians, sin
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from holdfast.core.noise import Noise
from holdfast.transforms.base import ImagePixels
from holdfast.transforms.imagenet_c.severity import CommonCorruption


@final
class MotionBlurC(CommonCorruption):
    """Motion blur of ImageNet-C, at an angle within 45 degrees of the horizontal. As published."""

    name = "motion-blur-c"
    draws = True
    at_224 = ((10, 3.0), (15, 5.0), (15, 8.0), (15, 12.0), (20, 15.0))
    at_32 = ((6, 1.0), (6, 1.5), (6, 2.0), (8, 2.0), (9, 2.5))

    def corrupt(self, pixels: ImagePixels, noise: Noise, c: tuple[int, float]) -> ImagePixels:
        radius, sigma = c
        return moved(pixels, radius, sigma, 90 * noise.uniform((), torch.float64) - 45)


def moved(pixels: ImagePixels, radius: int, sigma: float, degrees: Float[Tensor, "b"]) -> ImagePixels:
    """Return the images blurred along lines at ``degrees``; beyond the border its pixels are repeated."""
    length, (height, width) = 2 * radius, pixels.shape[-2:]
    weights = torch.exp(-0.5 * (torch.arange(length + 1, dtype=torch.float64) / sigma) ** 2)
    share = (weights / weights.sum()).tolist()
    framed = functional.pad(pixels, [length] * 4, mode="replicate")
    blurred = torch.zeros_like(pixels)
    # One image at a time: each has its own line.
    for image, wide, angle in zip(blurred, framed, degrees.tolist(), strict=True):
        across, along = sin(radians(angle)), cos(radians(angle))
        for step, weight in enumerate(share):
            top, left = length + ceil(step * across - 0.5), length + ceil(step * along - 0.5)
            image.add_(wide[:, top : top + height, left : left + width], alpha=weight)
    return blurred
