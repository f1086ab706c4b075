"""Parquet files of images: a column of encoded images, or of arrays of numbers."""

from __future__ import annotations

from holdfast.core.errors import HoldfastError, UnknownName, existing
from holdfast.core.images import Images
from holdfast.data.arrays import as_rows, check_type
from holdfast.data.base import Selection, as_labels, check_settings
from holdfast.data.reading import columns
from holdfast.data.reading.array_source import load_array
from holdfast.data.reading.scan import load_encoded

SOURCE = "parquet"
SUFFIX = ".parquet"


def load(name: str, settings: dict[str, str], selection: Selection) -> Images:
    """Images of a parquet file; the columns ``image`` and ``label`` are found or named.

    Images are encoded files (bytes, or a structure with the field ``bytes``) or arrays of numbers: nested lists, lists of
    a fixed size, or tensors. ``max_pixels`` is as for files. Ids are positions.
    """
    check_settings(settings, ["image", "label", "max_pixels"], SOURCE)
    path = existing(name)
    file = columns.opened(path)
    if not file.metadata.num_rows:
        raise HoldfastError(f"{name} holds no images")
    schema = file.schema_arrow
    there, found = list(schema.names), columns.kinds(schema)
    column = columns.choose(name, found, settings.get("image"))
    labels, key = None, settings.get("label", "label")
    if key in there:
        values = file.read(columns=[key]).column(key).to_numpy()
        labels = as_labels(values, len(values), "label" in settings, f"column {key!r} of {name}")
    elif "label" in settings:
        raise UnknownName(f"columns of {name}", key, there)
    if found[column] == "bytes":
        ids = [str(row) for row in range(file.metadata.num_rows)]
        return load_encoded(name, columns.Packed(file, column), ids, labels, selection, settings)
    array = columns.copied(file.iter_batches, file.metadata.num_rows, column, f"images of {name}")
    check_type(str(array.dtype), array.shape, name)
    return load_array(name, as_rows(array), labels, selection, path, column)
