"""Index files of FAISS, read without FAISS: flat, IVF-flat and product-quantised ones, also behind an id map.

The layout is that of ``faiss/impl/index_write.cpp``: four letters name the class, a header holds width and count, and each
list is preceded by its length. Every length is checked against the size of the file before it is used, and all other
classes are refused by name. Nothing in the file is run.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass, replace
from pathlib import Path
from struct import calcsize, unpack_from
from typing import Any, final

import numpy as np
from jaxtyping import Float, Int, Shaped

from holdfast.core.errors import Described, OutOfRange, Unreadable

SUFFIXES = (".faiss", ".index")
FLAT, IVF, PQ, MAPS = ("IxF2", "IxFI", "IxFl"), "IwFl", "IxPq", ("IxMp", "IxM2")
OTHERS = {
    "IxSQ": "IndexScalarQuantizer",
    "IxPT": "IndexPreTransform",
    "IxRF": "IndexRefineFlat",
    "IwPQ": "IndexIVFPQ",
    "IwQR": "IndexIVFPQR",
    "IwSq": "IndexIVFScalarQuantizer",
    "IwSQ": "IndexIVFScalarQuantizer",
    "IHNf": "IndexHNSWFlat",
    "IHN2": "IndexHNSW2Level",
    "IHNs": "IndexHNSWSQ",
    "IHNp": "IndexHNSWPQ",
    "INSf": "IndexNSGFlat",
    "IxHe": "IndexLSH",
    "IBxF": "IndexBinaryFlat",
    "IBwF": "IndexBinaryIVF",
}
"""Classes that are refused under their own name."""
KNOWN = "IndexFlat, IndexIVFFlat or IndexPQ, also in an IndexIDMap"
MOST_BYTES = 1 << 36
"""Largest file: 64 GiB."""
DEEPEST = 2
"""An id map may hold an index that has a quantiser; nothing is nested deeper."""


@final
@dataclass(frozen=True, eq=False)
class Index:
    """Vectors of an index file."""

    codes: Shaped[np.ndarray, "n c"]
    """Vectors in float32, mapped from the file if it is flat; codes in uint8 if there is a codebook."""
    ids: Int[np.ndarray, "n"] | None = None
    """Number of each vector; None if these are the positions."""
    centres: Float[np.ndarray, "m k s"] | None = None
    """Codebook of product quantisation: parts, centres, features of a part."""

    @property
    def width(self) -> int:
        """Features of a vector."""
        return int(self.codes.shape[1] if self.centres is None else self.centres.shape[0] * self.centres.shape[2])


def read(path: Path) -> Index:
    """Vectors, ids and codebook of the index file at ``path``.

    Raises:
        Unreadable: The file is truncated, damaged or too large.
        OutOfRange: The index is of a class that is not read.
    """
    index = _read(path)
    if len(index.codes) == 0:
        raise Unreadable(path.name, "the index holds no vectors", fix="write it after vectors were added")
    return index if index.ids is None else _in_order(index)


def _read(path: Path) -> Index:
    size = path.stat().st_size
    if not 0 < size <= MOST_BYTES:
        raise Unreadable(path.name, f"it has {size} bytes; an index file has 1 to {MOST_BYTES}")
    with path.open("rb") as file:
        reader = _Reader(path, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    index = _index(reader, 0)
    if reader.place != size:
        raise reader.damaged(f"{size - reader.place} bytes follow the index")
    return index


def codebook(path: Path) -> Float[np.ndarray, "m k s"]:
    """Codebook of an IndexPQ, which may hold no vectors yet.

    Raises:
        Unreadable: The file cannot be read, or holds no codebook.
    """
    if not path.is_file():
        raise Unreadable(str(path), "there is no such file", fix="check the path")
    centres = _read(path).centres
    if centres is None:
        raise Unreadable(path.name, "the index holds no codebook", fix="name the file of an IndexPQ")
    return centres


def _in_order(index: Index) -> Index:
    """Return the vectors in the order of their ids, which are positions if they count from 0."""
    assert index.ids is not None
    order = np.argsort(index.ids, kind="stable")
    ids = index.ids[order]
    positions = bool((ids == np.arange(len(ids))).all())
    return replace(index, codes=index.codes[order], ids=None if positions else ids)


@dataclass(eq=False)
class _Reader:
    """Place in a mapped file, from which numbers and lists are taken one after another."""

    path: Path
    content: mmap.mmap
    place: int = 0

    def damaged(self, reason: str) -> Unreadable:
        return Unreadable(self.path.name, f"{reason}, so this is no sound index file", fix="write it again")

    def take(self, layout: str) -> Any:
        """Return the next numbers of a ``struct`` layout, one or a tuple."""
        layout = f"<{layout}"
        if self.place + calcsize(layout) > len(self.content):
            raise self.damaged("it ends too early")
        values = unpack_from(layout, self.content, self.place)
        self.place += calcsize(layout)
        return values[0] if len(values) == 1 else values

    def array(self, count: int, dtype: str) -> np.ndarray:
        """Return the next ``count`` numbers as a view of the file."""
        length = count * np.dtype(dtype).itemsize
        if count < 0 or self.place + length > len(self.content):
            raise self.damaged(f"it states {count} numbers at byte {self.place}, more than it holds")
        values = np.frombuffer(self.content, dtype, count, self.place)
        self.place += length
        return values

    def listed(self, dtype: str, expected: int) -> np.ndarray:
        """Return a list that its length precedes, which must be ``expected``."""
        count = self.take("Q")
        if count != expected:
            raise self.damaged(f"a list has {count} entries where {expected} belong")
        return self.array(count, dtype)

    def name(self) -> str:
        """Return the four letters that name a class."""
        return bytes(self.array(4, "u1")).decode("latin-1")


def _index(reader: _Reader, depth: int) -> Index:
    """Return the index at the reader's place."""
    name = reader.name()
    if depth > DEEPEST or name not in (*FLAT, IVF, PQ, *MAPS):
        known = OTHERS.get(name, repr(name) if name.isalnum() else None)
        if known is None:
            raise reader.damaged("it does not begin like an index")
        fix = "export its vectors, as in numpy.save('codes.npy', index.reconstruct_n(0, index.ntotal))"
        raise OutOfRange(f"index {reader.path.name}", Described(known), KNOWN, fix=fix)
    width, count = _header(reader)
    if name in FLAT:
        return Index(reader.listed("<f4", width * count).reshape(count, width))
    if name in MAPS:
        inner = _index(reader, depth + 1)
        ids = reader.listed("<i8", count)
        inside = inner.ids is None or bool(((inner.ids >= 0) & (inner.ids < count)).all())
        if len(inner.codes) != count or inner.width != width or not inside:
            raise reader.damaged("its id map does not fit its vectors")
        return replace(inner, ids=ids if inner.ids is None else ids[inner.ids])
    return _quantised(reader, width, count) if name == PQ else _inverted(reader, width, count, depth)


def _header(reader: _Reader) -> tuple[int, int]:
    """Return width and count of an index."""
    width, count, _, _, _, metric = reader.take("iqqqBi")
    if metric > 1:
        reader.take("f")
    if not (0 < width <= len(reader.content) and 0 <= count <= len(reader.content)):
        raise reader.damaged(f"it states {count} vectors of {width} features")
    return width, count


def _quantised(reader: _Reader, width: int, count: int) -> Index:
    """Return the codes of an IndexPQ with its codebook."""
    features, parts, bits = reader.take("QQQ")
    if features != width or not 0 < parts <= width or width % parts:
        raise reader.damaged(f"it states {parts} parts of {features} features")
    if bits != 8:
        raise OutOfRange(f"index {reader.path.name}", Described(f"codes of {bits} bits"), "an IndexPQ of 8 bits")
    centres = reader.listed("<f4", 256 * width).reshape(parts, 256, width // parts)
    codes = reader.listed("u1", count * parts).reshape(count, parts)
    reader.take("iBi")  # how it searches
    return Index(codes, None, centres)


def _inverted(reader: _Reader, width: int, count: int, depth: int) -> Index:
    """Return the vectors of an IndexIVFFlat, list by list, with their ids."""
    lists = reader.take("QQ")[0]
    _index(reader, depth + 1)
    if (kind := reader.take("B")) > 2:
        raise reader.damaged(f"it has a direct map of kind {kind}")
    reader.array(reader.take("Q"), "<i8")
    if kind == 2:
        reader.array(2 * reader.take("Q"), "<i8")
    if (name := reader.name()) != "ilar":
        raise OutOfRange(f"index {reader.path.name}", Described(f"lists {name!r}"), "lists inside the file")
    if reader.take("QQ") != (lists, 4 * width):
        raise reader.damaged("its lists have another number or width")
    sizes = _sizes(reader, lists)
    if sum(sizes) != count:
        raise reader.damaged(f"its lists hold {sum(sizes)} vectors instead of {count}")
    if 4 * width * count > len(reader.content):
        raise reader.damaged(f"it states {count} vectors of {width} features")
    codes, ids, start = np.empty((count, width), np.float32), np.empty(count, np.int64), 0
    for size in filter(None, sizes):
        codes[start : start + size] = reader.array(size * width, "<f4").reshape(size, width)
        ids[start : start + size] = reader.array(size, "<i8")
        start += size
    return Index(codes, ids)


def _sizes(reader: _Reader, lists: int) -> list[int]:
    """Return how many vectors each list holds."""
    kind = reader.name()
    if kind == "full":
        return [int(size) for size in reader.listed("<u8", lists)]
    if kind != "sprs":
        raise reader.damaged(f"it has lists of kind {kind!r}")
    entries = reader.array(reader.take("Q"), "<u8").reshape(-1, 2).tolist()
    places = [place for place, _ in entries]
    if sorted(set(places)) != places or (places and places[-1] >= lists):
        raise reader.damaged("its lists are out of order")
    return [size for _, size in entries]
