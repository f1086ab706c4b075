"""Random changes of colour and sharpness: jitter, grayscale, solarisation and blur."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import ceil
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from holdfast.core.balls import column
from holdfast.core.errors import Conflict, HoldfastError
from holdfast.core.noise import Noise
from holdfast.transforms.base import ImagePixels, Transform
from holdfast.transforms.filters import folded

Change = Callable[[ImagePixels, Int[Tensor, "k"]], ImagePixels]
"""From some images and their rows to these images, changed."""


def sometimes(pixels: ImagePixels, chosen: Bool[Tensor, "b"], change: Change) -> ImagePixels:
    """Change the chosen images.

    Args:
        change: Function from images and their positions to changed images.
    """
    # On a GPU it costs more to wait for which are chosen than to change all.
    return (some_changed if pixels.device.type == "cpu" else all_changed)(pixels, chosen, change)


def some_changed(pixels: ImagePixels, chosen: Bool[Tensor, "b"], change: Change) -> ImagePixels:
    """Change the chosen images alone."""
    rows = chosen.nonzero()[:, 0]
    return pixels.index_copy(0, rows, change(pixels.index_select(0, rows), rows))


def all_changed(pixels: ImagePixels, chosen: Bool[Tensor, "b"], change: Change) -> ImagePixels:
    """Change all images, and keep the result for the chosen ones."""
    changed = change(pixels, torch.arange(len(pixels), device=pixels.device))
    return torch.where(column(chosen, pixels), changed, pixels)


WEIGHTS = {1: (1.0,), 3: (0.299, 0.587, 0.114)}


def weights(pixels: ImagePixels) -> Float[Tensor, "channels"]:
    """Return the weight of each channel; that of a gray image is 1.

    Raises:
        HoldfastError: the images are neither gray nor RGB.
    """
    channels = pixels.shape[1]
    if channels not in WEIGHTS:
        raise HoldfastError(f"augmentations of colour take gray (1 channel) or RGB (3) images, got {channels} channels")
    return torch.tensor(WEIGHTS[channels]).to(pixels)


def luma(pixels: ImagePixels) -> Float[Tensor, "b 1 height width"]:
    """Return the gray images."""
    return (weights(pixels) @ pixels.flatten(2)).reshape(len(pixels), 1, *pixels.shape[-2:])


# Brightness, contrast, saturation and hue changed by random amounts in random order.
#
# With gray(x) the luma of each pixel and a factor f drawn for the image, each followed by a cut to [0, 1]:
#
#     brightness   f x
#     contrast     f x + (1 - f) mean(gray(x))
#     saturation   f x + (1 - f) gray(x)
#     hue          the angle of HSV turned by a share of the circle
#
# Krizhevsky et al. 2012 and Howard, https://arxiv.org/abs/1312.5402; the form is torchvision's, the strengths those of
# MoCo v2 (Chen et al. 2020, https://arxiv.org/abs/2003.04297).

BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)


@final
@dataclass(frozen=True)
class ColorJitter(Transform):
    """Random brightness, contrast, saturation and hue, with probability ``p``.

    Gray images have neither saturation nor hue.
    """

    brightness: float = 0.4
    """Largest relative change of brightness."""
    contrast: float = 0.4
    """Largest relative change of contrast."""
    saturation: float = 0.4
    """Largest relative change of saturation."""
    hue: float = 0.1
    """Largest turn of the hue, as a fraction of the circle, up to 0.5."""
    p: float = 0.8
    """Probability that an image is changed."""
    name = "color-jitter"
    allowed = (
        *("brightness in [0, inf)", "contrast in [0, inf)", "saturation in [0, inf)"),
        *("hue in [0, 0.5]", "p in [0, 1]"),
    )
    channels = (1, 3)
    draws = True

    def change(self, pixels: ImagePixels, noise: Noise) -> ImagePixels:
        draws = noise.uniform((9,), torch.float64)
        factors, order = self.factors(draws[:, :4]), draws[:, 4:8].argsort(1)
        return sometimes(pixels, draws[:, 8] < self.p, lambda some, rows: jittered(some, factors[rows], order[rows]))

    def factors(self, draws: Float[Tensor, "b 4"]) -> Float[Tensor, "b 4"]:
        """Factors of brightness, contrast and saturation and turn of the hue of each image."""
        limits = draws.new_tensor([self.brightness, self.contrast, self.saturation, self.hue])
        low, high = (1 - limits).clamp(min=0), 1 + limits
        low[HUE], high[HUE] = -self.hue, self.hue
        return low + (high - low) * draws


def jittered(pixels: ImagePixels, factors: Float[Tensor, "b 4"], order: Int[Tensor, "b 4"]) -> ImagePixels:
    """Apply colour factors in an order of each image's own.

    At each step all images go through one linear map of their channels, the identity where the step turns the hue.

    Args:
        factors: Factors of brightness, contrast and saturation and turn of the hue, shape (b, 4).
    """
    luma = weights(pixels)
    factor = torch.where(order == HUE, 1.0, factors.gather(1, order)).to(pixels)
    towards_gray, towards_mean = ((1 - factor) * (order == operation) for operation in (SATURATION, CONTRAST))
    identity = torch.eye(len(luma), dtype=luma.dtype, device=luma.device)
    maps = factor[..., None, None] * identity + towards_gray[..., None, None] * luma
    for step in range(4):
        flat = pixels.flatten(2)
        mean = towards_mean[:, step] * (flat.mean(2) @ luma)
        pixels = torch.baddbmm(mean[:, None, None], maps[:, step], flat).clamp_(0, 1).view_as(pixels)
        if len(luma) == 3:
            turning = (order[:, step] == HUE) & (factors[:, HUE] != 0)
            pixels = sometimes(pixels, turning, lambda some, rows: hue_turned(some, factors[rows, HUE]))
    return pixels


def hue_turned(pixels: ImagePixels, turns: Float[Tensor, "b"]) -> ImagePixels:
    """Turn the hue of RGB images in HSV.

    With the hue as a share of the circle, a channel is at its least, plus the chroma times ``2 - 6 d`` cut to [0, 1],
    where ``d`` is how far the hue is from the channel's own: 0 for red, 1/3 for green, 2/3 for blue.

    Args:
        turns: Turn of each image as a fraction of the circle, shape (b,).
    """
    # The channels are sorted by two exchanges, each of which mirrors the hue: six times faster than a case for each order.
    red, green, blue = pixels.unbind(1)
    first, second = (green < blue).to(pixels), (red < torch.maximum(green, blue)).to(pixels)
    upper, lower = torch.maximum(green, blue), torch.minimum(green, blue)
    high, middle = torch.maximum(red, upper), torch.minimum(red, upper)
    low = torch.minimum(middle, lower)
    chroma = high - low
    # Where there is no chroma, any hue will do.
    sector = (middle - lower).div_((6 * chroma).clamp_(min=torch.finfo(pixels.dtype).tiny))
    mirrored = second.mul_(first.mul(2).sub_(1 / 3)).sub_(first)
    hue = sector.add_(mirrored).abs_().add_(turns[:, None, None].to(pixels))
    away = hue[:, None] - torch.arange(3, device=pixels.device).to(pixels)[:, None, None] / 3
    away.sub_(away.round()).abs_()
    return torch.addcmul(low[:, None], torch.rsub(away, 2, alpha=6).clamp_(0, 1), chroma[:, None])


@final
@dataclass(frozen=True)
class Grayscale(Transform):
    """Gray with three equal channels, with probability ``p``; gray images stay.

    Paper: Chen et al. 2020.
    """

    p: float = 0.2
    """Probability that an image becomes grey."""
    name = "grayscale"
    allowed = ("p in [0, 1]",)
    channels = (1, 3)
    draws = True

    def change(self, pixels: ImagePixels, noise: Noise) -> ImagePixels:
        return sometimes(pixels, noise.uniform(()) < self.p, lambda some, _: luma(some).expand_as(some))


@final
@dataclass(frozen=True)
class Solarize(Transform):
    """Invert values from ``threshold`` on, with probability ``p``.

    Paper: Grill et al. 2020.
    """

    p: float = 0.2
    """Probability that an image is solarised."""
    threshold: float = 0.5
    """Pixel value above which pixels are inverted."""
    name = "solarize"
    allowed = ("p in [0, 1]", "threshold in [0, 1]")
    draws = True

    def change(self, pixels: ImagePixels, noise: Noise) -> ImagePixels:
        return sometimes(pixels, noise.uniform(()) < self.p, lambda some, _: solarized(some, self.threshold))


def solarized(pixels: ImagePixels, threshold: float) -> ImagePixels:
    """Invert the values from ``threshold`` on.

    Example:
        >>> solarized(torch.tensor([[[[0.25, 0.5, 0.75]]]]), 0.6).tolist()
        [[[[0.25, 0.5, 0.25]]]]
    """
    return torch.where(pixels < threshold, pixels, 1 - pixels)


# Gaussian blur of a random width, with the kernel of a share of the image as in SimCLR.
#
# Chen, Kornblith, Norouzi and Hinton, "A simple framework for contrastive learning of visual representations", 2020,
# https://arxiv.org/abs/2002.05709, appendix A.


@final
@dataclass(frozen=True)
class GaussianBlur(Transform):
    """Gaussian blur of a random width, with probability ``p``; borders are reflected.

    The kernel has ``2 r + 1`` taps, ``r`` half of ``kernel`` times the shorter side, rounded down: with the default, an
    image below 20 pixels stays as it is. ``kernel=1`` cuts nothing off.
    """

    p: float = 0.5
    """Probability that an image is blurred."""
    sigma_min: float = 0.1
    """Smallest standard deviation, in pixels."""
    sigma_max: float = 2.0
    """Largest standard deviation, in pixels."""
    kernel: float = 0.1
    """Width of the kernel, as a fraction of the shorter side."""
    name = "gaussian-blur"
    allowed = ("p in [0, 1]", "sigma_min in (0, inf)", "sigma_max in (0, inf)", "kernel in (0, 1]")
    draws = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sigma_min > self.sigma_max:
            got = f"sigma_min={self.sigma_min} and sigma_max={self.sigma_max}"
            raise Conflict("gaussian-blur", got, "them in order")

    def change(self, pixels: ImagePixels, noise: Noise) -> ImagePixels:
        # Beyond 6 standard deviations lies nothing that single precision would keep.
        reach = min(int(self.kernel * min(pixels.shape[-2:])) // 2, ceil(6 * self.sigma_max))
        chance, width = noise.uniform((2,), torch.float64).T
        sigmas = self.sigma_min + (self.sigma_max - self.sigma_min) * width
        return sometimes(pixels, chance < self.p, lambda some, rows: blurred(some, sigmas[rows], reach))


def blurred(pixels: ImagePixels, sigmas: Float[Tensor, "b"], reach: int) -> ImagePixels:
    """Blur each image with its own width.

    Args:
        reach: Pixels of the kernel to each side; 0 changes nothing.
    """
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
    """Return for each tap the matrix that shifts a row of pixels by its offset, reflected at its ends."""
    taps = torch.arange(-reach, reach + 1)[:, None]
    places = folded(torch.arange(side) + taps, side, "mirror")
    return torch.nn.functional.one_hot(places, side).to(torch.float32)
