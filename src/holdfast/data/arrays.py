"""Inputs stored as one array: .npy (memory-mapped), .npz (held in memory) or .safetensors (memory-mapped)."""

from __future__ import annotations

import json
import mmap
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from holdfast.core.errors import Described, HoldfastError, OutOfRange, check_known, existing, explained, first_line
from holdfast.core.images import Images
from holdfast.data.by_name import Selection, as_labels, check_settings
from holdfast.data.reading.array_source import load_array

SOURCE = "arrays"
IMAGES, LABELS = ("images", "pixels", "x", "arr_0"), ("labels", "y")
"""The names under which the arrays of a file are looked for, first come first taken."""

UNPACKED = 4 << 30
"""Bytes of an archive that are unpacked whatever its size; above them a limit on the ratio keeps memory from filling."""

LET_GO = 64 << 20
"""Bytes of a mapped array that are read before its pages are given back."""
REACH = 2 << 20
"""Bytes that a system may map around a row that is read, because what is near will most likely be read next."""
SCATTERED = 32
"""Rows read at a time if they are not neighbours."""

TYPES = ("uint8", "float16", "float32", "float64")

STORED = {"U8": "u1", "F16": "<f2", "F32": "<f4", "F64": "<f8", "I8": "i1", "I16": "<i2", "I32": "<i4", "I64": "<i8"}
"""The types of safetensors files and numpy's names for them."""


def load(name: str, settings: dict[str, str], selection: Selection) -> Images:
    """Inputs from an array file; the settings ``images`` and ``labels`` choose its arrays.

    Values are uint8 (0 to 255, for encoders of pixels in [0, 1]) or floats in the encoder's range. Ids are positions.

    Raises:
        HoldfastError: The file is missing, damaged or does not fit the encoder.
    """
    path = existing(name)
    if path.suffix.lower() not in SUFFIXES:
        raise HoldfastError(f"an array file ends in {', '.join(SUFFIXES)}, got {name!r}")
    arrays = SUFFIXES[path.suffix.lower()](path, settings)
    check_type(str(arrays["images"].dtype), arrays["images"].shape, name)
    stored = as_rows(arrays["images"])
    labels = None
    if "labels" in arrays:
        labels = as_labels(arrays["labels"], len(stored), "labels" in settings, f"labels of {name}")
    return load_array(name, stored, labels, selection, path, settings.get("images", ""))


def _npy(path: Path, settings: Mapping[str, str]) -> dict[str, Any]:
    check_settings(settings, [], ".npy")
    return {"images": mapped(path)}


def _npz(path: Path, settings: Mapping[str, str]) -> dict[str, Any]:
    with archive(path) as file:
        names = _pick(path, list(file.keys()), settings)
        return {part: member(path, file, key) for part, key in names.items()}


def mapped(path: Path) -> np.ndarray:
    """Return the array of a ``.npy`` file, mapped from disk.

    Raises:
        HoldfastError: The file is damaged, or an archive.
    """
    array = read_numpy(path, lambda: np.load(path, mmap_mode="r", allow_pickle=False))
    if not isinstance(array, np.ndarray):
        raise HoldfastError(f"{path} is an archive of arrays; give it the ending .npz")
    return array


def archive(path: Path) -> np.lib.npyio.NpzFile:
    """Return the opened archive of a ``.npz`` file.

    Raises:
        HoldfastError: The file is damaged, or one array.
    """
    file = read_numpy(path, lambda: np.load(path, allow_pickle=False))
    if not isinstance(file, np.lib.npyio.NpzFile):
        raise HoldfastError(f"{path} is one array, not an archive; give it the ending .npy")
    return file


def member(path: Path, file: np.lib.npyio.NpzFile, key: str) -> np.ndarray:
    """Array of a ``.npz`` archive, refused if it would unpack to far more than is on disk.

    Raises:
        HoldfastError: The array is damaged or too large.
    """
    assert file.zip is not None
    sizes = [record.file_size for record in file.zip.infolist() if record.filename.removesuffix(".npy") == key]
    if max(sizes, default=0) > max(UNPACKED, path.stat().st_size):
        raise HoldfastError(
            f"array {key!r} of {path} would unpack to {max(sizes) / 2**30:.1f} GiB of memory; save it with numpy.save "
            "(.npy), which is read from disk where it is needed"
        )
    array = read_numpy(path, partial(file.__getitem__, key))
    if not isinstance(array, np.ndarray):  # numpy hands out what is no array as it is
        raise HoldfastError(f"{key!r} of {path} is not an array; write it again with numpy.savez")
    return array


def _safetensors(path: Path, settings: Mapping[str, str]) -> dict[str, Any]:
    from safetensors import SafetensorError, safe_open

    problem = f"{path} is truncated or not a safetensors file"
    with explained(problem, "write it again", SafetensorError), safe_open(path, framework="np") as file:
        names = _pick(path, list(file.keys()), settings)  # opening checked the whole header
    with path.open("rb") as raw:
        length = int.from_bytes(raw.read(8), "little")
        header = json.loads(raw.read(length))
    return {part: _mapped(path, 8 + length, header[key]) for part, key in names.items()}


def _mapped(path: Path, start: int, entry: Mapping[str, Any]) -> np.ndarray:
    """Return one array of a safetensors file as a read-only map.

    The library's own map for torch is a writable one, which the system refuses for files larger than memory.
    """
    if entry["dtype"] not in STORED:
        raise OutOfRange(f"arrays of {path}", entry["dtype"], f"of type {', '.join(STORED)}", fix="convert them")
    dtype, shape = STORED[entry["dtype"]], tuple(entry["shape"])
    if 0 in shape:
        return np.zeros(shape, dtype)
    return np.memmap(path, dtype, "r", start + entry["data_offsets"][0], shape)


SUFFIXES = {".npy": _npy, ".npz": _npz, ".safetensors": _safetensors}


def read_numpy(path: Path, read: Callable[[], Any]) -> Any:
    """Call ``read`` and explain files that numpy cannot or must not read.

    Raises:
        HoldfastError: The file is damaged or holds pickled objects.
    """
    try:
        return read()
    except Exception as error:  # numpy raises anything at all on damaged bytes
        if "pickle" in str(error) or "Python objects" in str(error):
            raise HoldfastError(
                f"{path} is not a numpy file or holds pickled Python objects, which could run code when read; save "
                "plain numbers instead (numpy.save of a uint8 or float array)"
            ) from error
        reason = first_line(error)[:200]
        raise HoldfastError(f"{path} is truncated or not a numpy file ({reason}); write it again") from error


def _pick(path: Path, keys: list[str], settings: Mapping[str, str]) -> dict[str, str]:
    """Return under which of ``keys`` the images, and the labels if there are any, are found."""
    check_settings(settings, ["images", "labels"], path.suffix)
    check_known(f"arrays of {path}", settings.values(), keys)
    known = {"images": IMAGES, "labels": LABELS}
    keys_of_parts = {part: next((key for key in names if key in keys), None) for part, names in known.items()}
    if not (settings.get("images") or keys_of_parts["images"]):
        raise unnamed(path, IMAGES, keys, "images", "images")
    return {part: key for part, key in {**keys_of_parts, **settings}.items() if key}


def unnamed(path: Path, usual: Sequence[str], keys: Sequence[str], what: str, setting: str) -> HoldfastError:
    """Return the error of a file none of whose arrays has a usual name."""
    return HoldfastError(
        f"{path.name} has no array named {', '.join(usual)}; say which one holds the {what}, as in "
        f"{path.name}?{setting}={keys[0] if keys else 'NAME'} (it holds: {', '.join(keys) or 'nothing'})"
    )


@final
class MappedRows:
    """Rows of a mapped array whose pages are released from time to time, to save memory."""

    def __init__(self, rows: Tensor, file: mmap.mmap) -> None:
        self._rows, self._file, self._read = rows, file, 0

    @property
    def shape(self) -> torch.Size:
        return self._rows.shape

    @property
    def dtype(self) -> torch.dtype:
        return self._rows.dtype

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, rows: Any) -> Tensor:
        apart = 1 + int((rows.diff() != 1).sum()) if isinstance(rows, Tensor) and rows.dim() else 1
        if apart * REACH > LET_GO and len(rows) > SCATTERED:
            return torch.cat([self[part] for part in rows.split(SCATTERED)])
        values = self._rows[rows]
        self._read += max(values.numel() * values.element_size(), apart * REACH)
        if self._read >= LET_GO:
            self._file.madvise(mmap.MADV_DONTNEED)  # a later use reads them from the file
            self._read = 0
        return values

    def __reduce__(self) -> tuple[Any, ...]:
        """Go to other processes as what is read, because they need not see the file."""
        return torch.as_tensor, (self._rows,)


def as_rows(array: np.ndarray) -> Tensor | MappedRows:
    """Return ``array`` as a tensor, or as rows that give the pages of its file back."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # nor is it ever written to
        rows = torch.from_numpy(array)
    if isinstance(array.base, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        return MappedRows(rows, array.base)
    return rows


def check_type(dtype: str, shape: tuple[int, ...], name: str) -> None:
    """Check that arrays of this type and shape can hold images.

    Raises:
        HoldfastError: The type or shape does not fit.
    """
    if dtype not in TYPES:
        raise OutOfRange(
            f"images of {name}", dtype, f"{', '.join(TYPES)} in this machine's byte order", fix="convert them"
        )
    if len(shape) < 2:
        raise OutOfRange(name, Described(f"an array of shape {shape}"), "one row per image")
