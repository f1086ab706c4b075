"""Drops of water, or splashes of mud, on the lens."""

from __future__ import annotations

from typing import final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from holdfast.core.noise import Noise
from holdfast.transforms.base import ImagePixels
from holdfast.transforms.imagenet_c.edges import edges
from holdfast.transforms.imagenet_c.severity import CommonCorruption
from holdfast.transforms.smoothing import gaussian_kernel, smoothed, window

WATER = (175 / 255, 238 / 255, 238 / 255)
MUD = (63 / 255, 42 / 255, 20 / 255)
RELIEF = ((-2.0, -1.0, 0.0), (-1.0, 1.0, 1.0), (0.0, 1.0, 2.0))
"""The light on a drop, which comes from the lower right."""
Layer = Float[Tensor, "b 1 height width"]


@final
class SpatterC(CommonCorruption):
    """Spatter, one of the four extra corruptions of ImageNet-C. As published but for exact distances from edges."""

    name = "spatter-c"
    draws = True
    at_224 = (
        (0.65, 0.3, 4.0, 0.69, 0.6, "water"),
        (0.65, 0.3, 3.0, 0.68, 0.6, "water"),
        (0.65, 0.3, 2.0, 0.68, 0.5, "water"),
        (0.65, 0.3, 1.0, 0.65, 1.5, "mud"),
        (0.67, 0.4, 1.0, 0.65, 1.5, "mud"),
    )
    at_32 = (
        (0.62, 0.1, 0.7, 0.7, 0.5, "water"),
        (0.65, 0.1, 0.8, 0.7, 0.5, "water"),
        (0.65, 0.3, 1.0, 0.69, 0.5, "water"),
        (0.65, 0.1, 0.7, 0.69, 0.6, "mud"),
        (0.65, 0.1, 0.5, 0.68, 0.6, "mud"),
    )

    def corrupt(
        self, pixels: ImagePixels, noise: Noise, c: tuple[float, float, float, float, float, str]
    ) -> ImagePixels:
        mean, spread, sigma, threshold, amount, kind = c
        # In double precision, so that rounding, which may differ between batches, moves nothing across a threshold.
        drawn = mean + spread * noise.normal((1, *pixels.shape[2:]), torch.float64)
        liquid = smoothed(drawn, gaussian_kernel(sigma))
        wet = liquid > threshold
        if kind == "mud":
            cover = smoothed(wet.to(liquid.dtype), gaussian_kernel(amount))
            cover = torch.where(cover < 0.8, torch.zeros_like(cover), cover).to(pixels)
            return pixels * (1 - cover) + cover * coloured(MUD, pixels)
        levels = torch.where(wet, (liquid * 255).floor().clamp(0, 255), torch.zeros_like(liquid))
        drops = levels * relief(edges(levels))
        # Without any edge there is no drop.
        most = drops.amax((1, 2, 3), keepdim=True).clamp(min=1)
        return pixels + (amount * drops / most).to(pixels) * coloured(WATER, pixels)


def coloured(colour: tuple[float, ...], pixels: ImagePixels) -> Float[Tensor, "channels 1 1"]:
    """Return ``colour``, or its mean for images without colours."""
    values = colour if pixels.shape[1] == 3 else [sum(colour) / 3] * pixels.shape[1]
    return torch.tensor(values, dtype=torch.float64).to(pixels)[:, None, None]


def relief(outlines: Bool[Tensor, "b 1 height width"]) -> Layer:
    """Return how brightly the surface of drops with these ``outlines`` shines, as 8-bit levels."""
    from scipy import ndimage  # loaded here, because it is slow to load

    away = [ndimage.distance_transform_edt(~outline[0].cpu().numpy()) for outline in outlines]
    near = torch.stack([torch.from_numpy(distances) for distances in away])[:, None].to(outlines.device).clamp(max=20)
    flat = torch.full((3, 3), 1 / 9, dtype=torch.float64)
    depth = equalised((window(near, flat) + 1e-6).floor())  # whole numbers stay what they are
    lit = window(depth, torch.tensor(RELIEF)).round().clamp(0, 255)
    return window(lit, flat).round()


def equalised(levels: Layer) -> Layer:
    """Return 8-bit ``levels`` spread so that all are about equally frequent, as OpenCV's ``equalizeHist``."""
    rows = []
    for image in levels.long():
        counts = torch.bincount(image.flatten(), minlength=256)
        first = int(counts[int(image.min())])
        others = max(1, image.numel() - first)
        table = ((counts.cumsum(0) - first).double() * 255 / others).round().clamp(0, 255)
        rows.append(table[image] if first < image.numel() else image.double())
    return torch.stack(rows)
