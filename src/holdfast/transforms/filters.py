"""Images without their high, or without their low, frequencies.

The discrete Fourier transform of each channel, zero frequency in the middle, is multiplied by the mask

    mask(u, v) = 1 if sqrt(u^2 + v^2) < radius else 0,   u, v = ..., -1, 0, 1, ... cycles per image

(Wang et al. 2020, https://arxiv.org/abs/1905.13545; radius 50 at 224 pixels is common). ``low-pass`` returns the magnitude
of the inverse, ``high-pass`` what the mask takes away.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool
from torch import Tensor

from holdfast.core.errors import HoldfastError
from holdfast.core.noise import Noise
from holdfast.transforms.base import ImagePixels, Transform


@final
@dataclass(frozen=True)
class LowPass(Transform):
    """Frequencies below ``radius`` cycles per image; one so large that it holds all changes nothing."""

    radius: float
    name = "low-pass"
    example = "8"

    def __post_init__(self) -> None:
        if not self.radius > 0:
            raise HoldfastError(f"the radius of low-pass must be greater than 0 cycles per image, got {self.radius}")

    def change(self, pixels: ImagePixels, noise: Noise) -> ImagePixels:
        spectrum = torch.fft.fft2(pixels)
        return torch.fft.ifft2(spectrum * (distances(pixels) < self.radius)).real.abs()


@final
@dataclass(frozen=True)
class HighPass(Transform):
    """Frequencies from ``radius`` cycles per image on, and the mean of each channel, without which nothing is in range.

    Wang et al. drop the mean as well and leave the range; ``high-pass:0`` and ``high-pass:1`` change nothing.
    """

    radius: float
    name = "high-pass"
    example = "8"

    def __post_init__(self) -> None:
        if not self.radius >= 0:
            raise HoldfastError(f"the radius of high-pass must be at least 0 cycles per image, got {self.radius}")

    def change(self, pixels: ImagePixels, noise: Noise) -> ImagePixels:
        distance = distances(pixels)
        mask: Bool[Tensor, "height width"] = (distance > 0) & (distance < self.radius)
        return pixels - torch.fft.ifft2(torch.fft.fft2(pixels) * mask).real


def distances(pixels: ImagePixels) -> Tensor:
    """Return how far each entry of the spectrum is from frequency zero, in cycles per image, shape (height, width)."""
    height, width = pixels.shape[-2:]
    vertical = torch.fft.fftfreq(height, 1 / height, device=pixels.device)
    horizontal = torch.fft.fftfreq(width, 1 / width, device=pixels.device)
    return torch.hypot(vertical[:, None], horizontal)
