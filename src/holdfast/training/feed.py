"""Which images each step sees, in which order, and their pixels in time for it.

The order of an epoch follows from (seed, image ids, epoch) alone, so that a run that was interrupted goes on with the next
batch, and a run of several processes sees the batches of a run alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from math import prod

import torch
from jaxtyping import Int
from torch import Tensor

from holdfast.core.encoder import Domain, Pixels
from holdfast.core.errors import HoldfastError
from holdfast.core.images import Images
from holdfast.core.noise import Noise
from holdfast.training.native import crops
from holdfast.training.processes import processes, rank
from holdfast.transforms.base import Transform

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
        """Rows and pixels of this process's part of each batch; with ``augmentations``, the first crop of each view.

        Args:
            epoch: Number of the epoch, from 0.
            first: Batch to start from.
        """
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
