"""Zoom blur: the mean of an image and of its middle, enlarged more and more."""

from __future__ import annotations

from math import ceil
from typing import final

import numpy as np
from torch.nn import functional

from holdfast.core.noise import Noise
from holdfast.transforms.base import ImagePixels
from holdfast.transforms.imagenet_c.severity import CommonCorruption


@final
class ZoomBlurC(CommonCorruption):
    """Zoom blur of ImageNet-C. As published."""

    name = "zoom-blur-c"
    at_224 = ((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03))
    at_32 = ((1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01))

    def corrupt(self, pixels: ImagePixels, noise: Noise, c: tuple[float, float]) -> ImagePixels:
        factors = np.arange(1, *c).tolist()  # whose own rounding decides whether the end is among them
        total = pixels.clone()
        for factor in factors:
            total += enlarged(pixels, factor)
        return total / (len(factors) + 1)


def enlarged(pixels: ImagePixels, factor: float) -> ImagePixels:
    """Return the middle of images enlarged to their own size, bilinear, corners kept at corners."""
    sides = pixels.shape[-2:]
    inner = [ceil(side / factor) for side in sides]
    top, left = ((side - part) // 2 for side, part in zip(sides, inner, strict=True))
    middle = pixels[:, :, top : top + inner[0], left : left + inner[1]]
    grown = [round(part * factor) for part in inner]
    large = functional.interpolate(middle, grown, mode="bilinear", align_corners=True)
    top, left = ((part - side) // 2 for side, part in zip(sides, grown, strict=True))
    return large[:, :, top : top + sides[0], left : left + sides[1]]
