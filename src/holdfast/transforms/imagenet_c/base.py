"""What all common corruptions share: five severities, whose parameters depend on the size of the image.

Hendrycks and Dietterich publish parameters for images of 224 pixels (ImageNet-C) and of 32 (CIFAR-10-C). An image gets the
parameters of the size that is nearer by ratio: below 85 pixels on its shorter side, sqrt(32 * 224), those of CIFAR-10-C.
Lengths are in pixels and are not scaled, unless the docstring of a corruption says so.

The published programs round down to 8 bits after each corruption, and some in between. Nothing is rounded here, so images
are half a level brighter on average. Only ``pixelate-c`` is darker, by up to half a level: Pillow rounds twice to the
nearest level, and halves up. Other differences are in each docstring.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from math import sqrt
from typing import Any, ClassVar

from holdfast.core.noise import Noise
from holdfast.transforms.base import ImagePixels, Transform

SMALL, LARGE = 32, 224


@dataclass(frozen=True)
class CommonCorruption(Transform):
    """Corruption with five severities."""

    severity: int
    """Severity, 1 (mild) to 5."""

    allowed = ("severity in [1, 5]",)

    at_224: ClassVar[tuple[Any, ...]]
    at_32: ClassVar[tuple[Any, ...]]
    """Published parameters of each severity, for images of 32 pixels."""

    def change(self, pixels: ImagePixels, noise: Noise) -> ImagePixels:
        published = self.at_32 if small(pixels) else self.at_224
        return self.corrupt(pixels, noise, published[self.severity - 1])

    @abstractmethod
    def corrupt(self, pixels: ImagePixels, noise: Noise, c: Any) -> ImagePixels:
        """Corrupt images with the parameters of this severity."""


def small(pixels: ImagePixels) -> bool:
    """Return whether these images get the parameters of CIFAR-10-C."""
    return min(pixels.shape[-2:]) < sqrt(SMALL * LARGE)
