"""The middle of the image cut out and enlarged, or the whole image framed in black."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from holdfast.core.errors import HoldfastError
from holdfast.core.noise import Noise
from holdfast.transforms.base import ImagePixels, Transform
from holdfast.transforms.sampling import mapped


@final
@dataclass(frozen=True)
class Crop(Transform):
    """``share`` of each side cut away and the rest enlarged; a negative one pads by so much with black."""

    share: float
    name = "crop"
    rungs = (0.0, 0.02, 0.05, 0.1, 0.2, 0.4)

    def __post_init__(self) -> None:
        if not -1 <= self.share < 1:
            raise HoldfastError(f"share of crop must lie in -1..1, below 1, got {self.share}")

    def change(self, pixels: ImagePixels, noise: Noise) -> ImagePixels:
        if self.share == 0:  # which interpolation would blur by its rounding
            return pixels
        return mapped(pixels, (1 - self.share, 0.0, 0.0, 1 - self.share))
