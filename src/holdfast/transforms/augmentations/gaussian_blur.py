"""Gaussian blur of a random width, with the kernel of a share of the image as in SimCLR.

Chen, Kornblith, Norouzi and Hinton, "A simple framework for contrastive learning of visual representations", 2020,
https://arxiv.org/abs/2002.05709, appendix A.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import ceil
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.core.errors import HoldfastError
from holdfast.core.noise import Noise
from holdfast.transforms.augmentations.chance import check_probability, sometimes
from holdfast.transforms.base import ImagePixels, Transform
from holdfast.transforms.smoothing import folded


@final
@dataclass(frozen=True)
class GaussianBlur(Transform):
    """Blurred with probability ``p`` by ``sigma_min`` to ``sigma_max`` pixels; borders are reflected.

    The kernel has ``2 r + 1`` taps, ``r`` half of ``kernel`` times the shorter side, rounded down: with the default, an
    image below 20 pixels stays as it is. ``kernel=1`` cuts nothing off.
    """

    p: float = 0.5
    sigma_min: float = 0.1
    sigma_max: float = 2.0
    kernel: float = 0.1
    name = "gaussian-blur"
    draws = True

    def __post_init__(self) -> None:
        check_probability(self.p, self.name)
        if not 0 < self.sigma_min <= self.sigma_max < float("inf"):
            raise HoldfastError(
                "sigmas of gaussian-blur must satisfy 0 < sigma_min <= sigma_max, "
                f"got {self.sigma_min} and {self.sigma_max}"
            )
        if not 0 < self.kernel <= 1:
            raise HoldfastError(f"kernel of gaussian-blur is a share of the shorter side in 0..1, got {self.kernel}")

    def change(self, pixels: ImagePixels, noise: Noise) -> ImagePixels:
        # Beyond 6 standard deviations lies nothing that single precision would keep.
        reach = min(int(self.kernel * min(pixels.shape[-2:])) // 2, ceil(6 * self.sigma_max))
        chance, width = noise.uniform((2,), torch.float64).T
        sigmas = self.sigma_min + (self.sigma_max - self.sigma_min) * width
        return sometimes(pixels, chance < self.p, lambda some, rows: blurred(some, sigmas[rows], reach))


def blurred(pixels: ImagePixels, sigmas: Float[Tensor, "b"], reach: int) -> ImagePixels:
    """Return each image blurred by its own sigma, with kernels that reach ``reach`` pixels to each side."""
    if reach == 0:
        return pixels
    offsets = torch.arange(-reach, reach + 1, dtype=sigmas.dtype, device=sigmas.device)
    kernels = torch.softmax(-0.5 * (offsets / sigmas[:, None]) ** 2, 1).to(pixels)
    down, across = (
        (kernels @ _shifts(side, reach).to(pixels).flatten(1)).unflatten(1, (side, side)) for side in pixels.shape[-2:]
    )
    # One product for all channels: their rows below one another, then their columns side by side.
    wide = (pixels.flatten(1, 2) @ across.mT).reshape(pixels.shape)
    return down[:, None] @ wide


@cache
def _shifts(side: int, reach: int) -> Float[Tensor, "taps side side"]:
    """Return for each tap the matrix that reads a row of pixels so many places further on, reflected at its ends."""
    taps = torch.arange(-reach, reach + 1)[:, None]
    places = folded(torch.arange(side) + taps, side, "mirror")
    return torch.nn.functional.one_hot(places, side).to(torch.float32)
