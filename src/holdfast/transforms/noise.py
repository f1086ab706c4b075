"""Gaussian noise on every value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from holdfast.core import noise as streams
from holdfast.core.errors import HoldfastError
from holdfast.transforms.base import ImagePixels, Transform


@final
@dataclass(frozen=True)
class GaussianNoise(Transform):
    """Normal draws of standard deviation ``std`` added; the same draws at every ``std``."""

    std: float
    name = "noise"
    draws = True
    rungs = (0.0, 0.02, 0.05, 0.1, 0.2, 0.4)

    def __post_init__(self) -> None:
        if not 0 <= self.std < float("inf"):
            raise HoldfastError(f"std of noise must be a number from 0 on, got {self.std}")

    def change(self, pixels: ImagePixels, noise: streams.Noise) -> ImagePixels:
        return pixels + self.std * noise.normal(pixels.shape[1:], pixels.dtype)
