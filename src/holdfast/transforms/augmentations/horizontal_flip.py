"""Mirrored left to right, or not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from holdfast.core.noise import Noise
from holdfast.transforms.augmentations.chance import check_probability, sometimes
from holdfast.transforms.base import ImagePixels, Transform


@final
@dataclass(frozen=True)
class HorizontalFlip(Transform):
    """Mirrored left to right with probability ``p``."""

    p: float = 0.5
    name = "horizontal-flip"
    draws = True

    def __post_init__(self) -> None:
        check_probability(self.p, self.name)

    def change(self, pixels: ImagePixels, noise: Noise) -> ImagePixels:
        return sometimes(pixels, noise.uniform(()) < self.p, lambda some, _: some.flip(-1))
