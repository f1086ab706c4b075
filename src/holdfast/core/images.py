"""Unlabelled images: a lazy sequence with an id per sample and a fingerprint over all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from hashlib import blake2b, sha256
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Int
from torch import Tensor

from holdfast.core.arguments import check_dense, check_labels
from holdfast.core.encoder import Domain, Pixels
from holdfast.core.errors import HoldfastError


@runtime_checkable
class Source(Protocol):
    """Where pixels come from: a folder, an array on disk, a tensor."""

    def __len__(self) -> int: ...

    def read(self, rows: Sequence[int]) -> Tensor:
        """Return the images at ``rows``, shape (b, *pixels): float in the encoder's range, or uint8 in 0..255."""
        ...

    def digest(self, row: int) -> bytes:
        """Return bytes that change whenever the pixels of ``row`` do."""
        ...


class TensorSource:
    """Images held in memory (or in a memory map), float or uint8."""

    def __init__(self, pixels: Tensor) -> None:
        check_dense(pixels, "images")
        if pixels.ndim < 2:
            raise HoldfastError(f"images must have shape (n, *pixels), got {tuple(pixels.shape)}")
        self.pixels = pixels

    def __len__(self) -> int:
        return len(self.pixels)

    def read(self, rows: Sequence[int]) -> Tensor:
        return self.pixels[torch.as_tensor(rows, dtype=torch.int64)]

    def digest(self, row: int) -> bytes:
        values = self.pixels[row].detach().cpu().contiguous()
        # As bytes, for numpy has no bfloat16.
        content = values.reshape(-1).view(torch.uint8).numpy().tobytes()
        return blake2b(f"{values.dtype}{tuple(values.shape)}".encode() + content, digest_size=16).digest()


class Images:
    """Images with an id each, read only when asked for. Labels are optional; what looks at them says ``uses_labels``.

    Args:
        pixels: a tensor (n, *pixels), float in the encoder's range or uint8 (divided by 255), or a lazy ``Source``.
        ids: distinct names, one per image; noise is keyed by them. Defaults to "0", "1", ...
        labels: (n,) integers, if known.
        name: how reports call the set.
        classes: what each label is called, by its number, if that is known.

    Example:
        >>> images = Images(torch.zeros(3, 1, 2, 2), ids=["a", "b", "c"])
        >>> images[[2, 0]].ids
        ('c', 'a')
    """

    def __init__(
        self,
        pixels: Tensor | Source,
        ids: Sequence[str] | None = None,
        labels: Int[Tensor, "n"] | None = None,
        name: str = "images",
        classes: Sequence[str] = (),
    ) -> None:
        if not isinstance(pixels, Tensor | Source):
            check_dense(pixels, name)
        check_labels(labels, name)
        self.source: Source = TensorSource(pixels) if isinstance(pixels, Tensor) else pixels
        if len(self.source) == 0:
            raise HoldfastError(f"{name} holds no images")
        self.ids = tuple(ids) if ids is not None else tuple(map(str, range(len(self.source))))
        self.labels, self.name, self.classes = labels, name, tuple(classes)
        if len(self.ids) != len(self.source) or (labels is not None and len(labels) != len(self.source)):
            counted = f"{len(self.ids)} ids and {'no' if labels is None else len(labels)} labels"
            raise HoldfastError(f"{name} has {len(self.source)} images but {counted}; give one of each per image")
        if any(not isinstance(name, str) for name in self.ids):
            strange = next(name for name in self.ids if not isinstance(name, str))
            raise HoldfastError(f"ids must be text, got {strange!r}; list(map(str, ids)) makes text of them")
        if len(set(self.ids)) != len(self.ids):
            twice = Counter(self.ids).most_common(1)[0][0]
            raise HoldfastError(f"ids must be distinct, {twice!r} occurs twice")

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, rows: Sequence[int]) -> Images:
        rows = list(rows)
        labels = None if self.labels is None else self.labels[rows]
        return Images(Subset(self.source, rows), [self.ids[row] for row in rows], labels, self.name, self.classes)

    def pixels(
        self,
        rows: Sequence[int],
        device: str | torch.device = "cpu",
        dtype: torch.dtype = torch.float32,
        domain: Domain | None = None,
    ) -> Pixels:
        """Return the images at ``rows`` as floats on ``device``, checked against ``domain`` if one is given."""
        read = self.source.read(rows)
        if domain is not None and read.dtype == torch.uint8 and (domain.low, domain.high) != (0, 1):
            raise HoldfastError(
                f"uint8 images stand for [0, 1], but this encoder takes [{domain.low:g}, {domain.high:g}]; pass floats"
            )
        moved = read.to(device, dtype)
        # Division, not multiplication by the reciprocal, so that 255 becomes exactly 1.
        moved = moved / 255 if read.dtype == torch.uint8 else moved
        if domain is not None:
            domain.check(moved, of=f"images {self.ids[rows[0]]!r} ...")
        return moved

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
    def digests(self) -> tuple[bytes, ...]:
        """Hashes of the images one by one; equal images have equal ones."""
        return tuple(self.source.digest(row) for row in range(len(self)))


class Subset:
    """Some rows of another source."""

    def __init__(self, source: Source, rows: Sequence[int]) -> None:
        self.source, self.rows = source, list(rows)
        self.skipped: Mapping[str, str] = getattr(source, "skipped", {})

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, rows: Sequence[int]) -> Tensor:
        return self.source.read([self.rows[row] for row in rows])

    def digest(self, row: int) -> bytes:
        return self.source.digest(self.rows[row])
