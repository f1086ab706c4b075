"""Pixelation: shrunk and enlarged, each pixel the mean of those whose centres its box holds."""

from __future__ import annotations

from functools import cache
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.core.noise import Noise
from holdfast.transforms.base import ImagePixels
from holdfast.transforms.imagenet_c.severity import CommonCorruption


@final
class PixelateC(CommonCorruption):
    """Pixelation of ImageNet-C by the boxes of Pillow. As published, but for Pillow's rounding after each of two passes.

    Halves are rounded up there, so that photographs are 0.06 to 0.5 levels darker here on average.
    """

    name = "pixelate-c"
    at_224 = (0.6, 0.5, 0.4, 0.3, 0.25)
    at_32 = (0.95, 0.9, 0.85, 0.75, 0.65)

    def corrupt(self, pixels: ImagePixels, noise: Noise, c: float) -> ImagePixels:
        down, across = (there_and_back(side, max(1, int(side * c))).to(pixels) for side in pixels.shape[-2:])
        return down @ pixels @ across.T


@cache
def there_and_back(size: int, few: int) -> Float[Tensor, "size size"]:
    """Return the matrix that makes a row of ``size`` pixels one of ``few``, and again one of ``size``."""
    return boxes(few, size) @ boxes(size, few)


def boxes(size: int, wanted: int) -> Float[Tensor, "wanted size"]:
    """Return the matrix that makes ``wanted`` pixels of ``size``.

    Example:
        >>> boxes(4, 2).tolist()
        [[0.5, 0.5, 0.0, 0.0], [0.0, 0.0, 0.5, 0.5]]
    """
    scale = size / wanted
    centre = (torch.arange(wanted, dtype=torch.float64)[:, None] + 0.5) * scale
    away = (torch.arange(size) + 0.5 - centre) / max(scale, 1.0)
    inside = ((away > -0.5) & (away <= 0.5)).double()
    return inside / inside.sum(1, keepdim=True)
