"""Contrast, brightness and saturation.

contrast    mean + c (x - mean), with the mean of each channel
brightness  the value V of HSV plus c
saturate    the saturation S of HSV times c plus d
"""

from __future__ import annotations

from typing import final

import torch

from holdfast.core.noise import Noise
from holdfast.transforms.base import ImagePixels
from holdfast.transforms.imagenet_c.severity import CommonCorruption


@final
class ContrastC(CommonCorruption):
    """Lower contrast of ImageNet-C. As published."""

    name = "contrast-c"
    at_224 = (0.4, 0.3, 0.2, 0.1, 0.05)
    at_32 = (0.75, 0.5, 0.4, 0.3, 0.15)

    def corrupt(self, pixels: ImagePixels, noise: Noise, c: float) -> ImagePixels:
        means = pixels.mean((2, 3), keepdim=True)
        return (pixels - means) * c + means


@final
class BrightnessC(CommonCorruption):
    """Higher value in HSV of ImageNet-C. As published."""

    name = "brightness-c"
    at_224 = (0.1, 0.2, 0.3, 0.4, 0.5)
    at_32 = (0.05, 0.1, 0.15, 0.2, 0.3)

    def corrupt(self, pixels: ImagePixels, noise: Noise, c: float) -> ImagePixels:
        value = pixels.amax(1, keepdim=True)
        brighter = (value + c).clamp(max=1)
        # With hue and saturation kept, all channels grow as the largest does; black has none to keep.
        return torch.where(value > 0, pixels * (brighter / value.clamp(min=1e-9)), brighter)


@final
class SaturateC(CommonCorruption):
    """Other saturation in HSV, one of the four extra corruptions of ImageNet-C. As published; gray images stay.

    Grey pixels of colour images have the hue of red, as published, and show it at severities 4 and 5.
    """

    name = "saturate-c"
    channels = (1, 3)
    at_224 = ((0.3, 0.0), (0.1, 0.0), (2.0, 0.0), (5.0, 0.1), (20.0, 0.2))
    at_32 = ((0.3, 0.0), (0.1, 0.0), (1.5, 0.0), (2.0, 0.1), (2.5, 0.2))

    def corrupt(self, pixels: ImagePixels, noise: Noise, c: tuple[float, float]) -> ImagePixels:
        if pixels.shape[1] != 3:
            return pixels
        value = pixels.amax(1, keepdim=True)
        range_ = value - pixels.amin(1, keepdim=True)
        saturation = range_ / value.clamp(min=1e-9)
        target = (saturation * c[0] + c[1]).clamp(0, 1)
        # How far below the value each channel lies, as a share of the channel that lies lowest.
        red = torch.tensor([0.0, 1.0, 1.0]).to(pixels)[:, None, None]
        below = torch.where(range_ > 0, (value - pixels) / range_.clamp(min=1e-9), red)
        return value * (1 - target * below)
