"""Images at an address that fsspec opens: `s3://bucket/folder`, `gs://`, `hf://datasets/user/name`, `https://` ..."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, final

import numpy as np
import torch
from numpy.lib import format as npy
from torch import Tensor

from holdfast.core.errors import HoldfastError, explained
from holdfast.core.images import Images
from holdfast.data import arrays, folder, tars
from holdfast.data.by_name import Selection, check_settings, kind, loaders
from holdfast.data.reading.array_source import load_array
from holdfast.data.reading.scan import load_encoded
from holdfast.data.reading.stores import SUFFIXES, FileStore, StoredFile, StoredFiles, ending, report


def load_stored(name: str, settings: dict[str, str], selection: Selection) -> Images:
    """Inputs from an array file at an address, by the rules of ``arrays``."""
    store, path = FileStore.at(name)
    (file,) = store.expand(path).values()
    if path.lower().endswith(".npy"):
        check_settings(settings, [], ".npy")
        return load_array(name, FetchedRows(file), None, selection, file.version)
    with TemporaryDirectory() as folder:
        copy = Path(folder, path.rpartition("/")[2])
        copy.write_bytes(file.read())
        try:
            images = arrays.load(str(copy), settings, selection)
        except HoldfastError as error:
            raise HoldfastError(str(error).replace(str(copy), name)) from error
    images.name = name
    return images


@final
class FetchedRows:
    """Rows of a remote .npy file, indexed like a tensor and fetched on demand."""

    def __init__(self, file: StoredFile) -> None:
        self.file = file
        problem = f"{file.address} is truncated or not a numpy file"
        with explained(problem, "write it again", ValueError), file.open() as opened:
            header = npy.read_array_header_1_0 if npy.read_magic(opened) == (1, 0) else npy.read_array_header_2_0
            shape, fortran, dtype = header(opened)
            self.start = opened.tell()
        arrays.check_type(str(dtype), shape, file.address)
        if fortran:
            raise HoldfastError(f"{file.address} is stored column by column; save numpy.ascontiguousarray of it")
        self.shape, self.stored = torch.Size(shape), dtype
        self.dtype = torch.from_numpy(np.empty(0, dtype)).dtype
        self.size = dtype.itemsize * int(np.prod(shape[1:]))

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> Tensor:
        """Return the row, or those of a tensor of rows."""
        if isinstance(rows, int):
            return self[torch.tensor([rows])][0]
        read = b"".join(self._read(first, last) for first, last in runs(rows.tolist()))
        return torch.from_numpy(np.frombuffer(bytearray(read), self.stored).reshape(-1, *self.shape[1:]))

    def _read(self, first: int, last: int) -> bytes:
        read = self.file.read(self.start + first * self.size, self.start + (last + 1) * self.size)
        if len(read) != (last + 1 - first) * self.size:
            raise HoldfastError(f"{self.file.address} is truncated: it ends before row {last}; write it again")
        return read


def runs(rows: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the first and last of each run of rows that follow each other.

    Example:
        >>> list(runs([3, 4, 5, 9, 2]))
        [(3, 5), (9, 9), (2, 2)]
    """
    for _, run in groupby(enumerate(rows), key=lambda pair: pair[1] - pair[0]):
        rows_of_run = [row for _, row in run]
        yield rows_of_run[0], rows_of_run[-1]


SOURCE = "fsspec"


def load(name: str, settings: dict[str, str], selection: Selection) -> Images:
    """Images of a folder, array file or tars at an address, without a copy on this machine.

    Settings are those of the same thing on this machine: see ``folder``, ``arrays`` and ``wds``.
    """
    store, path = FileStore.at(name)
    if store.local:
        return loaders()[kind(path)](path, settings, selection)
    if path.endswith(".tar"):
        return tars.load(name, settings, selection)
    if path.lower().endswith(tuple(arrays.SUFFIXES)):
        return load_stored(name, settings, selection)
    check_settings(settings, folder.SETTINGS, SOURCE)
    found = store.find(path)
    images = {name: file for name, file in found.items() if name.lower().endswith(SUFFIXES)}
    report(
        name,
        Counter(map(ending, found)),
        len(images),
        f"an address of a .tar or {', '.join(arrays.SUFFIXES)}, or files",
    )
    labels, names = folder.labelled(list(images), settings)
    files = StoredFiles(list(images.values()))
    return load_encoded(name, files, list(images), labels, selection, settings, names, distant=True)
