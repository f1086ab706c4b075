"""Files of codes.

.npy and flat .faiss files are mapped from disk, .npz is held in memory, .parquet and .lance are copied into a mapped
temporary file.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from holdfast.core.checks import as_tensor
from holdfast.core.errors import Described, HoldfastError, OutOfRange, check_known, existing, explained
from holdfast.core.files import EMBEDDING_FILES
from holdfast.data import parquet
from holdfast.data.arrays import archive, as_rows, mapped, member, unnamed
from holdfast.data.codes import faiss_files
from holdfast.data.codes.forms import KeptRows, Products
from holdfast.data.reading.array_source import Rows

FLOATS = ("float16", "float32", "float64")
INTEGERS = ("int8", "uint8")
"""Types of embeddings whose form is stated."""
CODES = ("codes", "embeddings", "embedding", "features", "vector", "x", "arr_0")
"""The names under which codes are looked for, first come first taken."""
USUAL = {"ids": ("ids", "id"), "labels": ("labels", "label"), "groups": ("groups", "group")}
"""The names under which what belongs to the rows is looked for."""
LANCE = ".lance"


@final
@dataclass(frozen=True, eq=False)
class Table:
    """Embeddings with the other columns of their file."""

    codes: Rows
    columns: dict[str, Any] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return list(self.columns)

    def column(self, name: str, default: bool = False) -> Any:
        """Column by name; None if there is none.

        Args:
            default: True to accept the usual names of the role.
        """
        usual = USUAL.get(name, ()) if default else (name,)
        return next((self.columns[each] for each in usual if each in self.columns), None)


@final
class Unaligned:
    """Rows of float32 numbers at any byte of a mapped file."""

    dtype = torch.float32

    def __init__(self, array: np.ndarray) -> None:
        self._bytes = as_rows(array.view(np.uint8))
        self.shape = torch.Size(array.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any, /) -> Tensor:
        return self._bytes[rows].clone().view(torch.float32)


def read_table(codes: Any, column: str | None = None, what: str = "codes", integers: bool = False) -> Table:
    """Rows of an array or of a file.

    Args:
        column: Column or array of the file; None if there is only one.
        integers: True if bytes are read as well, because their form is stated.

    Raises:
        HoldfastError: The file or the column is missing, or holds something else.
    """
    if not isinstance(codes, str | Path):
        return Table(as_tensor(codes, what, "image").detach())
    path = Path(codes).expanduser()
    suffix = path.suffix.lower()
    path = path if suffix == LANCE and path.is_dir() else existing(str(codes))
    if suffix not in EMBEDDING_FILES:
        raise HoldfastError(f"a file of {what} ends in {', '.join(EMBEDDING_FILES)}, got {str(codes)!r}")
    readers = {".npy": _npy, ".npz": _npz, ".parquet": _parquet, LANCE: _lance}
    table = readers.get(suffix, _faiss)(path, column)
    kind = str(table.codes.dtype)[len("torch.") :]
    if kind in INTEGERS and not integers:
        fix = "say how they are stored, as in ?stored=int8:ranges=ranges.npy, or convert them"
        raise OutOfRange(f"embeddings of {path.name}", Described(kind), ", ".join(FLOATS), fix=fix)
    return table


def _npy(path: Path, column: str | None) -> Table:
    if column is not None:
        raise HoldfastError(f"{path.name} is one array and has no columns; leave column={column} out")
    return Table(_rows(path, mapped(path)))


def _npz(path: Path, column: str | None) -> Table:
    with archive(path) as file:
        chosen = _choose(path, list(file.keys()), column)
        arrays = {key: member(path, file, key) for key in file}
    codes = arrays.pop(chosen)
    return Table(_rows(path, codes), {key: values for key, values in arrays.items() if values.ndim == 1})


def _parquet(path: Path, column: str | None) -> Table:
    file = parquet.opened(path)
    return _columns(path, file.schema_arrow, file.metadata.num_rows, file.iter_batches, column)


def _lance(path: Path, column: str | None) -> Table:
    with explained("reading .lance needs pylance", "install it with: pip install pylance", ImportError):
        lance = import_module("lance")
    with explained(f"{path} is damaged or not a Lance data set", "write it again"):
        data = lance.dataset(str(path))
        count = data.count_rows()
    return _columns(path, data.schema, count, data.to_batches, column)


def _columns(path: Path, schema: Any, count: int, batches: parquet.Batches, column: str | None) -> Table:
    """Return the embeddings of a table of ``count`` rows, with its other columns of one value each."""
    kinds = parquet.kinds(schema)
    lists = [name for name, kind in kinds.items() if kind == "list" or (kind == "array" and name == column)]
    if not lists:
        held = ", ".join(f"{name} ({schema.field(name).type})"[:40] for name in schema.names[:8]) or "nothing"
        raise HoldfastError(f"{path.name} has no column of lists of numbers (holds: {held}); write embeddings as lists")
    chosen = column or (lists[0] if len(lists) == 1 else _choose(path, lists, None))
    check_known(f"columns of lists in {path.name}", chosen, lists)
    types = import_module("pyarrow").types
    others = [
        f.name for f in schema if f.name != chosen and not types.is_nested(f.type) and kinds.get(f.name) != "bytes"
    ]
    values: dict[str, list[Any]] = {name: [] for name in others}
    for batch in batches(columns=others) if others else ():
        for name in others:
            values[name] += batch.column(name).to_pylist()
    return Table(_rows(path, parquet.copied(batches, count, chosen, f"embeddings of {path.name}")), dict(values))


def _faiss(path: Path, column: str | None) -> Table:
    if column is not None:
        raise HoldfastError(f"{path.name} is an index and has no columns; leave column={column} out")
    index = faiss_files.read(path)
    ids = {} if index.ids is None else {"ids": index.ids}
    if index.centres is not None:
        parts, _, size = index.centres.shape
        return Table(
            KeptRows(as_rows(index.codes), Products(parts * size, torch.from_numpy(index.centres.copy()))), ids
        )
    return Table(_rows(path, index.codes) if index.codes.flags.aligned else Unaligned(index.codes), ids)


def _rows(path: Path, codes: np.ndarray) -> Rows:
    """Return codes as they can be read, if they are floating-point numbers."""
    if str(codes.dtype) not in (*FLOATS, *INTEGERS):
        expected = f"{', '.join(FLOATS)} in this machine's byte order"
        raise OutOfRange(f"embeddings of {path.name}", codes.dtype, expected, fix="convert them")
    return as_rows(codes)


def _choose(path: Path, keys: list[str], column: str | None) -> str:
    """Return which of ``keys`` holds the codes."""
    if column is not None:
        check_known(f"arrays of {path.name}", column, keys)
        return column
    chosen = next((key for key in CODES if key in keys), None)
    if chosen is None:
        raise unnamed(path, CODES, keys, "embeddings", "column")
    return chosen
