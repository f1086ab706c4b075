"""Gamma correction: below 1 brightens, above 1 darkens.

    table[v] = floor(255 (v / 255)^gamma),   v = 0..255

as Zhong et al. 2022 (https://arxiv.org/abs/2206.05259) corrupt 8-bit images: 0.2 keeps 120 of the 256 levels, 5 keeps 119.
A value between two levels, which no 8-bit image holds, lies between their entries in the same proportion: so the table
decides alone where there are levels, and ``gamma:1`` changes nothing anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.core.errors import HoldfastError
from holdfast.core.noise import Noise
from holdfast.transforms.base import ImagePixels, Transform

ROUNDING = 1e-4
"""Nearer to a level than this, in levels, is that level: float32 holds v / 255 no better than to 1e-5."""


@final
@dataclass(frozen=True)
class Gamma(Transform):
    """Each value to the power ``gamma``, rounded down to 8 bits."""

    gamma: float
    name = "gamma"

    def __post_init__(self) -> None:
        if not 0 < self.gamma < float("inf"):
            raise HoldfastError(f"gamma must be a number greater than 0, got {self.gamma}")

    def change(self, pixels: ImagePixels, noise: Noise) -> ImagePixels:
        level = pixels.double() * 255
        level = torch.where((level - level.round()).abs() < ROUNDING, level.round(), level).clamp(0, 255)
        entries = table(self.gamma).to(pixels.device)
        below, above = entries[level.floor().long()], entries[level.ceil().long()]
        return (torch.lerp(below, above, level - level.floor()) / 255).to(pixels.dtype)


@cache
def table(gamma: float) -> Float[Tensor, "256"]:
    """Return what becomes of each 8-bit level.

    Example:
        >>> len(table(0.2).unique()), len(table(5.0).unique()), len(table(2.5).unique()), len(table(0.1).unique())
        (120, 119, 172, 79)
    """
    return (255 * (torch.arange(256, dtype=torch.float64) / 255) ** gamma).floor()
