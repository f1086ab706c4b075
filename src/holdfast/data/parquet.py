"""Parquet files and Arrow tables of images: a column of encoded images, or of arrays of numbers."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
from jaxtyping import Shaped

from holdfast.core.errors import HoldfastError, UnknownName, check_known, existing, explained
from holdfast.core.images import Images
from holdfast.data.arrays import as_rows, check_type
from holdfast.data.by_name import Selection, as_labels, check_settings
from holdfast.data.reading.array_source import load_array
from holdfast.data.reading.scan import load_encoded

Kind = Literal["image", "bytes", "array", "list"]
DEFAULT: tuple[Kind, ...] = ("image", "bytes", "array")
"""Kinds of columns that hold images unless a setting names another: the only column of the first kind that occurs."""
Batches = Callable[..., Iterable[Any]]
"""Takes ``columns`` and ``batch_size``, as pyarrow's and Lance's functions do."""
BATCH = 1 << 13
"""Rows of numbers read together."""
FEW = 1 << 8
"""Encoded images read together."""


def opened(path: Path) -> Any:
    """Return the parquet file at ``path``.

    Raises:
        HoldfastError: pyarrow is not installed, or the file is damaged.
    """
    with explained("reading .parquet needs pyarrow", "install it with: pip install pyarrow", ImportError):
        parquet = import_module("pyarrow.parquet")
    with explained(f"{path} is truncated or not a parquet file", "write it again"):
        return parquet.ParquetFile(path, memory_map=True)


def kinds(schema: Any) -> dict[str, Kind]:
    """Return the columns of an Arrow schema that hold bytes or numbers, and which of them."""
    found = {field.name: kind(field.type) for field in schema}
    return {name: each for name, each in found.items() if each is not None}


def kind(column: Any) -> Kind | None:
    """Contents of a column of this Arrow type: images, arrays, flat lists of numbers, or None."""
    types = import_module("pyarrow").types
    if types.is_struct(column):  # as Hugging Face datasets store an image: its bytes and its path
        place = column.get_field_index("bytes")
        return "bytes" if place >= 0 and kind(column.field(place).type) == "bytes" else None
    if types.is_binary(column) or types.is_large_binary(column) or types.is_fixed_size_binary(column):
        return "bytes"
    depth = 0
    while (inner := _inner(column)) is not None:
        depth += _listed(column)
        if isinstance(column, import_module("pyarrow").FixedShapeTensorType):
            depth += len(column.shape) - 1  # its storage is flat
        column = inner
    if not depth or not (types.is_integer(column) or types.is_floating(column)):
        return None
    return "list" if depth == 1 else "array"


def _listed(column: Any) -> bool:
    types = import_module("pyarrow").types
    return bool(types.is_list(column) or types.is_large_list(column) or types.is_fixed_size_list(column))


def _inner(column: Any) -> Any:
    """Return the type of the values of a list, or that in which an extension type is stored; None for other types."""
    if isinstance(column, import_module("pyarrow").BaseExtensionType):
        return column.storage_type
    return column.value_type if _listed(column) else None


def choose(name: str, columns: Mapping[str, Kind], wanted: str | None) -> str:
    """Column that holds the images: the wanted one, or the only one of its kind.

    Args:
        wanted: Name of the column; None to find it.

    Raises:
        HoldfastError: There is no such column, or several.
    """
    if wanted is not None:
        check_known(f"image columns of {name}", wanted, columns)
        return wanted
    by_kind = ([key for key, each in columns.items() if each == kind] for kind in DEFAULT)
    found = next(filter(None, by_kind), [])
    if len(found) == 1:
        return found[0]
    there = f"{len(found)} image columns ({', '.join(found) or 'none'})"
    raise HoldfastError(f"{name} has {there}; say which, as in {name}?image={next(iter(columns), 'NAME')}")


def dense(values: Any, where: str, first: int = 0) -> Shaped[np.ndarray, "n ..."]:
    """Return the numbers of a column of lists, nested lists or tensors.

    Args:
        values: an Arrow array.
        where: what the message calls it.
        first: the row of the file with which it begins, for the message.

    Raises:
        HoldfastError: rows differ in shape, or one is missing.
    """
    arrow = import_module("pyarrow")
    if isinstance(values.type, arrow.FixedShapeTensorType):  # whose own to_numpy fails on what was read from a file
        axes = values.type.permutation or range(len(values.type.shape))
        flat = dense(values.storage, where, first)
        return flat.reshape(len(values), *values.type.shape).transpose(0, *(1 + axis for axis in axes))
    shape = [len(values)]
    while _inner(values.type) is not None:
        if not _listed(values.type):
            values = values.storage
            continue
        lengths = values.value_lengths().unique().to_pylist()
        if len(lengths) != 1 or None in lengths:
            listed = ", ".join(sorted("missing" if length is None else str(length) for length in lengths)[:8])
            raise HoldfastError(
                f"{where} must all have one shape, got lists of these lengths from row {first} on: {listed}"
            )
        shape.append(lengths[0])
        values = values.flatten()
    if values.null_count and not arrow.types.is_floating(values.type):  # a missing float becomes NaN, which is refused
        raise HoldfastError(f"{where} lack {values.null_count} numbers from row {first} on; fill them in")
    return values.to_numpy(zero_copy_only=False).reshape(shape)


def copied(batches: Batches, count: int, column: str, where: str) -> Shaped[np.ndarray, "n ..."]:
    """Column of numbers as a mapped temporary file, which is deleted after use."""
    array, start = None, 0
    for batch in batches(columns=[column], batch_size=BATCH):
        values = dense(batch.column(0), where, start)
        if array is None:
            with tempfile.TemporaryFile() as scratch:
                array = np.memmap(scratch, values.dtype, "w+", shape=(count, *values.shape[1:]))
        if values.shape[1:] != array.shape[1:]:
            raise HoldfastError(
                f"{where} must all have one shape, got {array.shape[1:]} and, from row {start} on, {values.shape[1:]}"
            )
        array[start : start + len(values)] = values
        start += len(values)
    if array is None:
        raise HoldfastError(f"{where}: the file has no rows; write it again")
    array.flush()
    return array


@final
class Packed:
    """Source of encoded images in a column of bytes, copied to a mapped temporary file."""

    def __init__(self, file: Any, column: str) -> None:
        self.starts = np.zeros(file.metadata.num_rows + 1, np.int64)
        self.missing = np.zeros(file.metadata.num_rows, bool)
        row = 0
        with tempfile.TemporaryFile() as scratch:
            for batch in file.iter_batches(columns=[column], batch_size=FEW):
                values = batch.column(0)
                for value in (values.field("bytes") if hasattr(values, "field") else values).to_pylist():
                    self.missing[row] = value is None
                    scratch.write(value or b"")
                    self.starts[row + 1] = scratch.tell()
                    row += 1
            scratch.flush()
            size = int(self.starts[-1])
            self.content = np.memmap(scratch, np.uint8, "r", shape=(size,)) if size else np.zeros(0, np.uint8)

    def __call__(self, row: int) -> bytes:
        if self.missing[row]:
            raise ValueError("no image in this row")
        return self.content[self.starts[row] : self.starts[row + 1]].tobytes()


SOURCE = "parquet"
SUFFIX = ".parquet"


def load(name: str, settings: dict[str, str], selection: Selection) -> Images:
    """Images of a parquet file; the columns ``image`` and ``label`` are found or named.

    Images are encoded files (bytes, or a structure with the field ``bytes``) or arrays of numbers: nested lists, lists of
    a fixed size, or tensors. ``max_pixels`` is as for files. Ids are positions.
    """
    check_settings(settings, ["image", "label", "max_pixels"], SOURCE)
    path = existing(name)
    file = opened(path)
    if not file.metadata.num_rows:
        raise HoldfastError(f"{name} holds no images")
    schema = file.schema_arrow
    there, found = list(schema.names), kinds(schema)
    column = choose(name, found, settings.get("image"))
    labels, key = None, settings.get("label", "label")
    if key in there:
        values = file.read(columns=[key]).column(key).to_numpy()
        labels = as_labels(values, len(values), "label" in settings, f"column {key!r} of {name}")
    elif "label" in settings:
        raise UnknownName(f"columns of {name}", key, there)
    if found[column] == "bytes":
        ids = [str(row) for row in range(file.metadata.num_rows)]
        return load_encoded(name, Packed(file, column), ids, labels, selection, settings)
    array = copied(file.iter_batches, file.metadata.num_rows, column, f"images of {name}")
    check_type(str(array.dtype), array.shape, name)
    return load_array(name, as_rows(array), labels, selection, path, column)
