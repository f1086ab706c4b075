"""Less or more contrast: ``mean + factor (x - mean)`` with the mean of the whole image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from holdfast.core.errors import HoldfastError
from holdfast.core.noise import Noise
from holdfast.transforms.base import ImagePixels, Transform


@final
@dataclass(frozen=True)
class Contrast(Transform):
    """Differences from the image's mean times ``factor``: 1 changes nothing, 0 leaves plain grey."""

    factor: float
    name = "contrast"
    rungs = (1.0, 0.8, 0.6, 0.4, 0.25, 0.1)

    def __post_init__(self) -> None:
        if not 0 <= self.factor < float("inf"):
            raise HoldfastError(f"the factor of contrast must be a number from 0 on, got {self.factor}")

    def change(self, pixels: ImagePixels, noise: Noise) -> ImagePixels:
        if self.factor == 1:
            return pixels
        mean = pixels.mean((1, 2, 3), keepdim=True)
        return mean + self.factor * (pixels - mean)
