"""Files of embeddings: .npy (mapped from disk), .npz (in memory) and .parquet (copied into a mapped temporary file)."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from holdfast.core.checks import check_dense
from holdfast.core.errors import Described, HoldfastError, OutOfRange, UnknownName
from holdfast.data.arrays import as_rows, member, read_numpy
from holdfast.data.reading import columns
from holdfast.data.reading.array_source import Rows

FLOATS = ("float16", "float32", "float64")
CODES = ("codes", "embeddings", "embedding", "features", "vector", "x", "arr_0")
"""The names under which codes are looked for, first come first taken."""
USUAL = {"ids": ("ids", "id"), "labels": ("labels", "label"), "groups": ("groups", "group")}
"""The names under which what belongs to the rows is looked for."""
SUFFIXES = (".npy", ".npz", ".parquet")


@final
@dataclass(frozen=True, eq=False)
class Table:
    """Embeddings with the other columns of their file."""

    codes: Rows
    """Embeddings, shape (n, d)."""
    columns: dict[str, Any] = field(default_factory=dict)
    """Other columns, by name."""

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return list(self.columns)

    def column(self, name: str, default: bool = False) -> Any:
        """Column by name; None if there is none.

        Args:
            name: Name of the column, or its role.
            default: True to accept the usual names of the role.
        """
        usual = USUAL.get(name, ()) if default else (name,)
        return next((self.columns[each] for each in usual if each in self.columns), None)


def read_table(codes: Any, column: str | None = None, what: str = "codes") -> Table:
    """Rows of an array or of a file.

    Args:
        codes: Array, or path of a file.
        column: Column or array of the file; None if there is only one.
        what: Name of the contents in errors.

    Raises:
        HoldfastError: The file or the column is missing, or holds something else.
    """
    if not isinstance(codes, str | Path):
        tensor = codes if isinstance(codes, Tensor) else _tensor(codes, what)
        check_dense(tensor, what)
        return Table(tensor.detach())
    path = Path(codes).expanduser()
    if not path.is_file():
        raise HoldfastError(f"no file {str(codes)!r}; check the path of the {what}")
    if path.suffix.lower() not in SUFFIXES:
        raise HoldfastError(f"a file of {what} ends in {', '.join(SUFFIXES)}, got {str(codes)!r}")
    if path.stat().st_size == 0:
        raise HoldfastError(f"{codes} is empty (zero bytes); write it again")
    return {".npy": _npy, ".npz": _npz, ".parquet": _parquet}[path.suffix.lower()](path, column)


def _tensor(values: Any, what: str) -> Tensor:
    try:
        return torch.as_tensor(np.asarray(values))
    except (TypeError, ValueError, RuntimeError) as error:
        raise OutOfRange(
            what, Described(f"what is none ({error})"), "an array of numbers, one row per image"
        ) from error


def _npy(path: Path, column: str | None) -> Table:
    if column is not None:
        raise HoldfastError(f"{path.name} is one array and has no columns; leave column={column} out")
    array = read_numpy(path, lambda: np.load(path, mmap_mode="r", allow_pickle=False))
    if not isinstance(array, np.ndarray):
        raise HoldfastError(f"{path} is an archive of arrays; give it the ending .npz")
    return Table(_rows(path, array))


def _npz(path: Path, column: str | None) -> Table:
    file = read_numpy(path, lambda: np.load(path, allow_pickle=False))
    if not isinstance(file, np.lib.npyio.NpzFile):
        raise HoldfastError(f"{path} is one array, not an archive; give it the ending .npy")
    with file:
        chosen = _choose(path, list(file.keys()), column)
        arrays = {key: member(path, file, key) for key in file}
    codes = arrays.pop(chosen)
    return Table(_rows(path, codes), {key: values for key, values in arrays.items() if values.ndim == 1})


def _parquet(path: Path, column: str | None) -> Table:
    file = columns.opened(path)
    schema = file.schema_arrow
    kinds = columns.kinds(schema)
    lists = [name for name, kind in kinds.items() if kind == "list" or (kind == "array" and name == column)]
    if not lists:
        held = ", ".join(f"{name} ({schema.field(name).type})"[:40] for name in schema.names[:8]) or "nothing"
        raise HoldfastError(
            f"{path.name} has no column of lists of numbers (it holds: {held}); write embeddings as lists"
        )
    chosen = column or (lists[0] if len(lists) == 1 else _choose(path, lists, None))
    if chosen not in lists:
        raise UnknownName(f"columns of lists in {path.name}", chosen, lists)
    types = import_module("pyarrow").types
    others = [
        f.name for f in schema if f.name != chosen and not types.is_nested(f.type) and kinds.get(f.name) != "bytes"
    ]
    values = {name: file.read(columns=[name]).column(name).to_pylist() for name in others}
    return Table(_rows(path, columns.copied(file, chosen, f"embeddings of {path.name}")), values)


def _rows(path: Path, codes: np.ndarray) -> Rows:
    """Return codes as they can be read, if they are floating-point numbers."""
    if str(codes.dtype) not in FLOATS:
        raise OutOfRange(
            f"embeddings of {path.name}",
            codes.dtype,
            f"{', '.join(FLOATS)} in this machine's byte order",
            fix="convert them",
        )
    return as_rows(codes)


def _choose(path: Path, keys: list[str], column: str | None) -> str:
    """Return which of ``keys`` holds the codes."""
    if column is not None:
        if column not in keys:
            raise UnknownName(f"arrays of {path.name}", column, keys)
        return column
    chosen = next((key for key in CODES if key in keys), None)
    if chosen is None:
        raise HoldfastError(
            f"{path.name} has no array named {', '.join(CODES)}; say which one holds the embeddings, as in "
            f"{path.name}?column={keys[0] if keys else 'NAME'} (it holds: {', '.join(keys) or 'nothing'})"
        )
    return chosen
