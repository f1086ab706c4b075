"""Common corruptions as the paper's programs define them, one image and one pixel at a time: slow and obvious.

Images are arrays (height, width, 3) in [0, 1]; draws are given. Nothing is rounded to 8 bits but where a definition
works on 8 bits. Parameters are those of make_imagenet_c.py (first) and make_cifar_c.py (second).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from io import BytesIO
from typing import Any, Literal

import numpy as np
import torch
from matplotlib.colors import hsv_to_rgb, rgb_to_hsv
from PIL import Image
from scipy import ndimage, stats

from holdfast.core.noise import Noise

Array = np.ndarray[Any, np.dtype[Any]]
Corruption = Callable[[Array, Noise, Any], Array]


def normal(noise: Noise, *shape: int) -> Array:
    """Return the draws of one image, channels last if there are any."""
    return channels_last(noise.normal(shape, dtype=torch.float64)[0].numpy())


def uniform(noise: Noise, *shape: int) -> Array:
    return channels_last(noise.uniform(shape, dtype=torch.float64)[0].numpy())


def channels_last(draws: Array) -> Array:
    return np.moveaxis(draws, 0, 2) if draws.ndim == 3 else draws


def shape_of(x: Array) -> tuple[int, int, int]:
    return x.shape[2], x.shape[0], x.shape[1]


def gaussian(x: Array, sigma: float, mode: Literal["nearest", "reflect"] = "nearest", truncate: float = 4.0) -> Array:
    return ndimage.gaussian_filter(x, (sigma, sigma, 0)[: x.ndim], mode=mode, truncate=truncate)


def gaussian_noise(x: Array, noise: Noise, c: float) -> Array:
    return x + c * normal(noise, *shape_of(x))


def speckle_noise(x: Array, noise: Noise, c: float) -> Array:
    return x + x * c * normal(noise, *shape_of(x))


def shot_noise(x: Array, noise: Noise, c: float) -> Array:
    # The quantile that a draw stands for: numpy's own generator turns other bits into counts.
    return np.asarray(stats.poisson.ppf(np.maximum(uniform(noise, *shape_of(x)), 1e-300), x * c)) / c


def impulse_noise(x: Array, noise: Noise, c: float) -> Array:
    out = x.copy()
    hit, white = (
        channels_last(noise.fork(part).uniform(shape_of(x))[0].numpy()) <= share  # in single precision
        for part, share in (("hit", c), ("white", 0.5))
    )
    out[hit & white], out[hit & ~white] = 1, 0
    return out


def gaussian_blur(x: Array, noise: Noise, c: float) -> Array:
    return gaussian(x, c)


def glass_blur(x: Array, noise: Noise, c: tuple[float, int, int]) -> Array:
    sigma, delta, rounds = c
    height, width = x.shape[:2]
    x = gaussian(x, sigma).copy()
    for turn in range(rounds):
        # The library draws in single precision.
        draws = noise.fork(turn).uniform((2, height * width))[0].numpy().reshape(2, height, width)
        for h in range(height - delta, delta, -1):
            for w in range(width - delta, delta, -1):
                dy, dx = (int(draws[axis, h, w] * 2 * delta) - delta for axis in (0, 1))
                # Rows of an array are views: the second assignment reads what the first has just written.
                x[h, w], x[h + dy, w + dx] = x[h + dy, w + dx], x[h, w]
    return gaussian(x, sigma)


def defocus_blur(x: Array, noise: Noise, c: tuple[float, float]) -> Array:
    radius, blur = c
    side = np.arange(-8, 9) if radius <= 8 else np.arange(-radius, radius + 1)
    X, Y = np.meshgrid(side, side)
    disk = (radius**2 >= X**2 + Y**2).astype(float)
    taps = np.arange(-1, 2) if radius <= 8 else np.arange(-2, 3)
    weights = np.exp(-(taps**2) / (2 * blur**2))
    weights /= weights.sum()
    kernel = ndimage.correlate(disk / disk.sum(), np.outer(weights, weights), mode="mirror")
    return np.stack([ndimage.correlate(x[..., d], kernel, mode="mirror") for d in range(x.shape[2])], 2)


def motion(x: Array, radius: int, sigma: float, degrees: float) -> Array:
    """ImageMagick's MotionBlurImage, pixel by pixel along the line."""
    width = 2 * radius + 1
    weights = [math.exp(-(i * i) / (2 * sigma * sigma)) for i in range(width)]
    point_x, point_y = width * math.sin(math.radians(degrees)), width * math.cos(math.radians(degrees))
    rows, columns = np.mgrid[: x.shape[0], : x.shape[1]]
    out = np.zeros_like(x)
    for i, weight in enumerate(weights):
        offset_x = math.ceil(i * point_y / math.hypot(point_x, point_y) - 0.5)
        offset_y = math.ceil(i * point_x / math.hypot(point_x, point_y) - 0.5)
        edge = np.clip(rows + offset_y, 0, x.shape[0] - 1), np.clip(columns + offset_x, 0, x.shape[1] - 1)
        out += weight / sum(weights) * x[edge]
    return out


def motion_blur(x: Array, noise: Noise, c: tuple[int, float]) -> Array:
    return motion(x, *c, float(90 * uniform(noise) - 45))


def clipped_zoom(x: Array, factor: float) -> Array:
    h = x.shape[0]
    ch = math.ceil(h / factor)
    top = (h - ch) // 2
    zoomed = ndimage.zoom(x[top : top + ch, top : top + ch], (factor, factor, 1)[: x.ndim], order=1)
    trim = (zoomed.shape[0] - h) // 2
    return zoomed[trim : trim + h, trim : trim + h]


def zoom_blur(x: Array, noise: Noise, c: Array) -> Array:
    return (x + sum(clipped_zoom(x, factor) for factor in c)) / (len(c) + 1)


def plasma(size: int, decay: float, draws: Array) -> Array:
    """The diamond-square method, point by point; the draw of a point stands at its place."""
    heights = np.zeros((size, size))
    step, wibble = size, 100.0
    while step >= 2:
        half = step // 2
        for i in range(half, size, step):
            for j in range(half, size, step):
                around = [heights[(i + a) % size, (j + b) % size] for a in (-half, half) for b in (-half, half)]
                heights[i, j] = sum(around) / 4 + wibble * wibble * draws[i, j]
        for i in range(0, size, half):
            for j in range(0, size, half):
                if (i // half + j // half) % 2:
                    cross = [(-half, 0), (half, 0), (0, -half), (0, half)]
                    around = [heights[(i + a) % size, (j + b) % size] for a, b in cross]
                    heights[i, j] = sum(around) / 4 + wibble * wibble * draws[i, j]
        step, wibble = half, wibble / decay
    heights -= heights.min()
    return heights / heights.max()


def fog(x: Array, noise: Noise, c: tuple[float, float]) -> Array:
    size = 2 ** math.ceil(math.log2(max(x.shape[:2])))
    layer = plasma(size, c[1], 2 * uniform(noise, size, size) - 1)[: x.shape[0], : x.shape[1], None]
    return (x + c[0] * layer) * x.max() / (x.max() + c[0])


def grey(x: Array) -> Array:
    return x @ np.array([0.299, 0.587, 0.114])


def snow(x: Array, noise: Noise, c: tuple[float, float, float, float, int, float, float]) -> Array:
    layer = c[0] + c[1] * normal(noise.fork("flakes"), 1, *x.shape[:2])[..., 0]
    layer = clipped_zoom(layer, c[2])
    layer[layer < c[3]] = 0
    layer = motion(np.clip(layer, 0, 1), c[4], c[5], float(90 * uniform(noise.fork("angle")) - 135))[..., None]
    x = c[6] * x + (1 - c[6]) * np.maximum(x, grey(x)[..., None] * 1.5 + 0.5)
    return x + layer + np.rot90(layer, k=2)


def canny(levels: Array, low: int = 50, high: int = 150) -> Array:
    """OpenCV's Canny, pixel by pixel."""
    ints = levels.astype(int)
    height, width = levels.shape
    sobel = np.array([[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]])
    gx, gy = (ndimage.correlate(ints, kernel, mode="nearest") for kernel in (sobel, sobel.T))
    size = np.pad(np.abs(gx) + np.abs(gy), 1)
    state = np.zeros((height, width), int)
    for i in range(height):
        for j in range(width):
            m, around = size[i + 1, j + 1], size[i : i + 3, j : j + 3]
            if m <= low:
                continue
            xs, ys = abs(int(gx[i, j])), abs(int(gy[i, j])) << 15
            if ys < xs * 13573:
                peak = m > around[1, 0] and m >= around[1, 2]
            elif ys > xs * 13573 + (xs << 16):
                peak = m > around[0, 1] and m >= around[2, 1]
            else:
                s = -1 if (gx[i, j] < 0) != (gy[i, j] < 0) else 1
                peak = m > around[0, 1 - s] and m > around[2, 1 + s]
            if peak:
                state[i, j] = 2 if m > high else 1
    stack = list(zip(*np.nonzero(state == 2), strict=True))
    while stack:
        i, j = stack.pop()
        for a in range(max(0, i - 1), min(height, i + 2)):
            for b in range(max(0, j - 1), min(width, j + 2)):
                if state[a, b] == 1:
                    state[a, b] = 2
                    stack.append((a, b))
    return state == 2


def equalise(levels: Array) -> Array:
    counts = np.bincount(levels.ravel(), minlength=256)
    first = int(np.nonzero(counts)[0][0])
    if counts[first] == levels.size:
        return levels
    scale, total, table = 255 / (levels.size - counts[first]), 0, np.zeros(256)
    for level in range(first + 1, 256):
        total += counts[level]
        table[level] = np.clip(np.rint(total * scale), 0, 255)
    return table[levels].astype(np.uint8)


def spatter(x: Array, noise: Noise, c: tuple[float, float, float, float, float, int]) -> Array:
    liquid = gaussian(c[0] + c[1] * normal(noise, 1, *x.shape[:2])[..., 0], c[2])
    liquid[liquid < c[3]] = 0
    if c[5] == 0:
        levels = np.clip(liquid * 255, 0, 255).astype(np.uint8)
        near = np.minimum(ndimage.distance_transform_edt(~canny(levels)), 20)
        box = np.full((3, 3), 1 / 9)
        depth = equalise((ndimage.correlate(near, box, mode="mirror") + 1e-6).astype(np.uint8))
        ker = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]])
        lit = np.clip(ndimage.correlate(depth.astype(int), ker, mode="mirror"), 0, 255)
        m = levels * np.rint(ndimage.correlate(lit.astype(float), box, mode="mirror"))
        return x + m[..., None] / m.max() * c[4] * np.array([175, 238, 238]) / 255
    m = gaussian(np.where(liquid > c[3], 1.0, 0.0), c[4])
    m[m < 0.8] = 0
    return x * (1 - m[..., None]) + np.array([63, 42, 20]) / 255 * m[..., None]


def contrast(x: Array, noise: Noise, c: float) -> Array:
    means = np.mean(x, axis=(0, 1), keepdims=True)
    return (x - means) * c + means


def brightness(x: Array, noise: Noise, c: float) -> Array:
    hsv = rgb_to_hsv(x)
    hsv[..., 2] = np.clip(hsv[..., 2] + c, 0, 1)
    return hsv_to_rgb(hsv)


def saturate(x: Array, noise: Noise, c: tuple[float, float]) -> Array:
    hsv = rgb_to_hsv(x)
    hsv[..., 1] = np.clip(hsv[..., 1] * c[0] + c[1], 0, 1)
    return hsv_to_rgb(hsv)


def picture(x: Array) -> Image.Image:
    return Image.fromarray(np.rint(x * 255).astype(np.uint8))


def jpeg_compression(x: Array, noise: Noise, c: int) -> Array:
    file = BytesIO()
    picture(x).save(file, "JPEG", quality=c)
    return np.array(Image.open(file)) / 255


def pixelate(x: Array, noise: Noise, c: float) -> Array:
    side = x.shape[0]
    few = int(side * c)
    small = picture(x).resize((few, few), Image.Resampling.BOX)
    return np.array(small.resize((side, side), Image.Resampling.BOX)) / 255


def elastic_transform(x: Array, noise: Noise, c: tuple[float, float, float]) -> Array:
    height, width = x.shape[:2]
    square = min(height, width) // 3
    center = np.array([height // 2, width // 2], float)
    pts1 = np.array([center + square, [center[0] + square, center[1] - square], center - square])
    pts2 = pts1 + c[2] * (2 * uniform(noise.fork("corners"), 3, 2) - 1)
    forward = np.linalg.solve(np.column_stack([pts1, np.ones(3)]), pts2).T  # (x', y') = A (x, y, 1)
    inverse = np.linalg.inv(np.vstack([forward, [0, 0, 1]]))
    columns, rows = np.meshgrid(np.arange(width), np.arange(height))
    from_x, from_y = (inverse[axis, 0] * columns + inverse[axis, 1] * rows + inverse[axis, 2] for axis in range(2))
    shift = 2 * noise.fork("shifts").uniform((2, height, width), torch.float64)[0].numpy() - 1
    dx, dy = (gaussian(part, c[1], "reflect", 3) * c[0] for part in shift)
    out = np.empty_like(x)
    for d in range(x.shape[2]):
        turned = ndimage.map_coordinates(x[..., d], [from_y, from_x], order=1, mode="mirror")
        out[..., d] = ndimage.map_coordinates(turned, [rows + dy, columns + dx], order=1, mode="reflect")
    return out


PUBLISHED: dict[str, tuple[Corruption, Any, Any]] = {
    "gaussian-noise-c": (gaussian_noise, [0.08, 0.12, 0.18, 0.26, 0.38], [0.04, 0.06, 0.08, 0.09, 0.10]),
    "shot-noise-c": (shot_noise, [60, 25, 12, 5, 3], [500, 250, 100, 75, 50]),
    "impulse-noise-c": (impulse_noise, [0.03, 0.06, 0.09, 0.17, 0.27], [0.01, 0.02, 0.03, 0.05, 0.07]),
    "speckle-noise-c": (speckle_noise, [0.15, 0.2, 0.35, 0.45, 0.6], [0.06, 0.1, 0.12, 0.16, 0.2]),
    "gaussian-blur-c": (gaussian_blur, [1, 2, 3, 4, 6], [0.4, 0.6, 0.7, 0.8, 1]),
    "glass-blur-c": (
        glass_blur,
        [(0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)],
        [(0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)],
    ),
    "defocus-blur-c": (
        defocus_blur,
        [(3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)],
        [(0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)],
    ),
    "motion-blur-c": (
        motion_blur,
        [(10, 3), (15, 5), (15, 8), (15, 12), (20, 15)],
        [(6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)],
    ),
    "zoom-blur-c": (
        zoom_blur,
        [
            np.arange(1, 1.11, 0.01),
            np.arange(1, 1.16, 0.01),
            np.arange(1, 1.21, 0.02),
            np.arange(1, 1.26, 0.02),
            np.arange(1, 1.31, 0.03),
        ],
        [
            np.arange(1, 1.06, 0.01),
            np.arange(1, 1.11, 0.01),
            np.arange(1, 1.16, 0.01),
            np.arange(1, 1.21, 0.01),
            np.arange(1, 1.26, 0.01),
        ],
    ),
    "fog-c": (
        fog,
        [(1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)],
        [(0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)],
    ),
    "snow-c": (
        snow,
        [
            (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
            (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
            (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
            (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
            (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
        ],
        [
            (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
            (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
            (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
            (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
            (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
        ],
    ),
    "spatter-c": (
        spatter,
        [
            (0.65, 0.3, 4, 0.69, 0.6, 0),
            (0.65, 0.3, 3, 0.68, 0.6, 0),
            (0.65, 0.3, 2, 0.68, 0.5, 0),
            (0.65, 0.3, 1, 0.65, 1.5, 1),
            (0.67, 0.4, 1, 0.65, 1.5, 1),
        ],
        [
            (0.62, 0.1, 0.7, 0.7, 0.5, 0),
            (0.65, 0.1, 0.8, 0.7, 0.5, 0),
            (0.65, 0.3, 1, 0.69, 0.5, 0),
            (0.65, 0.1, 0.7, 0.69, 0.6, 1),
            (0.65, 0.1, 0.5, 0.68, 0.6, 1),
        ],
    ),
    "contrast-c": (contrast, [0.4, 0.3, 0.2, 0.1, 0.05], [0.75, 0.5, 0.4, 0.3, 0.15]),
    "brightness-c": (brightness, [0.1, 0.2, 0.3, 0.4, 0.5], [0.05, 0.1, 0.15, 0.2, 0.3]),
    "saturate-c": (
        saturate,
        [(0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2)],
        [(0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)],
    ),
    "jpeg-compression-c": (jpeg_compression, [25, 18, 15, 10, 7], [80, 65, 58, 50, 40]),
    "pixelate-c": (pixelate, [0.6, 0.5, 0.4, 0.3, 0.25], [0.95, 0.9, 0.85, 0.75, 0.65]),
    "elastic-transform-c": (
        elastic_transform,
        [
            (244 * 2, 244 * 0.7, 244 * 0.1),
            (244 * 2, 244 * 0.08, 244 * 0.2),
            (244 * 0.05, 244 * 0.01, 244 * 0.02),
            (244 * 0.07, 244 * 0.01, 244 * 0.02),
            (244 * 0.12, 244 * 0.01, 244 * 0.02),
        ],
        [
            (32 * 0, 32 * 0, 32 * 0.08),
            (32 * 0.05, 32 * 0.2, 32 * 0.07),
            (32 * 0.08, 32 * 0.06, 32 * 0.06),
            (32 * 0.1, 32 * 0.04, 32 * 0.05),
            (32 * 0.1, 32 * 0.03, 32 * 0.03),
        ],
    ),
}
"""All but frost, which needs the paper's photographs."""
