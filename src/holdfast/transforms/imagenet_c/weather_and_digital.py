"""Corruptions of ImageNet-C: contrast, brightness, saturation, elastic, JPEG, pixels; fog, frost, snow, spatter."""

from __future__ import annotations

from functools import cache
from typing import final

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from holdfast.core.noise import Noise
from holdfast.transforms.base import ImagePixels
from holdfast.transforms.everyday import compressed
from holdfast.transforms.filters import gaussian_kernel, mirrored, sampled, smoothed, symmetric, window
from holdfast.transforms.imagenet_c.noise_and_blur import enlarged, moved
from holdfast.transforms.severity import LARGE, SMALL, CommonCorruption, small

# Contrast, brightness and saturation.
#
# contrast    mean + c (x - mean), with the mean of each channel
# brightness  the value V of HSV plus c
# saturate    the saturation S of HSV times c plus d


@final
class ContrastC(CommonCorruption):
    """Lower contrast of ImageNet-C. As published."""

    name = "contrast-c"
    at_224 = (0.4, 0.3, 0.2, 0.1, 0.05)
    at_32 = (0.75, 0.5, 0.4, 0.3, 0.15)

    def corrupt(self, pixels: ImagePixels, noise: Noise, c: float) -> ImagePixels:
        means = pixels.mean((2, 3), keepdim=True)
        return (pixels - means) * c + means


@final
class BrightnessC(CommonCorruption):
    """Higher value in HSV of ImageNet-C. As published."""

    name = "brightness-c"
    at_224 = (0.1, 0.2, 0.3, 0.4, 0.5)
    at_32 = (0.05, 0.1, 0.15, 0.2, 0.3)

    def corrupt(self, pixels: ImagePixels, noise: Noise, c: float) -> ImagePixels:
        value = pixels.amax(1, keepdim=True)
        brighter = (value + c).clamp(max=1)
        # With hue and saturation kept, all channels grow as the largest does; black has none to keep.
        return torch.where(value > 0, pixels * (brighter / value.clamp(min=1e-9)), brighter)


@final
class SaturateC(CommonCorruption):
    """Other saturation in HSV, an extra corruption of ImageNet-C; gray images stay.

    As published: gray pixels of colour images have the hue of red, and show it at severities 4 and 5.
    """

    name = "saturate-c"
    channels = (1, 3)
    at_224 = ((0.3, 0.0), (0.1, 0.0), (2.0, 0.0), (5.0, 0.1), (20.0, 0.2))
    at_32 = ((0.3, 0.0), (0.1, 0.0), (1.5, 0.0), (2.0, 0.1), (2.5, 0.2))

    def corrupt(self, pixels: ImagePixels, noise: Noise, c: tuple[float, float]) -> ImagePixels:
        if pixels.shape[1] != 3:
            return pixels
        value = pixels.amax(1, keepdim=True)
        range_ = value - pixels.amin(1, keepdim=True)
        saturation = range_ / value.clamp(min=1e-9)
        target = (saturation * c[0] + c[1]).clamp(0, 1)
        # How far below the value each channel lies, as a share of the channel that lies lowest.
        red = torch.tensor([0.0, 1.0, 1.0]).to(pixels)[:, None, None]
        below = torch.where(range_ > 0, (value - pixels) / range_.clamp(min=1e-9), red)
        return value * (1 - target * below)


LOW, HIGH = 50, 150
SOBEL = torch.tensor([[-1.0, 0.0, 1.0], [-2.0, 0.0, 2.0], [-1.0, 0.0, 1.0]])
TAN_22_5 = 13573
"""tan(22.5 degrees) times 2^15."""


def edges(levels: Float[Tensor, "b 1 height width"]) -> Bool[Tensor, "b 1 height width"]:
    """Return which pixels of 8-bit ``levels`` lie on an edge."""
    from scipy import ndimage  # loaded here, because it is slow to load

    across, down = (window(levels, kernel, "edge").round().long() for kernel in (SOBEL, SOBEL.T))
    ridge, size = ridges(across, down)
    edge_maps = []
    for weak, strong in zip(ridge & (size > LOW), ridge & (size > HIGH), strict=True):
        # A weak edge counts if it hangs together with a strong one.
        pieces, _ = ndimage.label(weak[0].cpu().numpy(), structure=torch.ones(3, 3).numpy())
        labels = torch.from_numpy(pieces).to(levels.device)
        edge_maps.append((weak & torch.isin(labels, labels[strong[0]].unique()))[None])
    return torch.cat(edge_maps)


def ridges(across: Tensor, down: Tensor) -> tuple[Bool[Tensor, "b 1 height width"], Tensor]:
    """Mask of pixels with the largest derivative along its direction, and its size."""
    size = across.abs() + down.abs()
    framed = functional.pad(size, (1, 1, 1, 1))
    height, width = size.shape[-2:]

    def beside(rows: int, columns: int) -> Tensor:
        return framed[..., 1 + rows : 1 + rows + height, 1 + columns : 1 + columns + width]

    flat = (down.abs() << 15) < across.abs() * TAN_22_5
    steep = (down.abs() << 15) > across.abs() * (TAN_22_5 + (1 << 16))
    falling = (across ^ down) >= 0
    horizontal = (size > beside(0, -1)) & (size >= beside(0, 1))
    vertical = (size > beside(-1, 0)) & (size >= beside(1, 0))
    diagonal = torch.where(
        falling, (size > beside(-1, -1)) & (size > beside(1, 1)), (size > beside(-1, 1)) & (size > beside(1, -1))
    )
    return torch.where(flat, horizontal, torch.where(steep, vertical, diagonal)), size


def _lengths(side: int, *severities: tuple[float, ...]) -> tuple[tuple[float, ...], ...]:
    """Return lengths in pixels from shares of a side."""
    return tuple(tuple(side * share for share in shares) for shares in severities)


@final
class ElasticTransformC(CommonCorruption):
    """Elastic transform of ImageNet-C, as published; lengths scale with the image."""

    name = "elastic-transform-c"
    draws = True
    # Of 244 pixels by their slip, where the images have 224.
    at_224 = _lengths(
        244, (2.0, 0.7, 0.1), (2.0, 0.08, 0.2), (0.05, 0.01, 0.02), (0.07, 0.01, 0.02), (0.12, 0.01, 0.02)
    )
    at_32 = _lengths(32, (0.0, 0.0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03))

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
    """Affine maps of images.

    Args:
        moves: Shift of three corners of a square as (x, y), shape (b, 3, 2).
    """
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


@final
class JpegCompressionC(CommonCorruption):
    """JPEG compression of ImageNet-C by Pillow. As published."""

    name = "jpeg-compression-c"
    channels = (1, 3)
    at_224 = (25, 18, 15, 10, 7)
    at_32 = (80, 65, 58, 50, 40)

    def corrupt(self, pixels: ImagePixels, noise: Noise, c: int) -> ImagePixels:
        return compressed(pixels, c)


@final
class PixelateC(CommonCorruption):
    """Pixelation of ImageNet-C by the boxes of Pillow, without its rounding between passes.

    Pillow rounds halves up, so that photographs are 0.06 to 0.5 levels darker here on average.
    """

    name = "pixelate-c"
    at_224 = (0.6, 0.5, 0.4, 0.3, 0.25)
    at_32 = (0.95, 0.9, 0.85, 0.75, 0.65)

    def corrupt(self, pixels: ImagePixels, noise: Noise, c: float) -> ImagePixels:
        down, across = (there_and_back(side, max(1, int(side * c))).to(pixels) for side in pixels.shape[-2:])
        return down @ pixels @ across.T


@cache
def there_and_back(size: int, few: int) -> Float[Tensor, "size size"]:
    """Matrix that shrinks a row of pixels and enlarges it again, shape (size, size)."""
    return boxes(few, size) @ boxes(size, few)


def boxes(size: int, wanted: int) -> Float[Tensor, "wanted size"]:
    """Matrix that resamples a row with boxes, shape (wanted, size).

    Example:
        >>> boxes(4, 2).tolist()
        [[0.5, 0.5, 0.0, 0.0], [0.0, 0.0, 0.5, 0.5]]
    """
    scale = size / wanted
    centre = (torch.arange(wanted, dtype=torch.float64)[:, None] + 0.5) * scale
    away = (torch.arange(size) + 0.5 - centre) / max(scale, 1.0)
    inside = ((away > -0.5) & (away <= 0.5)).double()
    return inside / inside.sum(1, keepdim=True)


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
