"""Bright values inverted, as on overexposed film."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch

from holdfast.core.errors import HoldfastError
from holdfast.core.noise import Noise
from holdfast.transforms.augmentations.chance import check_probability, sometimes
from holdfast.transforms.base import ImagePixels, Transform


@final
@dataclass(frozen=True)
class Solarize(Transform):
    """Values ``v`` from ``threshold`` on become ``1 - v``, with probability ``p`` (Grill et al. 2020)."""

    p: float = 0.2
    threshold: float = 0.5
    name = "solarize"
    draws = True

    def __post_init__(self) -> None:
        check_probability(self.p, self.name)
        if not 0 <= self.threshold <= 1:
            raise HoldfastError(f"threshold of solarize must lie in 0..1, got {self.threshold}")

    def change(self, pixels: ImagePixels, noise: Noise) -> ImagePixels:
        return sometimes(pixels, noise.uniform(()) < self.p, lambda some, _: solarized(some, self.threshold))


def solarized(pixels: ImagePixels, threshold: float) -> ImagePixels:
    """Return images with the values from ``threshold`` on inverted.

    Example:
        >>> solarized(torch.tensor([[[[0.25, 0.5, 0.75]]]]), 0.6).tolist()
        [[[[0.25, 0.5, 0.25]]]]
    """
    return torch.where(pixels < threshold, pixels, 1 - pixels)
