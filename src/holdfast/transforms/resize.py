"""Made smaller and enlarged again, as a thumbnail is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from torch.nn import functional

from holdfast.core.errors import HoldfastError
from holdfast.core.noise import Noise
from holdfast.transforms.base import ImagePixels, Transform


@final
@dataclass(frozen=True)
class Resize(Transform):
    """Both sides times ``scale`` and back, bilinear, with antialiasing on the way down."""

    scale: float
    name = "resize"
    rungs = (1.0, 0.75, 0.5, 0.35, 0.25, 0.125)

    def __post_init__(self) -> None:
        if not 0 < self.scale <= 1:
            raise HoldfastError(f"scale of resize must be greater than 0 and at most 1, got {self.scale}")

    def change(self, pixels: ImagePixels, noise: Noise) -> ImagePixels:
        if self.scale == 1:
            return pixels
        sides = pixels.shape[-2:]
        small = [max(1, round(side * self.scale)) for side in sides]
        smaller = functional.interpolate(pixels, small, mode="bilinear", antialias=True)
        return functional.interpolate(smaller, list(sides), mode="bilinear")
