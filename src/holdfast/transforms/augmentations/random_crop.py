"""Shifted by a few pixels: the image padded and cut back to its size at a random place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch.nn import functional

from holdfast.core.errors import HoldfastError
from holdfast.core.noise import Noise
from holdfast.transforms.base import ImagePixels, Transform

PADDING_MODES = {"zeros": "constant", "reflect": "reflect"}


@final
@dataclass(frozen=True)
class RandomCrop(Transform):
    """Padded by ``padding`` pixels with zeros or its reflection (``padding_mode``), then cut out at a random place.

    The augmentation of residual networks on CIFAR (He et al. 2016, section 4.2).
    """

    padding: int = 4
    padding_mode: str = "zeros"
    name = "random-crop"
    draws = True

    def __post_init__(self) -> None:
        if self.padding < 1:
            raise HoldfastError(f"padding of random-crop must be at least 1 pixel, got {self.padding}")
        if self.padding_mode not in PADDING_MODES:
            raise HoldfastError(f"padding_mode of random-crop is zeros or reflect, got {self.padding_mode!r}")

    def change(self, pixels: ImagePixels, noise: Noise) -> ImagePixels:
        height, width = pixels.shape[-2:]
        if self.padding_mode == "reflect" and self.padding >= min(height, width):
            raise HoldfastError(
                f"{self} reflects {self.padding} pixels, which images of {height} x {width} do not have; "
                "choose a smaller padding or padding_mode=zeros"
            )
        padded = functional.pad(pixels, 4 * [self.padding], PADDING_MODES[self.padding_mode])
        down, across = (noise.uniform((2,)) * (2 * self.padding + 1)).long().T
        windows = padded.unfold(2, height, 1).unfold(3, width, 1)  # a view of every place
        return windows[torch.arange(len(pixels), device=pixels.device), :, down, across]
