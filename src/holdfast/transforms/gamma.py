"""Gamma correction, ``x ** gamma``: below 1 brightens, above 1 darkens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from holdfast.core.errors import HoldfastError
from holdfast.core.noise import Noise
from holdfast.transforms.base import ImagePixels, Transform


@final
@dataclass(frozen=True)
class Gamma(Transform):
    """Each value to the power ``gamma``."""

    gamma: float
    name = "gamma"

    def __post_init__(self) -> None:
        if not self.gamma > 0:
            raise HoldfastError(f"gamma must be greater than 0, got {self.gamma}")

    def change(self, pixels: ImagePixels, noise: Noise) -> ImagePixels:
        return pixels**self.gamma
