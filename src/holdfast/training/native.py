"""Views cut from images at their own size, as papers on ImageNet make them, instead of from images resized before.

A crop of an eighth of the area of a photograph of 500 pixels has 177 pixels a side. Of the same photograph resized to
224 pixels it has 79, so the view is blurred.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Shaped
from torch import Tensor
from torch.nn.functional import interpolate

from holdfast.core.errors import HoldfastError
from holdfast.core.geometry import Preprocessing
from holdfast.core.images import Source, Subset
from holdfast.core.noise import Noise
from holdfast.data.reading.decode import pixel_limit, side_by_side
from holdfast.data.reading.scan import Encoded
from holdfast.transforms.augmentations.cropping import RandomResizedCrop
from holdfast.transforms.base import Chain, ImagePixels, Transform, TransformedSource, View

if TYPE_CHECKING:
    from PIL import Image


class AsStored(Preprocessing):
    """Neither resizing nor cropping."""

    words = "as stored"

    def __call__(self, image: Image.Image) -> Shaped[np.ndarray, "rows columns c"]:
        pixels = np.asarray(image)
        return pixels if pixels.ndim == 3 else pixels[..., None]


def as_stored(source: Source, row: int) -> Shaped[Tensor, "c h w"]:
    """Return an image at its own size: bytes, or floats in [0, 1]."""
    if isinstance(source, Subset):
        return as_stored(source.source, source.rows[row])
    if isinstance(source, TransformedSource):
        pixels = as_stored(source.images.source, row)
        noise = Noise.of(source.seed, [source.images.ids[row]])
        return source.transform((pixels / 255 if pixels.dtype == torch.uint8 else pixels)[None], noise)[0]
    if not isinstance(source, Encoded):
        return source.read([row])[0]
    with pixel_limit(source.scan.max_pixels):
        return source.otherwise(AsStored(), source.decoding).picture(row)


def first_crop(
    transform: Transform | None, noise: Noise
) -> tuple[RandomResizedCrop, Noise, Callable[[ImagePixels], ImagePixels]]:
    """Split an augmentation into the crop that it begins with, the draws of the crop, and what follows.

    Args:
        transform: Augmentation.
        noise: Random streams that ``transform.applied`` would get.

    Raises:
        HoldfastError: The augmentation begins with something else.
    """
    steps = transform.chain if isinstance(transform, View) else transform
    if isinstance(steps, RandomResizedCrop):
        return steps, noise.fork("transform", steps.name), lambda pixels: pixels
    if transform is None or not isinstance(steps, Chain):
        raise HoldfastError(
            f"native: views are cut from images at their own size, got the augmentation {transform or 'none'}. Expected "
            "one that begins with random-resized-crop, such as simclr-view. Choose one, or set native=false."
        )
    noise = noise.fork("transform", transform.name)
    crop, drawn, rest = first_crop(steps.parts[0], noise.fork(0))

    def after(pixels: ImagePixels) -> ImagePixels:
        pixels = rest(pixels)
        for place, part in enumerate(steps.parts[1:], 1):
            pixels = part.applied(pixels, noise.fork(place))
        return pixels

    return crop, drawn, after


def crops(
    source: Source, rows: Sequence[int], augmentations: Sequence[Transform | None], noise: Noise, size: tuple[int, int]
) -> Shaped[Tensor, "b views c h w"]:
    """First crop of each view, resized with antialiasing; each image is read once for all its views.

    Args:
        source: Images of any size.
        rows: Rows to read.
        augmentations: Augmentation of each view.
        noise: Random streams of the epoch, one per row.
        size: Height and width of the crops in pixels.
    """
    first = [first_crop(augmentation, noise.fork("view", place)) for place, augmentation in enumerate(augmentations)]
    drawn = [
        (crop, crop.drawn(own)) for crop, own, _ in first
    ]  # for all images at once: threads wait for each other here

    def cut(position: int) -> Tensor:
        picture, views = as_stored(source, rows[position]), []
        for crop, draws in drawn:
            box = crop.boxes_of(draws[position : position + 1], *picture.shape[-2:])[0]
            top, left, height, width = map(int, box)
            part = picture[None, :, top : top + height, left : left + width]
            views.append(interpolate(part, size, mode="bilinear", antialias=True)[0])
        return torch.stack(views)

    return torch.stack(list(side_by_side(cut, range(len(rows)))))
