"""Low-pass and high-pass filters, bilinear sampling between pixels, and smoothing along both axes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from holdfast.core.noise import Noise
from holdfast.transforms.base import ImagePixels, Transform

# Images without their high, or without their low, frequencies.
#
# The discrete Fourier transform of each channel, zero frequency in the middle, is multiplied by the mask
#
#     mask(u, v) = 1 if sqrt(u^2 + v^2) < radius else 0,   u, v = ..., -1, 0, 1, ... cycles per image
#
# (Wang et al. 2020, https://arxiv.org/abs/1905.13545; radius 50 at 224 pixels is common). ``low-pass`` returns the
# magnitude of the inverse, ``high-pass`` what the mask takes away.


@final
@dataclass(frozen=True)
class LowPass(Transform):
    """Keep frequencies below ``radius``."""

    radius: float
    """Radius of the kept low frequencies, in cycles per image."""
    name = "low-pass"
    allowed = ("radius in (0, inf]",)
    example = "8"

    def change(self, pixels: ImagePixels, noise: Noise) -> ImagePixels:
        spectrum = torch.fft.fft2(pixels)
        return torch.fft.ifft2(spectrum * (distances(pixels) < self.radius)).real.abs()


@final
@dataclass(frozen=True)
class HighPass(Transform):
    """Keep frequencies from ``radius`` on, and the mean of each channel.

    Departure: Wang et al. drop the mean as well and leave the range. ``high-pass:0`` and ``high-pass:1`` change
    nothing.
    """

    radius: float
    """Radius below which frequencies are removed, in cycles per image."""
    name = "high-pass"
    allowed = ("radius in [0, inf]",)
    example = "8"

    def change(self, pixels: ImagePixels, noise: Noise) -> ImagePixels:
        distance = distances(pixels)
        mask: Bool[Tensor, "height width"] = (distance > 0) & (distance < self.radius)
        return pixels - torch.fft.ifft2(torch.fft.fft2(pixels) * mask).real


def distances(pixels: ImagePixels) -> Tensor:
    """Frequency of each entry of the spectrum in cycles per image, shape (height, width)."""
    height, width = pixels.shape[-2:]
    vertical = torch.fft.fftfreq(height, 1 / height, device=pixels.device)
    horizontal = torch.fft.fftfreq(width, 1 / width, device=pixels.device)
    return torch.hypot(vertical[:, None], horizontal)


Places = Float[Tensor, "#b #height #width"]


def sampled(pixels: ImagePixels, rows: Places, columns: Places, beyond: str = "edge") -> ImagePixels:
    """Return the values of images at fractional ``rows`` and ``columns``.

    Args:
        pixels: the images.
        rows: where to read, 0 at the centre of the first row.
        columns: the same for columns. Each may be one value wide along the other's axis.
        beyond: what is there outside of the image: "edge" (its nearest pixel) or "zeros" (black).
    """
    height, width = pixels.shape[-2:]
    across, down = ((2 * columns + 1) / width - 1).to(pixels), ((2 * rows + 1) / height - 1).to(pixels)
    share = torch.stack(torch.broadcast_tensors(across, down), -1)
    padding = {"edge": "border", "zeros": "zeros"}[beyond]
    grid = share.expand(len(pixels), -1, -1, -1)
    return functional.grid_sample(pixels, grid, mode="bilinear", padding_mode=padding, align_corners=False)


def centred(pixels: ImagePixels) -> tuple[Tensor, Tensor]:
    """Rows, shape (height, 1), and columns, shape (1, width), relative to the middle."""
    height, width = pixels.shape[-2:]
    rows = torch.arange(height, dtype=torch.float64, device=pixels.device) - (height - 1) / 2
    columns = torch.arange(width, dtype=torch.float64, device=pixels.device) - (width - 1) / 2
    return rows[:, None], columns[None]


def mapped(pixels: ImagePixels, matrix: tuple[float, float, float, float]) -> ImagePixels:
    """Read images at linearly mapped places, with black around them.

    Args:
        matrix: Four entries of the map of (row, column), relative to the middle.
    """
    rows, columns = centred(pixels)
    height, width = pixels.shape[-2:]
    a, b, c, d = matrix
    at = a * rows + b * columns + (height - 1) / 2, c * rows + d * columns + (width - 1) / 2
    return sampled(pixels, at[0][None], at[1][None], beyond="zeros")


def symmetric(places: Tensor, size: int) -> Tensor:
    """Reflect places at the outer edges of the first and the last pixel.

    Example:
        >>> symmetric(torch.tensor([-1.25, 1.0, 4.5]), 4).tolist()
        [0.25, 1.0, 2.5]
    """
    within = (places + 0.5) % (2 * size)
    return torch.where(within < size, within, 2 * size - within) - 0.5


def mirrored(places: Tensor, size: int) -> Tensor:
    """Reflect places at the centres of the first and the last pixel.

    Example:
        >>> mirrored(torch.tensor([-1.25, 1.0, 3.25, 4.5]), 4).tolist()
        [1.25, 1.0, 2.75, 1.5]
    """
    within = places % (2 * max(size - 1, 1))
    return torch.where(within <= size - 1, within, 2 * (size - 1) - within)


# Smoothing along both axes: a kernel and what lies beyond the border, folded into one matrix per axis.
#
# A matrix product costs more operations than a short convolution, but none of its passes over memory, and it
# serves kernels wider than the image, which some corruptions have.


def gaussian_kernel(sigma: float, truncate: float = 4.0) -> tuple[float, ...]:
    """Weights of a sampled Gaussian, cut off as scipy does.

    Args:
        truncate: Reach in standard deviations.

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
    """Pixel that stands for each place, also beyond the ends of the row.

    Args:
        border: Continuation beyond the edge: ``edge``, ``symmetric`` or ``mirror``.

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
    """Matrix that correlates a row with ``kernel``, shape (size, size)."""
    reach = len(kernel) // 2
    matrix = torch.zeros(size, size, dtype=torch.float64)
    places = torch.arange(size)[:, None] + torch.arange(-reach, reach + 1)
    weights = torch.tensor(kernel, dtype=torch.float64).expand(size, -1)
    return matrix.scatter_add_(1, folded(places, size, border), weights)


def smoothed(pixels: ImagePixels, kernel: tuple[float, ...], border: str = "edge") -> ImagePixels:
    """Correlate images with ``kernel`` along both axes."""
    if len(kernel) == 1:
        return pixels
    down, across = (smoothing_matrix(size, kernel, border).to(pixels) for size in pixels.shape[-2:])
    return down @ pixels @ across.T


def window(pixels: ImagePixels, kernel: Float[Tensor, "side side"], border: str = "mirror") -> ImagePixels:
    """Correlate images with a small square kernel."""
    reach = len(kernel) // 2
    rows, columns = (
        folded(torch.arange(-reach, side + reach, device=pixels.device), side, border) for side in pixels.shape[-2:]
    )
    framed = pixels[:, :, rows][..., columns].flatten(0, 1)[:, None]
    return functional.conv2d(framed, kernel[None, None].to(pixels)).reshape(pixels.shape)
