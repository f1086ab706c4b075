"""Frosted glass: a blur, pixels that trade places with their neighbours, and a blur again."""

from __future__ import annotations

from typing import final

import torch
from jaxtyping import Int
from torch import Tensor

from holdfast.core.noise import Noise
from holdfast.transforms.base import ImagePixels
from holdfast.transforms.imagenet_c.severity import CommonCorruption
from holdfast.transforms.smoothing import gaussian_kernel, smoothed


@final
class GlassBlurC(CommonCorruption):
    """Glass blur of ImageNet-C. As published, whose program copies a neighbour where its text swaps with it."""

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
    """Return which pixel's old value each pixel has after one round.

    A round goes through the inner pixels from the last to the first and gives each the value that a neighbour, at most
    ``reach`` away, has at that time: its new one if it comes later in the image, as it was visited, else its old one. So
    each pixel points at its neighbour, and those that point onward are followed, twice as far each time, to the end.
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
