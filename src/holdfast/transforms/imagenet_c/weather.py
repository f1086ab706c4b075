"""Weather corruptions of ImageNet-C: fog, frost, snow and spatter."""

from __future__ import annotations

from typing import final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from holdfast.core.noise import Noise
from holdfast.transforms.base import ImagePixels
from holdfast.transforms.filters import gaussian_kernel, smoothed, window
from holdfast.transforms.imagenet_c.base import CommonCorruption
from holdfast.transforms.imagenet_c.digital import edges
from holdfast.transforms.imagenet_c.noise_and_blur import enlarged, moved


def plasma(height: int, width: int, decay: float, noise: Noise, dtype: torch.dtype) -> Float[Tensor, "b height width"]:
    """Random cloud map that spans [0, 1], one per stream of ``noise``.

    From the corners of ever smaller squares, periodic at the border, the middle of each square and of each edge becomes
    the mean of its four neighbours and a uniform draw, whose size divides by ``decay`` twice whenever squares halve.

    Args:
        decay: Factor by which roughness falls, twice per halving of the squares; above 1.
    """
    side = max(2, 1 << (max(height, width) - 1).bit_length())
    # One draw for each place, by where it is.
    draws = 2 * noise.uniform((side, side), dtype) - 1
    heights = torch.zeros_like(draws)
    step, rough = side, 100.0
    while step >= 2:
        half, size = step // 2, rough * rough
        squares = heights[:, ::step, ::step]
        middles = squares + squares.roll(-1, 1)
        middles = (middles + middles.roll(-1, 2)) / 4 + size * draws[:, half::step, half::step]
        heights[:, half::step, half::step] = middles
        above, left = middles + middles.roll(1, 1), middles + middles.roll(1, 2)
        right, below = squares + squares.roll(-1, 2), squares + squares.roll(-1, 1)
        heights[:, ::step, half::step] = (above + right) / 4 + size * draws[:, ::step, half::step]
        heights[:, half::step, ::step] = (left + below) / 4 + size * draws[:, half::step, ::step]
        step, rough = half, rough / decay
    heights -= heights.amin((1, 2), keepdim=True)
    heights /= heights.amax((1, 2), keepdim=True)
    return heights[:, :height, :width]


@final
class FogC(CommonCorruption):
    """Fog of ImageNet-C, as published; the map covers the next power of two."""

    name = "fog-c"
    draws = True
    at_224 = ((1.5, 2.0), (2.0, 2.0), (2.5, 1.7), (2.5, 1.5), (3.0, 1.4))
    at_32 = ((0.2, 3.0), (0.5, 3.0), (0.75, 2.5), (1.0, 2.0), (1.5, 1.75))

    def corrupt(self, pixels: ImagePixels, noise: Noise, c: tuple[float, float]) -> ImagePixels:
        dense, decay = c
        most = pixels.amax((1, 2, 3), keepdim=True)
        layer = plasma(pixels.shape[2], pixels.shape[3], decay, noise, pixels.dtype)[:, None]
        return (pixels + dense * layer) * most / (most + dense)


TINT = (0.86, 0.94, 1.0)
"""Red, green and blue of ice."""


@final
class FrostC(CommonCorruption):
    """Frost as in ImageNet-C, with random crystals in place of photographs of frost."""

    name = "frost-c"
    draws = True
    at_224 = ((1.0, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75))
    at_32 = ((1.0, 0.2), (1.0, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))

    def corrupt(self, pixels: ImagePixels, noise: Noise, c: tuple[float, float]) -> ImagePixels:
        tint = torch.tensor(TINT if pixels.shape[1] == 3 else [sum(TINT) / 3] * pixels.shape[1]).to(pixels)
        layer = crystals(pixels.shape[2], pixels.shape[3], noise, pixels.dtype)
        return c[0] * pixels + c[1] * tint[:, None, None] * layer[:, None]


def crystals(height: int, width: int, noise: Noise, dtype: torch.dtype) -> Float[Tensor, "b height width"]:
    """Random map of ridges, denser in some regions."""
    maps = [plasma(height, width, decay, noise.fork(part), dtype) for part, decay in enumerate((1.6, 1.4, 2.0))]
    ridges = torch.maximum(*((1 - (2 * map - 1).abs()) ** 3 for map in maps[:2]))
    return 0.4 + 0.6 * ridges * (0.4 + 0.6 * maps[2])


LUMA = (0.299, 0.587, 0.114)


@final
class SnowC(CommonCorruption):
    """Snow of ImageNet-C. As published."""

    name = "snow-c"
    draws = True
    at_224 = (
        (0.1, 0.3, 3.0, 0.5, 10, 4.0, 0.8),
        (0.2, 0.3, 2.0, 0.5, 12, 4.0, 0.7),
        (0.55, 0.3, 4.0, 0.9, 12, 8.0, 0.7),
        (0.55, 0.3, 4.5, 0.85, 12, 8.0, 0.65),
        (0.55, 0.3, 2.5, 0.85, 12, 12.0, 0.55),
    )
    at_32 = (
        (0.1, 0.2, 1.0, 0.6, 8, 3.0, 0.95),
        (0.1, 0.2, 1.0, 0.5, 10, 4.0, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4.0, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6.0, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12.0, 0.8),
    )

    def corrupt(
        self, pixels: ImagePixels, noise: Noise, c: tuple[float, float, float, float, int, float, float]
    ) -> ImagePixels:
        mean, spread, zoom, threshold, radius, sigma, kept = c
        # In double precision, so that rounding, which may differ between batches, moves no flake across the threshold.
        flakes = mean + spread * noise.fork("flakes").normal((1, *pixels.shape[2:]), torch.float64)
        flakes = enlarged(flakes, zoom)
        flakes = torch.where(flakes < threshold, torch.zeros_like(flakes), flakes).clamp(0, 1)
        fallen = moved(flakes, radius, sigma, 90 * noise.fork("angle").uniform((), torch.float64) - 135).to(pixels)
        whitened = torch.maximum(pixels, luma(pixels) * 1.5 + 0.5)
        return kept * pixels + (1 - kept) * whitened + fallen + fallen.rot90(2, (2, 3))


def luma(pixels: ImagePixels) -> Float[Tensor, "b 1 height width"]:
    """Return the brightness of colours, or the mean of other channels than three."""
    if pixels.shape[1] != 3:
        return pixels.mean(1, keepdim=True)
    return (pixels * torch.tensor(LUMA, dtype=torch.float64).to(pixels)[:, None, None]).sum(1, keepdim=True)


WATER = (175 / 255, 238 / 255, 238 / 255)
MUD = (63 / 255, 42 / 255, 20 / 255)
RELIEF = ((-2.0, -1.0, 0.0), (-1.0, 1.0, 1.0), (0.0, 1.0, 2.0))
"""The light on a drop, which comes from the lower right."""
Layer = Float[Tensor, "b 1 height width"]


@final
class SpatterC(CommonCorruption):
    """Spatter, an extra corruption of ImageNet-C, with exact distances from edges."""

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
    """Colour as a tensor, or its mean for images without colours."""
    values = colour if pixels.shape[1] == 3 else [sum(colour) / 3] * pixels.shape[1]
    return torch.tensor(values, dtype=torch.float64).to(pixels)[:, None, None]


def relief(outlines: Bool[Tensor, "b 1 height width"]) -> Layer:
    """Brightness of the surface of drops with these ``outlines``, as 8-bit levels."""
    from scipy import ndimage  # loaded here, because it is slow to load

    away = [ndimage.distance_transform_edt(~outline[0].cpu().numpy()) for outline in outlines]
    near = torch.stack([torch.from_numpy(distances) for distances in away])[:, None].to(outlines.device).clamp(max=20)
    flat = torch.full((3, 3), 1 / 9, dtype=torch.float64)
    depth = equalised((window(near, flat) + 1e-6).floor())  # whole numbers stay what they are
    lit = window(depth, torch.tensor(RELIEF)).round().clamp(0, 255)
    return window(lit, flat).round()


def equalised(levels: Layer) -> Layer:
    """Equalise the histogram of 8-bit ``levels``, as OpenCV's ``equalizeHist`` does."""
    rows = []
    for image in levels.long():
        counts = torch.bincount(image.flatten(), minlength=256)
        first = int(counts[int(image.min())])
        others = max(1, image.numel() - first)
        table = ((counts.cumsum(0) - first).double() * 255 / others).round().clamp(0, 255)
        rows.append(table[image] if first < image.numel() else image.double())
    return torch.stack(rows)
