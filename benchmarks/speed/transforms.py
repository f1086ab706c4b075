"""Images a second that corruptions (over five severities) and augmentations change, in processor time of one thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import mean, median

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from benchmarks.measure import arguments
from holdfast.core.noise import Noise
from holdfast.transforms.base import Transform, transforms

BATCHES = {224: 8, 32: 128}
AUGMENTATIONS = (
    "random-resized-crop",
    "random-crop",
    "horizontal-flip",
    "color-jitter",
    "grayscale",
    "gaussian-blur",
    "solarize",
    "random-affine",
    "moco-cifar-view",
    "simclr-view",
)


def images(count: int, side: int) -> Tensor:
    """Return images with structure at several scales, on the 8-bit grid."""
    draws = torch.rand(count, 3, side // 8, side // 8, generator=torch.Generator().manual_seed(0))
    return (interpolate(draws, (side, side), mode="bicubic").clamp(0, 1) * 255).round() / 255


def seconds(transform: Callable[[Tensor, Noise], Tensor], pixels: Tensor, noise: Noise, repeats: int) -> float:
    """Return the median processor seconds for one image, after a run that fills what is kept between runs."""
    transform(pixels, noise)
    taken = []
    for _ in range(repeats):
        began = time.process_time()
        transform(pixels, noise)
        taken.append(time.process_time() - began)
    return median(taken) / len(pixels)


def corruptions(repeats: int) -> None:
    """Print a row for each common corruption and what they come to."""
    names = [name for name in transforms() if name.endswith("-c")]
    rates: dict[int, dict[str, float]] = {}
    for side, count in BATCHES.items():
        pixels, noise = images(count, side), Noise.of(0, [str(row) for row in range(count)])
        rates[side] = {
            name: 1
            / mean(seconds(Transform.read(f"{name}:{severity}"), pixels, noise, repeats) for severity in range(1, 6))
            for name in names
        }
    for name in names:
        print(f"{name:24} {rates[224][name]:8,.0f} {rates[32][name]:10,.0f}")
    for side, found in rates.items():
        whole = len(names) / sum(1 / rate for rate in found.values())
        print(
            f"{side} px: mean {mean(found.values()):,.0f}, least {min(found.values()):,.0f}, all 19 in turn {whole:,.0f}"
        )


def augmentations(repeats: int) -> None:
    """Print a row for each augmentation: images a second in batches for training, and how many plain copies one costs."""
    # Training frees blocks of this size at each step; from the first on, smaller ones cost no page faults.
    torch.zeros(31 << 18)
    for side, count in {32: 256, 224: 16}.items():
        pixels, noise = images(count, side), Noise.of(0, [str(row) for row in range(count)])
        for name in AUGMENTATIONS:
            one = seconds(Transform.read(name), pixels, noise, repeats)
            copy = seconds(lambda given, _: given.clone(), pixels, noise, repeats)
            print(f"{name:24} {side:4} pixels {1 / one:10,.0f} images a second, {one / copy:6.0f} copies")


def main() -> None:
    given = arguments(__doc__ or "")
    corruptions(given.repeats)
    augmentations(given.repeats)


if __name__ == "__main__":
    main()
