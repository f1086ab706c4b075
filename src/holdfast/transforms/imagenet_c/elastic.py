"""Elastic transform: a random affine map, then a smooth random displacement of every pixel."""

from __future__ import annotations

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.core.noise import Noise
from holdfast.transforms.base import ImagePixels
from holdfast.transforms.imagenet_c.severity import LARGE, SMALL, CommonCorruption, small
from holdfast.transforms.sampling import mirrored, sampled, symmetric
from holdfast.transforms.smoothing import gaussian_kernel, smoothed


@final
class ElasticTransformC(CommonCorruption):
    """Elastic transform of ImageNet-C. As published; lengths scale with the image, as its tables are shares of the size."""

    name = "elastic-transform-c"
    draws = True
    at_224 = tuple(
        (244 * alpha, 244 * sigma, 244 * corner)  # their slip, for 224
        for alpha, sigma, corner in (
            (2.0, 0.7, 0.1),
            (2.0, 0.08, 0.2),
            (0.05, 0.01, 0.02),
            (0.07, 0.01, 0.02),
            (0.12, 0.01, 0.02),
        )
    )
    at_32 = tuple(
        (32 * alpha, 32 * sigma, 32 * corner)
        for alpha, sigma, corner in (
            (0.0, 0.0, 0.08),
            (0.05, 0.2, 0.07),
            (0.08, 0.06, 0.06),
            (0.1, 0.04, 0.05),
            (0.1, 0.03, 0.03),
        )
    )

    def corrupt(self, pixels: ImagePixels, noise: Noise, c: tuple[float, float, float]) -> ImagePixels:
        height, width = pixels.shape[-2:]
        scale = min(height, width) / (SMALL if small(pixels) else LARGE)
        alpha, sigma, corner = (scale * length for length in c)
        corners = 2 * noise.fork("corners").uniform((3, 2), torch.float64) - 1
        turned = affine(pixels, corner * corners)
        shifts = 2 * noise.fork("shifts").uniform((2, height, width), pixels.dtype) - 1
        shifts = alpha * smoothed(shifts, gaussian_kernel(sigma, truncate=3.0), "symmetric")
        rows = torch.arange(height, device=pixels.device)[:, None] + shifts[:, 1]
        columns = torch.arange(width, device=pixels.device) + shifts[:, 0]
        return sampled(turned, symmetric(rows, height), symmetric(columns, width))


def affine(pixels: ImagePixels, moves: Float[Tensor, "b 3 2"]) -> ImagePixels:
    """Return images under the affine maps that move three corners of a square by ``moves``, given as (x, y)."""
    height, width = pixels.shape[-2:]
    middle = torch.tensor([height // 2, width // 2], dtype=torch.float64)
    third = min(height, width) // 3
    directions = torch.tensor([[1, 1], [1, -1], [-1, -1]], dtype=torch.float64)
    corners = (middle + third * directions).to(moves.device)
    ones = torch.ones(len(moves), 3, 1, dtype=torch.float64, device=moves.device)
    # The inverse map: from where a pixel goes to where it comes from.
    back = torch.linalg.solve(torch.cat([corners + moves, ones], 2), corners.expand_as(moves))
    x = torch.arange(width, dtype=torch.float64, device=moves.device)
    y = torch.arange(height, dtype=torch.float64, device=moves.device)[:, None]
    columns, rows = (
        back[:, 0, axis, None, None] * x + back[:, 1, axis, None, None] * y + back[:, 2, axis, None, None]
        for axis in range(2)
    )
    return sampled(pixels, mirrored(rows, height), mirrored(columns, width))
