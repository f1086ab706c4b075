"""Unlabelled images: a lazy sequence with an id per sample and a fingerprint over all."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from hashlib import blake2b, sha256
from math import isfinite
from reprlib import repr as shortened
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from holdfast.core.checks import check_dense, check_labels
from holdfast.core.encoder import Domain, Pixels
from holdfast.core.errors import Described, HoldfastError, OutOfRange
from holdfast.core.noise import Noise

DIGEST = 16
"""Bytes of the digest of a row of values."""
THREADS = min(8, os.cpu_count() or 1)
"""Threads that read, hash and decode images."""
SHARED_OUT = 1 << 22
"""Bytes from which several threads hash: they take as long to start as a megabyte does."""


@runtime_checkable
class Source(Protocol):
    """Where pixels come from: a folder, an array on disk, a tensor.

    What is kept of a run is filed under the digests of its images. So a source that can change checks what it reads
    against every digest it has given, with ``require_unchanged``.
    """

    def __len__(self) -> int: ...

    def read(self, rows: Sequence[int]) -> Tensor:
        """Images at ``rows``, shape (b, *pixels): floats in the encoder's range, or uint8."""
        ...

    def digest(self, row: int) -> bytes:
        """Return bytes that change whenever the pixels of ``row`` do."""
        ...


class TensorSource:
    """Images held in memory (or in a memory map), float or uint8."""

    def __init__(self, pixels: Tensor) -> None:
        check_dense(pixels, "images")
        if pixels.ndim < 2:
            raise OutOfRange("images", tuple(pixels.shape), "of shape (n, *pixels)")
        self.pixels = pixels
        self._digests = dict[int, bytes]()

    def __len__(self) -> int:
        return len(self.pixels)

    def read(self, rows: Sequence[int]) -> Tensor:
        chosen = torch.as_tensor(rows, dtype=torch.int64)
        pixels, digests = self.pixels[chosen], {}
        for position, row in enumerate(chosen.tolist() if self._digests else ()):
            if row in self._digests:
                digests[position] = f"image {row} in memory", self._digests[row]
        check_unchanged(pixels, digests)
        return pixels

    def digest(self, row: int) -> bytes:
        if row not in self._digests:
            self._digests[row] = row_digests(self.pixels[row][None])[0]
        return self._digests[row]


def row_digests(values: Tensor) -> list[bytes]:
    """Return a hash of each row of ``values`` (n, ...): of its type, shape and bytes."""
    start = blake2b(f"{values.dtype}{tuple(values.shape[1:])}".encode(), digest_size=DIGEST)
    flat = values.detach().cpu().reshape(len(values), values[:1].numel()).contiguous()
    content = flat.view(torch.uint8).numpy()  # as bytes, because numpy has no bfloat16

    def hashed(row: int) -> bytes:
        digest = start.copy()
        digest.update(content[row])
        return digest.digest()

    if content.nbytes < SHARED_OUT:
        return [hashed(row) for row in range(len(content))]
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(hashed, range(len(content))))


def check_unchanged(read: Tensor, expected: Mapping[int, tuple[str, bytes]]) -> None:
    """Check that images still have the digests seen before.

    Args:
        expected: Name and digest of each image, by its position in ``read``.

    Raises:
        HoldfastError: An image changed.
    """
    digests = row_digests(read) if expected else []
    for position, (name, before) in expected.items():
        if digests[position] != before:
            raise changed(name)


def changed(image: str) -> HoldfastError:
    """Return what is raised where ``image`` is not what it was when its digest was taken."""
    return HoldfastError(
        f"{image} was changed since its digest was taken, so nothing of it is kept; leave the images alone while they are "
        "read, and run the same command again (with --rehash if their size and time of change are what they were)"
    )


class Images:
    """Images with an id each, read lazily; labels are optional.

    Args:
        pixels: Tensor (n, *pixels), float in the encoder's range or uint8 (divided by 255), or a lazy ``Source``.
        ids: Distinct names, one per image; random streams depend on them. Default: "0", "1", ...
        labels: Whole numbers, shape (n,).
        name: Name of the set in reports.
        classes: Name of each label, by its number.
        groups: Name of the group (slide, patient or video) of each image; intervals are then computed over groups.

    Example:
        >>> images = Images(torch.zeros(3, 1, 2, 2), ids=["a", "b", "c"])
        >>> images[[2, 0]].ids, images[:2].ids
        (('c', 'a'), ('a', 'b'))
    """

    def __init__(
        self,
        pixels: Tensor | Source,
        ids: Sequence[str] | None = None,
        labels: Int[Tensor, "n"] | None = None,
        name: str = "images",
        classes: Sequence[str] = (),
        groups: Sequence[str] | None = None,
    ) -> None:
        if not isinstance(pixels, Tensor | Source):
            check_dense(pixels, name)
        check_labels(labels, name)
        self.source: Source = TensorSource(pixels) if isinstance(pixels, Tensor) else pixels
        if len(self.source) == 0:
            raise HoldfastError(f"{name} holds no images")
        self.ids = tuple(ids) if ids is not None else tuple(map(str, range(len(self.source))))
        self.labels, self.name, self.classes = labels, name, tuple(classes)
        self.groups = None if groups is None else tuple(groups)
        if self.groups is not None and len(self.groups) != len(self.source):
            raise HoldfastError(
                f"{name} has {len(self.source)} images but {len(self.groups)} groups; name one for each"
            )
        if len(self.ids) != len(self.source) or (labels is not None and len(labels) != len(self.source)):
            counted = f"{len(self.ids)} ids and {'no' if labels is None else len(labels)} labels"
            raise HoldfastError(f"{name} has {len(self.source)} images but {counted}; give one of each per image")
        if any(not isinstance(name, str) for name in self.ids):
            strange = next(name for name in self.ids if not isinstance(name, str))
            raise OutOfRange("ids", strange, "text", fix="list(map(str, ids)) makes text of them")
        if len(set(self.ids)) != len(self.ids):
            twice = Counter(self.ids).most_common(1)[0][0]
            raise OutOfRange("ids", Described(f"{twice!r} twice"), "distinct")

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, rows: Sequence[int] | Tensor | slice) -> Images:
        """Return the images at ``rows``: their numbers, a mask, or a slice."""
        numbers = self._numbers(rows)
        labels = None if self.labels is None else self.labels[numbers]
        groups = None if self.groups is None else [self.groups[row] for row in numbers]
        return Images(
            Subset(self.source, numbers), [self.ids[row] for row in numbers], labels, self.name, self.classes, groups
        )

    def _numbers(self, rows: object) -> list[int]:
        rows = rows.cpu() if isinstance(rows, Tensor) else rows
        try:
            chosen = rows if isinstance(rows, slice) else np.asarray(rows)
            numbers: Int[np.ndarray, "..."] = np.arange(len(self))[chosen]
        except (IndexError, TypeError, ValueError):
            numbers = np.zeros((), np.int64)
        if numbers.ndim != 1:
            raise HoldfastError(
                f"some of {len(self)} images are taken by their numbers, a mask or a slice, as in images[[2, 0]], "
                f"images[labels == 3] or images[:3], got {shortened(rows)}"
            )
        return list(map(int, numbers))

    def pixels(
        self,
        rows: Sequence[int],
        device: str | torch.device = "cpu",
        dtype: torch.dtype = torch.float32,
        domain: Domain | None = None,
    ) -> Pixels:
        """Read the images at ``rows`` as floats.

        Args:
            rows: Rows to read.
            device: Device of the result.
            dtype: Floating-point type of the result.
            domain: Domain to check the images against; None checks nothing.

        Returns:
            Images, shape (b, *pixels); uint8 images are divided by 255.

        Raises:
            HoldfastError: The images do not fit ``domain``.
        """
        read = self.source.read(rows)
        if domain is not None and read.dtype == torch.uint8 and (domain.low, domain.high) != (0, 1):
            raise HoldfastError(
                f"uint8 images stand for [0, 1], but this encoder takes [{domain.low:g}, {domain.high:g}]; pass floats"
            )
        # Bytes travel as such; floats as those that are wanted, because not every device has float64.
        moved = (read.to(device) if read.dtype == torch.uint8 else read).to(device, dtype)
        # Division, not multiplication by the reciprocal, so that 255 becomes exactly 1.
        moved = moved / 255 if read.dtype == torch.uint8 else moved
        if domain is not None:
            domain.check(moved, of=f"images {self.ids[rows[0]]!r} ...")
        return moved

    @property
    def inputs(self) -> Source | None:
        """Inputs from which stored embeddings were computed, row by row; None if unknown."""
        return getattr(self.source, "inputs", self.source)

    @property
    def skipped(self) -> Mapping[str, str]:
        """Files that were asked for but could not be read, and why."""
        return getattr(self.source, "skipped", {})

    @cached_property
    def fingerprint(self) -> str:
        """Return a hash of all ids and pixels."""
        digest = sha256()
        for name, image in zip(self.ids, self.digests, strict=True):
            digest.update(name.encode() + b"\0" + image)
        return digest.hexdigest()[:16]

    @cached_property
    def labels_fingerprint(self) -> str:
        """Return a hash of all labels, empty without any."""
        if self.labels is None:
            return ""
        return sha256(torch.as_tensor(self.labels).cpu().to(torch.int64).numpy().tobytes()).hexdigest()[:16]

    @cached_property
    def groups_fingerprint(self) -> str:
        """Return a hash of the groups, empty without any."""
        # The prefix tells numbers from those in which images of one group were other images to each other.
        return "" if self.groups is None else sha256(b"apart\0\0" + "\0".join(self.groups).encode()).hexdigest()[:16]

    @cached_property
    def digests(self) -> tuple[bytes, ...]:
        """Hashes of the images one by one; equal images have equal ones."""
        return tuple(self.source.digest(row) for row in range(len(self)))


class Subset:
    """Some rows of another source."""

    def __init__(self, source: Source, rows: Sequence[int]) -> None:
        self.source, self.rows = source, list(rows)
        self.skipped: Mapping[str, str] = getattr(source, "skipped", {})

    @property
    def inputs(self) -> Source | None:
        """Inputs from which stored embeddings of these rows were computed; None if unknown."""
        inputs = getattr(self.source, "inputs", self.source)
        return self if inputs is self.source else inputs and Subset(inputs, self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, rows: Sequence[int]) -> Tensor:
        return self.source.read([self.rows[row] for row in rows])

    def digest(self, row: int) -> bytes:
        return self.source.digest(self.rows[row])


def constant_images(domain: Domain, count: int, like: Tensor) -> Pixels:
    """Images of one value: the middle of the range, or the value nearest to 0.

    The value nearest to 0 is used where an end of the range is infinite.

    Example:
        >>> constant_images(Domain((2,), -1.0, 3.0), 1, torch.zeros(()))
        tensor([[1., 1.]])
        >>> constant_images(Domain((2,), 2.0, float("inf")), 1, torch.zeros(()))
        tensor([[2., 2.]])
    """
    middle = (domain.low + domain.high) / 2
    value = middle if isfinite(middle) else min(max(domain.low, 0.0), domain.high)
    return torch.full((count, *domain.shape), value, device=like.device, dtype=like.dtype)


def random_images(domain: Domain, noise: Noise, dtype: torch.dtype) -> Pixels:
    """One image per stream of ``noise``, uniform in the range.

    Where an end is infinite, values are normal and mirrored at the other end.

    Example:
        >>> images = random_images(Domain((3,), 2.0, float("inf")), Noise.of(0, ["a", "b"]), torch.float32)
        >>> images.shape, bool((images >= 2).all())
        (torch.Size([2, 3]), True)
    """
    width = domain.high - domain.low
    if isfinite(width):
        return domain.clip(domain.low + width * noise.uniform(domain.shape, dtype))
    values = noise.normal(domain.shape, dtype)
    for end in filter(isfinite, (domain.low, domain.high)):
        values = torch.where(values == domain.clip(values), values, 2 * end - values)
    return domain.clip(values)
