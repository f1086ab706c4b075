"""Gaussian blur, as wide as a share of the image, so that one ladder serves images of every size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from holdfast.core.errors import HoldfastError
from holdfast.core.noise import Noise
from holdfast.transforms.base import ImagePixels, Transform
from holdfast.transforms.smoothing import gaussian_kernel, smoothed


@final
@dataclass(frozen=True)
class Blur(Transform):
    """Gaussian blur with a standard deviation of ``sigma`` times the shorter side, the border repeated."""

    sigma: float
    name = "blur"
    rungs = (0.0, 0.0025, 0.005, 0.01, 0.02, 0.04)

    def __post_init__(self) -> None:
        if not 0 <= self.sigma <= 1:
            raise HoldfastError(f"sigma of blur is a share of the shorter side and must lie in 0..1, got {self.sigma}")

    def change(self, pixels: ImagePixels, noise: Noise) -> ImagePixels:
        return smoothed(pixels, gaussian_kernel(self.sigma * min(pixels.shape[-2:])))
