"""Fog: plasma added, and the brightest value restored."""

from __future__ import annotations

from typing import final

from holdfast.core.noise import Noise
from holdfast.transforms.base import ImagePixels
from holdfast.transforms.imagenet_c.plasma import plasma
from holdfast.transforms.imagenet_c.severity import CommonCorruption


@final
class FogC(CommonCorruption):
    """Fog of ImageNet-C. As published; the map is as large as the next power of two holds the image."""

    name = "fog-c"
    draws = True
    at_224 = ((1.5, 2.0), (2.0, 2.0), (2.5, 1.7), (2.5, 1.5), (3.0, 1.4))
    at_32 = ((0.2, 3.0), (0.5, 3.0), (0.75, 2.5), (1.0, 2.0), (1.5, 1.75))

    def corrupt(self, pixels: ImagePixels, noise: Noise, c: tuple[float, float]) -> ImagePixels:
        dense, decay = c
        most = pixels.amax((1, 2, 3), keepdim=True)
        layer = plasma(pixels.shape[2], pixels.shape[3], decay, noise, pixels.dtype)[:, None]
        return (pixels + dense * layer) * most / (most + dense)
