"""Noise and blur of ImageNet-C."""

from __future__ import annotations

from functools import cache
from math import ceil, cos, radians, sin
from typing import final

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from holdfast.core.noise import Noise
from holdfast.transforms.base import ImagePixels
from holdfast.transforms.filters import gaussian_kernel, smoothed, window
from holdfast.transforms.severity import CommonCorruption

# Noise on every value, as sensors, low light and broken bits make it.
#
# gaussian  x + c n            n ~ N(0, 1)
# shot      Poisson(c x) / c
# impulse   a share c of the values is black or white
# speckle   x + c x n          n ~ N(0, 1)


@final
class GaussianNoiseC(CommonCorruption):
    """Gaussian noise of ImageNet-C. As published."""

    name = "gaussian-noise-c"
    draws = True
    at_224 = (0.08, 0.12, 0.18, 0.26, 0.38)
    at_32 = (0.04, 0.06, 0.08, 0.09, 0.10)

    def corrupt(self, pixels: ImagePixels, noise: Noise, c: float) -> ImagePixels:
        return pixels + c * noise.normal(pixels.shape[1:], pixels.dtype)


@final
class ShotNoiseC(CommonCorruption):
    """Poisson noise of ImageNet-C, as published for images of 8 bits.

    Other images are rounded to 8 bits first.
    """

    name = "shot-noise-c"
    draws = True
    at_224 = (60, 25, 12, 5, 3)
    at_32 = (500, 250, 100, 75, 50)

    def corrupt(self, pixels: ImagePixels, noise: Noise, c: int) -> ImagePixels:
        levels = (pixels * 255).round().long().contiguous()
        counted, start, most = counts(c)
        # The least count whose probability of not being exceeded is above the draw. Level v has its own row, from v to
        # v + 1, of one ascending sequence, so that a single search serves all pixels.
        drawn = levels + noise.uniform(pixels.shape[1:], torch.float64)
        photons = torch.searchsorted(counted.to(pixels.device), drawn, right=True) - levels * most
        return ((start.to(pixels.device)[levels] + photons) / c).to(pixels.dtype)


@cache
def counts(photons: int) -> tuple[Float[Tensor, "entries"], Float[Tensor, "256"], int]:
    """Table of Poisson counts for each 8-bit level, for fast draws.

    ``X_v`` is Poisson with mean ``photons * v / 255``. Counts that occur once in 10^12 draws are left out.

    It holds ``v + P(X_v <= k)`` for each level v and count k, the first k of each level, and the number of entries.
    """
    from scipy import stats  # loaded here, because it is slow to load

    means = photons * torch.arange(256, dtype=torch.float64) / 255
    start = torch.from_numpy(stats.poisson.ppf(1e-12, means.numpy())).clamp(min=0)
    last = torch.from_numpy(stats.poisson.ppf(1 - 1e-12, means.numpy()))
    most = int((last - start).max()) + 1
    k = start[:, None] + torch.arange(most)
    reached = torch.from_numpy(stats.poisson.cdf(k.numpy(), means[:, None].numpy()))
    return (torch.arange(256)[:, None] + reached).flatten(), start, most


@final
class ImpulseNoiseC(CommonCorruption):
    """Salt and pepper of ImageNet-C, channel by channel. As published."""

    name = "impulse-noise-c"
    draws = True
    at_224 = (0.03, 0.06, 0.09, 0.17, 0.27)
    at_32 = (0.01, 0.02, 0.03, 0.05, 0.07)

    def corrupt(self, pixels: ImagePixels, noise: Noise, c: float) -> ImagePixels:
        hit = noise.fork("hit").uniform(pixels.shape[1:]) <= c
        white = noise.fork("white").uniform(pixels.shape[1:]) <= 0.5
        return torch.where(hit, white.to(pixels.dtype), pixels)


@final
class SpeckleNoiseC(CommonCorruption):
    """Noise in proportion to brightness, an extra corruption of ImageNet-C, as published."""

    name = "speckle-noise-c"
    draws = True
    at_224 = (0.15, 0.2, 0.35, 0.45, 0.6)
    at_32 = (0.06, 0.1, 0.12, 0.16, 0.2)

    def corrupt(self, pixels: ImagePixels, noise: Noise, c: float) -> ImagePixels:
        return pixels + pixels * c * noise.normal(pixels.shape[1:], pixels.dtype)


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
    """Disk with a soft rim and sum 1."""
    reach = max(8, int(radius))
    places = torch.arange(-reach, reach + 1, dtype=torch.float64)
    inside = (places[:, None] ** 2 + places**2 <= radius**2).double()
    wide = 1 if radius <= 8 else 2  # the reach of the softening, fixed by the publication
    weights = torch.exp(-0.5 * (torch.arange(-wide, wide + 1, dtype=torch.float64) / blur) ** 2)
    soft = smoothed((inside / inside.sum())[None, None], tuple((weights / weights.sum()).tolist()), "mirror")[0, 0]
    keep = int(min(reach, radius + wide))
    return soft[reach - keep : reach + keep + 1, reach - keep : reach + keep + 1]


@final
class GlassBlurC(CommonCorruption):
    """Glass blur of ImageNet-C, as its program works: it copies a neighbour.

    The text of the paper swaps pixels instead.
    """

    name = "glass-blur-c"
    draws = True
    at_224 = ((0.7, 1, 2), (0.9, 2, 1), (1.0, 2, 3), (1.1, 3, 2), (1.5, 4, 2))
    at_32 = ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2))

    def corrupt(self, pixels: ImagePixels, noise: Noise, c: tuple[float, int, int]) -> ImagePixels:
        sigma, reach, rounds = c
        blurred = smoothed(pixels, gaussian_kernel(sigma))
        values = blurred.flatten(2)
        for turn in range(rounds):
            source = copied_from(pixels.shape[-2], pixels.shape[-1], reach, noise.fork(turn))
            values = values.gather(2, source[:, None].expand_as(values))
        return smoothed(values.reshape(pixels.shape), gaussian_kernel(sigma))


def copied_from(height: int, width: int, reach: int, noise: Noise) -> Int[Tensor, "b pixels"]:
    """Source of each pixel after one round of glass blur.

    A round goes through the inner pixels from the last to the first and gives each the value that a neighbour, at most
    ``reach`` away, has at that time: its new one if it comes later in the image, as it was visited, else its old one. So
    each pixel points at its neighbour, and those that point onward are followed, twice as far each time, to the end.

    Args:
        reach: Largest distance of a neighbour in pixels.

    Returns:
        Index of the source of each pixel, shape (b, height * width).
    """
    device = noise.keys.device
    here = torch.arange(height * width, device=device)
    down, right = here // width, here % width
    inner = (down > reach) & (down <= height - reach) & (right > reach) & (right <= width - reach)
    moves = (noise.uniform((2, height * width)) * (2 * reach)).long() - reach
    neighbour = torch.where(inner, (down + moves[:, 0]) * width + right + moves[:, 1], here)
    onward = inner[neighbour.clamp(0, height * width - 1)] & (neighbour > here)
    end = torch.where(onward, neighbour, here)
    while True:
        further = end.gather(1, end)
        if torch.equal(further, end):
            return neighbour.gather(1, end)
        end = further


# Motion blur: weights of half a Gaussian along a line, as ImageMagick's ``motion_blur`` computes it.
#
# out(p) = sum_i k_i x(p + round(i (cos a, sin a))),   k_i ~ exp(-i^2 / (2 sigma^2)),   i = 0..2 radius


@final
class MotionBlurC(CommonCorruption):
    """Motion blur of ImageNet-C, within 45 degrees of the horizontal, as published."""

    name = "motion-blur-c"
    draws = True
    at_224 = ((10, 3.0), (15, 5.0), (15, 8.0), (15, 12.0), (20, 15.0))
    at_32 = ((6, 1.0), (6, 1.5), (6, 2.0), (8, 2.0), (9, 2.5))

    def corrupt(self, pixels: ImagePixels, noise: Noise, c: tuple[int, float]) -> ImagePixels:
        radius, sigma = c
        return moved(pixels, radius, sigma, 90 * noise.uniform((), torch.float64) - 45)


def moved(pixels: ImagePixels, radius: int, sigma: float, degrees: Float[Tensor, "b"]) -> ImagePixels:
    """Blur images along lines; beyond the border, its pixels repeat.

    Args:
        radius: Half of the length of the line in pixels.
    """
    length, (height, width) = 2 * radius, pixels.shape[-2:]
    weights = torch.exp(-0.5 * (torch.arange(length + 1, dtype=torch.float64) / sigma) ** 2)
    share = (weights / weights.sum()).tolist()
    framed = functional.pad(pixels, [length] * 4, mode="replicate")
    blurred = torch.zeros_like(pixels)
    # One image at a time: each has its own line.
    for image, wide, angle in zip(blurred, framed, degrees.tolist(), strict=True):
        across, along = sin(radians(angle)), cos(radians(angle))
        for step, weight in enumerate(share):
            top, left = length + ceil(step * across - 0.5), length + ceil(step * along - 0.5)
            image.add_(wide[:, top : top + height, left : left + width], alpha=weight)
    return blurred


@final
class ZoomBlurC(CommonCorruption):
    """Zoom blur of ImageNet-C. As published."""

    name = "zoom-blur-c"
    at_224 = ((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03))
    at_32 = ((1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01))

    def corrupt(self, pixels: ImagePixels, noise: Noise, c: tuple[float, float]) -> ImagePixels:
        factors = np.arange(1, *c).tolist()  # whose own rounding decides whether the end is among them
        total = pixels.clone()
        for factor in factors:
            total += enlarged(pixels, factor)
        return total / (len(factors) + 1)


def enlarged(pixels: ImagePixels, factor: float) -> ImagePixels:
    """Enlarge the middle of images to their own size, bilinear, corners aligned."""
    sides = pixels.shape[-2:]
    inner = [ceil(side / factor) for side in sides]
    top, left = ((side - part) // 2 for side, part in zip(sides, inner, strict=True))
    middle = pixels[:, :, top : top + inner[0], left : left + inner[1]]
    grown = [round(part * factor) for part in inner]
    large = functional.interpolate(middle, grown, mode="bilinear", align_corners=True)
    top, left = ((part - side) // 2 for side, part in zip(sides, grown, strict=True))
    return large[:, :, top : top + sides[0], left : left + sides[1]]
