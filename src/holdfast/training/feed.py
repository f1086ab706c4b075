"""Images of each training step: their order, their pixels in time, and crops at their native size.

The order of an epoch depends on (seed, image ids, epoch) alone. So an interrupted run continues with the next batch, and
a run of several processes sees the batches of a run in one process.

Views can be cut from images at their native size, as papers on ImageNet do, instead of from resized images. A crop of an
eighth of the area of a photograph of 500 pixels has 177 pixels a side; of the same photograph resized to 224 pixels it
has 79, so the view is blurred.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from math import prod
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Int, Shaped
from torch import Tensor
from torch.nn.functional import interpolate

from holdfast.core.encoder import Domain, Pixels
from holdfast.core.errors import HoldfastError
from holdfast.core.geometry import Preprocessing
from holdfast.core.images import Images, Source, Subset
from holdfast.core.noise import Noise
from holdfast.data.reading.decode import pixel_limit, side_by_side
from holdfast.data.reading.scan import Encoded
from holdfast.training.processes import processes, rank
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


HELD = 2 << 30
"""Bytes of images, as they are read, that are kept in memory."""
READERS, AHEAD = 4, 4
"""Threads that read images which are not, and batches that they are ahead."""


class Feed:
    """Batches of the training images, this process's part of each.

    Args:
        images: Training images.
        domain: Shape and range of the inputs.
        batch: Images in a batch, over all processes.
        seed: Seed of the order.
        device: Device of the pixels.
        augmentations: Augmentation of each view, if views are cut from images at their own size.
    """

    def __init__(
        self,
        images: Images,
        domain: Domain,
        batch: int,
        seed: int,
        device: torch.device,
        augmentations: Sequence[Transform | None] = (),
    ) -> None:
        if len(images) < batch:
            raise HoldfastError(
                f"{images.name} holds {len(images)} images, fewer than a batch of {batch}; set batch to at most "
                f"{len(images)}, or add images"
            )
        if batch % processes():
            raise HoldfastError(
                f"a batch of {batch} cannot be cut into {processes()} equal parts, one for each process; choose a multiple"
            )
        self.images, self.domain, self.device, self.batch = images, domain, device, batch
        self.augmentations = augmentations
        self.noise = Noise.of(seed, images.ids)
        first = images.source.read([0])
        domain.check(images.pixels([0], domain=domain), of=f"images of {images.name}")
        small = first.element_size() * prod(first.shape) * len(images) <= HELD
        self.held = self._read_all() if small and not augmentations else None

    def _read_all(self) -> Tensor:
        size = 1024
        return torch.cat(
            [
                self._read(range(start, min(start + size, len(self.images)))).cpu()
                for start in range(0, len(self.images), size)
            ]
        )

    def _read(self, rows: Sequence[int]) -> Tensor:
        """Return the images at ``rows`` as their source has them, checked unless all their values stand for [0, 1]."""
        read = self.images.source.read(rows)
        if read.dtype != torch.uint8:
            self.domain.check(read.float(), of=f"images {self.images.ids[rows[0]]!r} ...")
        return read

    @property
    def steps(self) -> int:
        """Whole batches per epoch; images left over wait for the order of another epoch."""
        return len(self.images) // self.batch

    def _batch(self, rows: Tensor, epoch: int) -> Tensor:
        """Return what a step needs: the images, or the first crops of their views, shape (b, views, c, h, w)."""
        if not self.augmentations:
            return self._read(rows.tolist())
        height, width = self.domain.shape[1:]
        noise = self.noise.fork("epoch", epoch)[rows]
        return crops(self.images.source, rows.tolist(), self.augmentations, noise, (height, width))

    def epoch(self, epoch: int, first: int = 0) -> Iterator[tuple[Int[Tensor, "b"], Tensor]]:
        """Rows and pixels of this process's part of each batch; with ``augmentations``, the first crop of each view."""
        order = self.noise.fork("order", epoch).uniform((1,), torch.float64)[:, 0].argsort(stable=True)
        share = self.batch // processes()
        parts = [order[step * self.batch + rank() * share :][:share] for step in range(first, self.steps)]
        if self.held is not None:
            yield from ((rows, self._floats(self.held.index_select(0, rows))) for rows in parts)
            return
        with ThreadPoolExecutor(READERS) as readers:
            begun: deque[tuple[Tensor, Future[Tensor]]] = deque()
            for rows in parts:
                begun.append((rows, readers.submit(self._batch, rows, epoch)))
                if len(begun) > AHEAD:
                    rows, read = begun.popleft()
                    yield rows, self._floats(read.result())
            for rows, read in begun:
                yield rows, self._floats(read.result())

    def pixels(self, rows: Sequence[int]) -> Pixels:
        """Return the images at ``rows``."""
        return self._floats(self._read(rows) if self.held is None else self.held[list(rows)])

    def _floats(self, read: Tensor) -> Pixels:
        moved = read.to(self.device)  # as bytes if they are such
        return moved.float().div_(255) if read.dtype == torch.uint8 else moved.float()
