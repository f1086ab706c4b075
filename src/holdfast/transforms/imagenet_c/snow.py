"""Snow: enlarged bright points of noise, blurred along their fall, over a whitened image."""

from __future__ import annotations

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.core.noise import Noise
from holdfast.transforms.base import ImagePixels
from holdfast.transforms.imagenet_c.motion_blur import moved
from holdfast.transforms.imagenet_c.severity import CommonCorruption
from holdfast.transforms.imagenet_c.zoom_blur import enlarged

LUMA = (0.299, 0.587, 0.114)


@final
class SnowC(CommonCorruption):
    """Snow of ImageNet-C. As published."""

    name = "snow-c"
    draws = True
    at_224 = (
        (0.1, 0.3, 3.0, 0.5, 10, 4.0, 0.8),
        (0.2, 0.3, 2.0, 0.5, 12, 4.0, 0.7),
        (0.55, 0.3, 4.0, 0.9, 12, 8.0, 0.7),
        (0.55, 0.3, 4.5, 0.85, 12, 8.0, 0.65),
        (0.55, 0.3, 2.5, 0.85, 12, 12.0, 0.55),
    )
    at_32 = (
        (0.1, 0.2, 1.0, 0.6, 8, 3.0, 0.95),
        (0.1, 0.2, 1.0, 0.5, 10, 4.0, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4.0, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6.0, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12.0, 0.8),
    )

    def corrupt(
        self, pixels: ImagePixels, noise: Noise, c: tuple[float, float, float, float, int, float, float]
    ) -> ImagePixels:
        mean, spread, zoom, threshold, radius, sigma, kept = c
        # In double precision, so that rounding, which may differ between batches, moves no flake across the threshold.
        flakes = mean + spread * noise.fork("flakes").normal((1, *pixels.shape[2:]), torch.float64)
        flakes = enlarged(flakes, zoom)
        flakes = torch.where(flakes < threshold, torch.zeros_like(flakes), flakes).clamp(0, 1)
        fallen = moved(flakes, radius, sigma, 90 * noise.fork("angle").uniform((), torch.float64) - 135).to(pixels)
        whitened = torch.maximum(pixels, luma(pixels) * 1.5 + 0.5)
        return kept * pixels + (1 - kept) * whitened + fallen + fallen.rot90(2, (2, 3))


def luma(pixels: ImagePixels) -> Float[Tensor, "b 1 height width"]:
    """Return the brightness of colours, or the mean of other channels than three."""
    if pixels.shape[1] != 3:
        return pixels.mean(1, keepdim=True)
    return (pixels * torch.tensor(LUMA, dtype=torch.float64).to(pixels)[:, None, None]).sum(1, keepdim=True)
