"""Smoothing along both axes: a kernel and what lies beyond the border, folded into one matrix per axis.

A matrix product costs more operations than a short convolution, but none of its passes over memory, and it
serves kernels wider than the image, which some corruptions have.
"""

from __future__ import annotations

from functools import cache

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from holdfast.transforms.base import ImagePixels


def gaussian_kernel(sigma: float, truncate: float = 4.0) -> tuple[float, ...]:
    """Return the weights of a sampled Gaussian, cut off at ``truncate`` standard deviations as scipy does.

    Example:
        >>> gaussian_kernel(0.1), [round(weight, 3) for weight in gaussian_kernel(0.5, truncate=2.0)]
        ((1.0,), [0.107, 0.787, 0.107])
    """
    radius = int(truncate * sigma + 0.5)
    if radius == 0:
        return (1.0,)
    weights = torch.exp(-0.5 * (torch.arange(-radius, radius + 1, dtype=torch.float64) / sigma) ** 2)
    return tuple((weights / weights.sum()).tolist())


def folded(places: Int[Tensor, "..."], size: int, border: str) -> Int[Tensor, "..."]:
    """Return the pixel of a row of ``size`` that stands for each of ``places``, which may lie beyond its ends.

    Example:
        >>> beyond = torch.tensor([-2, -1, 0, 3, 4])
        >>> {border: folded(beyond, 4, border).tolist() for border in ("edge", "symmetric", "mirror")}
        {'edge': [0, 0, 0, 3, 3], 'symmetric': [1, 0, 0, 3, 3], 'mirror': [2, 1, 0, 3, 2]}
    """
    if border == "edge" or size == 1:
        return places.clamp(0, size - 1)
    period, last = (2 * size, 2 * size - 1) if border == "symmetric" else (2 * size - 2, 2 * size - 2)
    within = places % period
    return torch.where(within < size, within, last - within)


@cache
def smoothing_matrix(size: int, kernel: tuple[float, ...], border: str) -> Float[Tensor, "size size"]:
    """Return the matrix that correlates a row of ``size`` pixels with ``kernel``."""
    reach = len(kernel) // 2
    matrix = torch.zeros(size, size, dtype=torch.float64)
    places = torch.arange(size)[:, None] + torch.arange(-reach, reach + 1)
    weights = torch.tensor(kernel, dtype=torch.float64).expand(size, -1)
    return matrix.scatter_add_(1, folded(places, size, border), weights)


def smoothed(pixels: ImagePixels, kernel: tuple[float, ...], border: str = "edge") -> ImagePixels:
    """Return images correlated with ``kernel`` along both axes."""
    if len(kernel) == 1:
        return pixels
    down, across = (smoothing_matrix(size, kernel, border).to(pixels) for size in pixels.shape[-2:])
    return down @ pixels @ across.T


def window(pixels: ImagePixels, kernel: Float[Tensor, "side side"], border: str = "mirror") -> ImagePixels:
    """Return images correlated with a small square ``kernel`` that need not be a product of two rows."""
    reach = len(kernel) // 2
    rows, columns = (
        folded(torch.arange(-reach, side + reach, device=pixels.device), side, border) for side in pixels.shape[-2:]
    )
    framed = pixels[:, :, rows][..., columns].flatten(0, 1)[:, None]
    return functional.conv2d(framed, kernel[None, None].to(pixels)).reshape(pixels.shape)
