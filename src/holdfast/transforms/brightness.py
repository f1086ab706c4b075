"""Brighter or darker: ``x + amount``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from holdfast.core.errors import HoldfastError
from holdfast.core.noise import Noise
from holdfast.transforms.base import ImagePixels, Transform


@final
@dataclass(frozen=True)
class Brightness(Transform):
    """``amount`` added to each value, in the range from 0 to 1; a negative one darkens."""

    amount: float
    name = "brightness"
    rungs = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5)

    def __post_init__(self) -> None:
        if not -1 <= self.amount <= 1:
            raise HoldfastError(f"the amount of brightness must lie in -1..1, got {self.amount}")

    def change(self, pixels: ImagePixels, noise: Noise) -> ImagePixels:
        return pixels + self.amount
