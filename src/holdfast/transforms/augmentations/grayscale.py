"""Colours taken away."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from holdfast.core.noise import Noise
from holdfast.transforms.augmentations.chance import check_probability, sometimes
from holdfast.transforms.augmentations.luma import luma
from holdfast.transforms.base import ImagePixels, Transform


@final
@dataclass(frozen=True)
class Grayscale(Transform):
    """Gray, still with three channels, with probability ``p`` (Chen et al. 2020); gray images stay."""

    p: float = 0.2
    name = "grayscale"
    channels = (1, 3)
    draws = True

    def __post_init__(self) -> None:
        check_probability(self.p, self.name)

    def change(self, pixels: ImagePixels, noise: Noise) -> ImagePixels:
        return sometimes(pixels, noise.uniform(()) < self.p, lambda some, _: luma(some).expand_as(some))
