"""Turned by a few degrees, as a photograph from the hand or a page from the scanner is."""

from __future__ import annotations

from dataclasses import dataclass
from math import cos, radians, sin
from typing import final

from holdfast.core.errors import HoldfastError
from holdfast.core.noise import Noise
from holdfast.transforms.base import ImagePixels, Transform
from holdfast.transforms.sampling import mapped


@final
@dataclass(frozen=True)
class Rotation(Transform):
    """Turned counter-clockwise about the middle, bilinear, the corners black."""

    degrees: float
    name = "rotation"
    rungs = (0.0, 1.0, 2.0, 5.0, 10.0, 20.0)

    def __post_init__(self) -> None:
        if not -360 <= self.degrees <= 360:
            raise HoldfastError(f"degrees of rotation must lie in -360..360, got {self.degrees}")

    def change(self, pixels: ImagePixels, noise: Noise) -> ImagePixels:
        if self.degrees == 0:  # which interpolation would blur by its rounding
            return pixels
        c, s = cos(radians(self.degrees)), sin(radians(self.degrees))
        return mapped(pixels, (c, s, -s, c))
