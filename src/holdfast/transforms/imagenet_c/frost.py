"""Frost: an image seen through crystals on a window."""

from __future__ import annotations

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.core.noise import Noise
from holdfast.transforms.base import ImagePixels
from holdfast.transforms.imagenet_c.plasma import plasma
from holdfast.transforms.imagenet_c.severity import CommonCorruption

TINT = (0.86, 0.94, 1.0)
"""Red, green and blue of ice."""


@final
class FrostC(CommonCorruption):
    """Frost as in ImageNet-C, whose photographs of frost are replaced by crystals drawn anew for each image."""

    name = "frost-c"
    draws = True
    at_224 = ((1.0, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75))
    at_32 = ((1.0, 0.2), (1.0, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))

    def corrupt(self, pixels: ImagePixels, noise: Noise, c: tuple[float, float]) -> ImagePixels:
        tint = torch.tensor(TINT if pixels.shape[1] == 3 else [sum(TINT) / 3] * pixels.shape[1]).to(pixels)
        layer = crystals(pixels.shape[2], pixels.shape[3], noise, pixels.dtype)
        return c[0] * pixels + c[1] * tint[:, None, None] * layer[:, None]


def crystals(height: int, width: int, noise: Noise, dtype: torch.dtype) -> Float[Tensor, "b height width"]:
    """Return fine ridges where two maps cross their middle, denser where a third is high."""
    maps = [plasma(height, width, decay, noise.fork(part), dtype) for part, decay in enumerate((1.6, 1.4, 2.0))]
    ridges = torch.maximum(*((1 - (2 * map - 1).abs()) ** 3 for map in maps[:2]))
    return 0.4 + 0.6 * ridges * (0.4 + 0.6 * maps[2])
