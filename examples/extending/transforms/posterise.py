"""Posterised: few levels for each channel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from holdfast.extend import HoldfastError, ImagePixels, Noise, Transform


@final
@dataclass(frozen=True)
class Posterise(Transform):
    """Each value rounded to one of ``levels``; ``none`` rounds nothing."""

    levels: int | None
    name = "posterise"
    severities = (None, 64, 16, 8, 4, 2)

    def __post_init__(self) -> None:
        if self.levels is not None and self.levels < 2:
            raise HoldfastError(f"posterise needs at least 2 levels, got {self.levels}")

    def change(self, pixels: ImagePixels, noise: Noise) -> ImagePixels:
        return pixels if self.levels is None else (pixels * (self.levels - 1)).round() / (self.levels - 1)
