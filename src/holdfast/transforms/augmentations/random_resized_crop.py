"""A random part of the image enlarged to its size (Szegedy et al. 2015, https://arxiv.org/abs/1409.4842).

Area and aspect ratio are drawn up to ten times until the crop fits into the image; else it is as much of the middle as
the ratio allows. The crop is never larger than the image, so nothing shrinks and no antialiasing is needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.core.errors import HoldfastError
from holdfast.core.noise import Noise
from holdfast.transforms.base import ImagePixels, Transform
from holdfast.transforms.sampling import sampled

TRIES = 10


@final
@dataclass(frozen=True)
class RandomResizedCrop(Transform):
    """A crop of ``scale_min`` to ``scale_max`` of the area, its width over its height up to ``ratio`` or its inverse.

    The area is uniform, the ratio uniform in its logarithm, whole pixels are cut out, and enlarging is bilinear.
    """

    scale_min: float = 0.08
    scale_max: float = 1.0
    ratio: float = 4 / 3
    name = "random-resized-crop"
    draws = True

    def __post_init__(self) -> None:
        if not 0 < self.scale_min <= self.scale_max <= 1:
            raise HoldfastError(
                "scales of random-resized-crop are shares of the area, 0 < scale_min <= scale_max <= 1, "
                f"got {self.scale_min} and {self.scale_max}"
            )
        if not 1 <= self.ratio < float("inf"):
            raise HoldfastError(f"ratio of random-resized-crop is the widest crop's and at least 1, got {self.ratio}")

    def change(self, pixels: ImagePixels, noise: Noise) -> ImagePixels:
        return resized_crops(pixels, self.boxes(noise, *pixels.shape[-2:]))

    def boxes(self, noise: Noise, height: int, width: int) -> Float[Tensor, "b 4"]:
        """Return the crop of each image: top, left, height and width in whole pixels."""
        draws = noise.uniform((2 * TRIES + 2,), torch.float64)
        area = height * width * (self.scale_min + (self.scale_max - self.scale_min) * draws[:, :TRIES])
        ratio = torch.exp(log(self.ratio) * (2 * draws[:, TRIES:-2] - 1))
        shapes = torch.stack([(area / ratio).sqrt().round(), (area * ratio).sqrt().round()], -1)
        fits = ((shapes >= 1) & (shapes <= shapes.new_tensor([height, width]))).all(-1)
        # The last resort counts as one more try, which always fits.
        resort = [min(height, round(width * self.ratio)), min(width, round(height * self.ratio))]
        shapes = torch.cat([shapes, shapes.new_tensor(resort).expand(len(shapes), 1, 2)], 1)
        first = torch.cat([fits, fits.new_ones(len(fits), 1)], 1).int().argmax(1)
        size = shapes[torch.arange(len(shapes), device=shapes.device), first]
        room = size.new_tensor([height, width]) - size
        middle = (first == TRIES)[:, None]
        return torch.cat([torch.where(middle, room / 2, draws[:, -2:] * (room + 1)).floor(), size], 1)


def resized_crops(pixels: ImagePixels, boxes: Float[Tensor, "b 4"]) -> ImagePixels:
    """Return what lies in the box of each image (top, left, height, width), enlarged to the size of the image."""
    rows, columns = (
        _places(boxes[:, axis, None], boxes[:, axis + 2, None], side) for axis, side in enumerate(pixels.shape[-2:])
    )
    return sampled(pixels, rows[:, :, None], columns[:, None])


def _places(start: Tensor, length: Tensor, side: int) -> Float[Tensor, "b side"]:
    """Return where to read along one axis; beyond the crop's outermost pixels there is nothing of the crop."""
    centres = (torch.arange(side, dtype=start.dtype, device=start.device) + 0.5) * length / side - 0.5
    return start + torch.minimum(centres.clamp(min=0), length - 1)
