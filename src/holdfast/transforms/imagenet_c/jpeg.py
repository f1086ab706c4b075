"""JPEG compression."""

from __future__ import annotations

from typing import final

from holdfast.core.noise import Noise
from holdfast.transforms.base import ImagePixels
from holdfast.transforms.imagenet_c.severity import CommonCorruption
from holdfast.transforms.jpeg import compressed


@final
class JpegCompressionC(CommonCorruption):
    """JPEG compression of ImageNet-C by Pillow. As published."""

    name = "jpeg-compression-c"
    channels = (1, 3)
    at_224 = (25, 18, 15, 10, 7)
    at_32 = (80, 65, 58, 50, 40)

    def corrupt(self, pixels: ImagePixels, noise: Noise, c: int) -> ImagePixels:
        return compressed(pixels, c)
