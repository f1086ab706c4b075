"""Blur by a fixed kernel: a Gaussian, or the disk that a lens out of focus makes of a point."""

from __future__ import annotations

from functools import cache
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.core.noise import Noise
from holdfast.transforms.base import ImagePixels
from holdfast.transforms.imagenet_c.severity import CommonCorruption
from holdfast.transforms.smoothing import gaussian_kernel, smoothed, window


@final
class GaussianBlurC(CommonCorruption):
    """Gaussian blur, one of the four extra corruptions of ImageNet-C. As published."""

    name = "gaussian-blur-c"
    at_224 = (1.0, 2.0, 3.0, 4.0, 6.0)
    at_32 = (0.4, 0.6, 0.7, 0.8, 1.0)

    def corrupt(self, pixels: ImagePixels, noise: Noise, c: float) -> ImagePixels:
        return smoothed(pixels, gaussian_kernel(c))


@final
class DefocusBlurC(CommonCorruption):
    """Convolution with a disk of ImageNet-C. As published."""

    name = "defocus-blur-c"
    at_224 = ((3.0, 0.1), (4.0, 0.5), (6.0, 0.5), (8.0, 0.5), (10.0, 0.5))
    at_32 = ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1.0, 0.2), (1.5, 0.1))

    def corrupt(self, pixels: ImagePixels, noise: Noise, c: tuple[float, float]) -> ImagePixels:
        return window(pixels, disk(*c))


@cache
def disk(radius: float, blur: float) -> Float[Tensor, "side side"]:
    """Return a disk of ``radius`` pixels whose rim is softened by a Gaussian of ``blur`` pixels, with sum 1."""
    reach = max(8, int(radius))
    places = torch.arange(-reach, reach + 1, dtype=torch.float64)
    inside = (places[:, None] ** 2 + places**2 <= radius**2).double()
    wide = 1 if radius <= 8 else 2  # the reach of the softening, fixed by the publication
    weights = torch.exp(-0.5 * (torch.arange(-wide, wide + 1, dtype=torch.float64) / blur) ** 2)
    soft = smoothed((inside / inside.sum())[None, None], tuple((weights / weights.sum()).tolist()), "mirror")[0, 0]
    keep = int(min(reach, radius + wide))
    return soft[reach - keep : reach + keep + 1, reach - keep : reach + keep + 1]
