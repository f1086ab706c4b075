"""Brightness, contrast, saturation and hue changed by random amounts in random order.

With gray(x) the luma of each pixel and a factor f drawn for the image, each followed by a cut to [0, 1]:

    brightness   f x
    contrast     f x + (1 - f) mean(gray(x))
    saturation   f x + (1 - f) gray(x)
    hue          the angle of HSV turned by a share of the circle

Krizhevsky et al. 2012 and Howard, https://arxiv.org/abs/1312.5402; the form is torchvision's, the strengths those of
MoCo v2 (Chen et al. 2020, https://arxiv.org/abs/2003.04297).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from holdfast.core.errors import HoldfastError
from holdfast.core.noise import Noise
from holdfast.transforms.augmentations.chance import check_probability, sometimes
from holdfast.transforms.augmentations.luma import weights
from holdfast.transforms.base import ImagePixels, Transform

BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)


@final
@dataclass(frozen=True)
class ColorJitter(Transform):
    """With probability ``p``, factors within 1 +- each strength and hue turned by up to ``hue`` of the circle.

    Gray images have neither saturation nor hue.
    """

    brightness: float = 0.4
    contrast: float = 0.4
    saturation: float = 0.4
    hue: float = 0.1
    p: float = 0.8
    name = "color-jitter"
    channels = (1, 3)
    draws = True

    def __post_init__(self) -> None:
        check_probability(self.p, self.name)
        for what in ("brightness", "contrast", "saturation"):
            if not 0 <= getattr(self, what) < float("inf"):
                raise HoldfastError(f"{what} of color-jitter must be a number from 0 on, got {getattr(self, what)}")
        if not 0 <= self.hue <= 0.5:
            raise HoldfastError(f"hue of color-jitter is a share of the circle and must lie in 0..0.5, got {self.hue}")

    def change(self, pixels: ImagePixels, noise: Noise) -> ImagePixels:
        draws = noise.uniform((9,), torch.float64)
        factors, order = self.factors(draws[:, :4]), draws[:, 4:8].argsort(1)
        return sometimes(pixels, draws[:, 8] < self.p, lambda some, rows: jittered(some, factors[rows], order[rows]))

    def factors(self, draws: Float[Tensor, "b 4"]) -> Float[Tensor, "b 4"]:
        """Return for each image the factors of brightness, contrast and saturation and the turn of the hue."""
        limits = draws.new_tensor([self.brightness, self.contrast, self.saturation, self.hue])
        low, high = (1 - limits).clamp(min=0), 1 + limits
        low[HUE], high[HUE] = -self.hue, self.hue
        return low + (high - low) * draws


def jittered(pixels: ImagePixels, factors: Float[Tensor, "b 4"], order: Int[Tensor, "b 4"]) -> ImagePixels:
    """Return images changed by their ``factors``, the operations in the ``order`` of each.

    At each step all images go through one linear map of their channels, the identity for those that turn their hue.
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
    """Return RGB images with the hue of HSV turned by shares of the circle.

    With the hue as a share of the circle, a channel is at its least, plus the chroma times ``2 - 6 d`` cut to [0, 1],
    where ``d`` is how far the hue is from the channel's own: 0 for red, 1/3 for green, 2/3 for blue.
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
