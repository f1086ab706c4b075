"""Noise on every value, as sensors, low light and broken bits make it.

gaussian  x + c n            n ~ N(0, 1)
shot      Poisson(c x) / c
impulse   a share c of the values is black or white
speckle   x + c x n          n ~ N(0, 1)
"""

from __future__ import annotations

from functools import cache
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.core.noise import Noise
from holdfast.transforms.base import ImagePixels
from holdfast.transforms.imagenet_c.severity import CommonCorruption


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
    """Poisson noise of ImageNet-C. As published for 8-bit images; other values are rounded to 8 bits first."""

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
    """Return ``v + P(X_v <= k)`` for each 8-bit level v and count k; the first k of each level; how many there are.

    ``X_v`` is Poisson with mean ``photons * v / 255``. Counts that occur once in 10^12 draws are left out.
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
    """Noise in proportion to brightness, one of the four extra corruptions of ImageNet-C. As published."""

    name = "speckle-noise-c"
    draws = True
    at_224 = (0.15, 0.2, 0.35, 0.45, 0.6)
    at_32 = (0.06, 0.1, 0.12, 0.16, 0.2)

    def corrupt(self, pixels: ImagePixels, noise: Noise, c: float) -> ImagePixels:
        return pixels + pixels * c * noise.normal(pixels.shape[1:], pixels.dtype)
