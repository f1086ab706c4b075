"""Everyday edits of images, each with one strength: blur, brightness, contrast, crops, JPEG and others."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from io import BytesIO
from math import cos, pi, radians, sin
from typing import final

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torch.nn import functional

from holdfast.core import noise as streams
from holdfast.core.errors import HoldfastError
from holdfast.core.noise import Noise
from holdfast.transforms.base import ImagePixels, Transform
from holdfast.transforms.filters import gaussian_kernel, mapped, smoothed


@final
@dataclass(frozen=True)
class Blur(Transform):
    """Gaussian blur, with the border repeated."""

    sigma: float
    """Standard deviation of the blur, as a fraction of the shorter side."""
    name = "blur"
    allowed = ("sigma in [0, 1]",)
    severities = (0.0, 0.0025, 0.005, 0.01, 0.02, 0.04)

    def change(self, pixels: ImagePixels, noise: Noise) -> ImagePixels:
        return smoothed(pixels, gaussian_kernel(self.sigma * min(pixels.shape[-2:])))


@final
@dataclass(frozen=True)
class Brightness(Transform):
    """Add ``amount`` to each value; a negative amount darkens."""

    amount: float
    """Value added to every pixel, from -1 to 1."""
    name = "brightness"
    allowed = ("amount in [-1, 1]",)
    severities = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5)

    def change(self, pixels: ImagePixels, noise: Noise) -> ImagePixels:
        return pixels + self.amount


@final
@dataclass(frozen=True)
class Contrast(Transform):
    """Scale differences from the image's mean: 1 changes nothing, 0 leaves plain gray."""

    factor: float
    """Factor of each pixel's distance from the mean, at least 0; 1 changes nothing."""
    name = "contrast"
    allowed = ("factor in [0, inf)",)
    severities = (1.0, 0.8, 0.6, 0.4, 0.25, 0.1)

    def change(self, pixels: ImagePixels, noise: Noise) -> ImagePixels:
        if self.factor == 1:
            return pixels
        mean = pixels.mean((1, 2, 3), keepdim=True)
        return mean + self.factor * (pixels - mean)


@final
@dataclass(frozen=True)
class Crop(Transform):
    """Cut away part of each side and enlarge the rest; a negative fraction pads with black."""

    share: float
    """Fraction of each side that is cut away, from -1 to below 1; negative values pad with black."""
    name = "crop"
    allowed = ("share in [-1, 1)",)
    severities = (0.0, 0.02, 0.05, 0.1, 0.2, 0.4)

    def change(self, pixels: ImagePixels, noise: Noise) -> ImagePixels:
        if self.share == 0:  # which interpolation would blur by its rounding
            return pixels
        return mapped(pixels, (1 - self.share, 0.0, 0.0, 1 - self.share))


# Gamma correction: below 1 brightens, above 1 darkens.
#
#     table[v] = floor(255 (v / 255)^gamma),   v = 0..255
#
# as Zhong et al. 2022 (https://arxiv.org/abs/2206.05259) corrupt 8-bit images: 0.2 keeps 120 of the 256 levels, 5
# keeps 119. A value between two levels, which no 8-bit image holds, lies between their entries in the same
# proportion: so the table decides alone where there are levels, and ``gamma:1`` changes nothing anywhere.

ROUNDING = 1e-4
"""Nearer to a level than this, in levels, is that level: float32 holds v / 255 no better than to 1e-5."""


@final
@dataclass(frozen=True)
class Gamma(Transform):
    """Each value to the power ``gamma``, rounded down to 8 bits."""

    gamma: float
    """Exponent of each pixel value, above 0; below 1 brightens."""
    name = "gamma"
    allowed = ("gamma in (0, inf)",)

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


# Colours turned and faded: the chrominance plane of YIQ is rotated and shrunk, the luma stays.
#
# (I, Q) -> (1 - amount / 2) R(90 degrees * amount) (I, Q)

YIQ = ((0.299, 0.587, 0.114), (0.595716, -0.274453, -0.321263), (0.211456, -0.522591, 0.311135))


@final
@dataclass(frozen=True)
class HueSaturation(Transform):
    """Turn the hue and lower the saturation; gray images stay."""

    amount: float
    """Quarter circles by which the hue turns, from 0 to 1; saturation falls by half of it."""
    name = "hue-saturation"
    allowed = ("amount in [0, 1]",)
    channels = (1, 3)
    severities = (0.0, 0.1, 0.2, 0.4, 0.7, 1.0)

    def change(self, pixels: ImagePixels, noise: Noise) -> ImagePixels:
        if pixels.shape[1] != 3 or self.amount == 0:
            return pixels
        return torch.einsum("ij,bjhw->bihw", turned(self.amount).to(pixels), pixels)


@cache
def turned(amount: float) -> Float[Tensor, "3 3"]:
    """Return what happens to (red, green, blue) as a matrix.

    Example:
        >>> grey = turned(0.4) @ torch.ones(3, dtype=torch.float64)
        >>> bool((grey - 1).abs().max() < 1e-12)
        True
    """
    to_yiq = torch.tensor(YIQ, dtype=torch.float64)
    # Its coefficients are rounded: without this, grey would have a little colour.
    to_yiq[1:] -= to_yiq[1:].mean(1, keepdim=True)
    to_yiq[0] /= to_yiq[0].sum()
    angle, kept = amount * pi / 2, 1 - amount / 2
    rotation = torch.eye(3, dtype=torch.float64)
    rotation[1:, 1:] = kept * torch.tensor([[cos(angle), -sin(angle)], [sin(angle), cos(angle)]])
    return torch.linalg.inv(to_yiq) @ rotation @ to_yiq


@final
@dataclass(frozen=True)
class Jpeg(Transform):
    """Round to 8 bits and compress with Pillow's JPEG encoder; ``none`` changes nothing."""

    quality: int | None
    """Quality of the JPEG encoder, 1 to 100; none changes nothing."""
    name = "jpeg"
    allowed = ("quality in [1, 100]",)
    channels = (1, 3)
    severities = (None, 90, 70, 50, 30, 10)

    def change(self, pixels: ImagePixels, noise: Noise) -> ImagePixels:
        return pixels if self.quality is None else compressed(pixels, self.quality)


def compressed(pixels: ImagePixels, quality: int) -> ImagePixels:
    """Images after JPEG compression.

    Raises:
        HoldfastError: The images have neither one channel nor three.
    """
    if pixels.shape[1] not in (1, 3):
        raise HoldfastError(f"JPEG holds images of 1 or 3 channels, got {pixels.shape[1]}; use another transform")
    levels = (pixels * 255).round().clamp(0, 255).to("cpu", torch.uint8)
    again = torch.stack([_again(image, quality) for image in levels]) if len(levels) else levels
    return again.to(pixels) / 255


def _again(image: UInt8[Tensor, "channels height width"], quality: int) -> UInt8[Tensor, "channels height width"]:
    from PIL import Image

    values, file = image.permute(1, 2, 0).numpy(), BytesIO()
    Image.fromarray(np.ascontiguousarray(values[:, :, 0] if len(image) == 1 else values)).save(
        file, "JPEG", quality=quality
    )
    return torch.from_numpy(np.array(Image.open(file))).reshape(values.shape).permute(2, 0, 1)


@final
@dataclass(frozen=True)
class GaussianNoise(Transform):
    """Add normal noise; the draws are the same at every ``std``."""

    std: float
    """Standard deviation of the noise, in pixel units."""
    name = "noise"
    allowed = ("std in [0, inf)",)
    draws = True
    severities = (0.0, 0.02, 0.05, 0.1, 0.2, 0.4)

    def change(self, pixels: ImagePixels, noise: streams.Noise) -> ImagePixels:
        return pixels + self.std * noise.normal(pixels.shape[1:], pixels.dtype)


@final
@dataclass(frozen=True)
class Resize(Transform):
    """Shrink both sides and enlarge them again, bilinear, with antialiasing."""

    scale: float
    """Size in between, as a fraction of the original size."""
    name = "resize"
    allowed = ("scale in (0, 1]",)
    severities = (1.0, 0.75, 0.5, 0.35, 0.25, 0.125)

    def change(self, pixels: ImagePixels, noise: Noise) -> ImagePixels:
        if self.scale == 1:
            return pixels
        sides = pixels.shape[-2:]
        small = [max(1, round(side * self.scale)) for side in sides]
        smaller = functional.interpolate(pixels, small, mode="bilinear", antialias=True)
        return functional.interpolate(smaller, list(sides), mode="bilinear")


@final
@dataclass(frozen=True)
class Rotation(Transform):
    """Rotate counter-clockwise about the middle, bilinear, with black corners."""

    degrees: float
    """Angle, in degrees."""
    name = "rotation"
    allowed = ("degrees in [-360, 360]",)
    severities = (0.0, 1.0, 2.0, 5.0, 10.0, 20.0)

    def change(self, pixels: ImagePixels, noise: Noise) -> ImagePixels:
        if self.degrees == 0:  # which interpolation would blur by its rounding
            return pixels
        c, s = cos(radians(self.degrees)), sin(radians(self.degrees))
        return mapped(pixels, (c, s, -s, c))
