"""Hugging Face datasets of images: a folder written by ``save_to_disk``, or a name on the hub."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from hashlib import blake2b
from importlib import import_module
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from holdfast.core.errors import HoldfastError, UnknownName, check_known, explained, warn
from holdfast.core.images import Images
from holdfast.core.settings import convert
from holdfast.data import parquet
from holdfast.data.arrays import check_type
from holdfast.data.by_name import Selection, as_labels, check_settings
from holdfast.data.reading.array_source import load_array
from holdfast.data.reading.scan import load_encoded
from holdfast.data.reading.stores import FileStore

# The first rows of a Hugging Face dataset that is too large to fetch, kept on this machine as they are encoded.
#
# A stream goes forward only, while attacked rows, anchors and neighbours are looked up in any order. So its first
# rows are read once, into a folder in the cache of Hugging Face datasets, and are then a saved dataset like any
# other.

CHOOSING = ("config", "split", "image", "label")
"""Settings that decide which rows and columns a stream has."""


def first_rows(name: str, settings: Mapping[str, str], selection: Selection, start: Callable[[], Any]) -> Any:
    """First rows of a streamed dataset, kept on disk for later runs.

    Raises:
        HoldfastError: The number of rows is not given, or the stream has no images.
    """
    import datasets

    count = convert(settings["take"], int, "take") if "take" in settings else selection.limit
    if count is None or count < 1:
        raise HoldfastError(
            f"{name} is to be streamed, so say how many of its first images to fetch, as in --limit 1000 or "
            "?streaming=true&take=50000"
        )
    warn(f"{name} is streamed: its first {count:,} images stand for all, though datasets may be sorted by class", 3)
    parts = [name, count, *(settings.get(key) for key in CHOOSING)]
    if Path(name).expanduser().is_dir():
        store, path = FileStore.at(name)
        parts += [(file, stored.version) for file, stored in store.find(path).items()]
    key = blake2b(repr(parts).encode(), digest_size=16).hexdigest()
    kept = Path(datasets.config.HF_DATASETS_CACHE, "holdfast-streamed", key)
    if not kept.is_dir():
        keep(start(), count, kept)
    return datasets.load_from_disk(str(kept))


def keep(stream: Any, count: int, folder: Path) -> None:
    """Write the first rows of a stream to a folder, completely or not at all."""
    import datasets

    features = stream.features
    pictures = [key for key, feature in features.items() if isinstance(feature, datasets.Image)]
    for key in pictures:
        stream = stream.cast_column(key, datasets.Image(decode=False))

    def rows() -> Iterator[dict[str, Any]]:
        for row in stream.take(count):
            yield {**row, **{key: _whole_stream(row[key]) for key in pictures}}

    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(mkdtemp(prefix=".partial-", dir=folder.parent))
    try:
        dataset = datasets.Dataset.from_generator(
            rows, features, cache_dir=str(partial / "made"), fingerprint=folder.name
        )
        dataset.save_to_disk(str(partial / "saved"))
        if not folder.is_dir():  # another process may have been faster
            (partial / "saved").rename(folder)
    except datasets.exceptions.DatasetGenerationError as error:
        raise error.__cause__ or error from error
    finally:
        rmtree(partial, ignore_errors=True)


def _whole_stream(image: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return an image with its bytes, which some streams leave where they are."""
    if image is None or image["bytes"] is not None:
        return image
    store, path = FileStore.at(image["path"])
    return {"bytes": store.ask(path, lambda: store.filesystem.cat_file(path)), "path": None}


SOURCE = "hf"


def saved(path: Path) -> bool:
    """Return whether ``path`` is a folder that ``save_to_disk`` has written."""
    return any((path / name).is_file() for name in ("state.json", "dataset_dict.json"))


def load(name: str, settings: dict[str, str], selection: Selection) -> Images:
    """Images of a Hugging Face dataset (a saved folder, or ``user/name@revision``).

    Images are a column of images, of encoded bytes, or of numbers in nested lists or arrays. Settings: ``split``,
    ``config`` (where a hub dataset has several), the columns ``image`` and ``label``, ``max_pixels`` (larger images
    count as damaged), and ``streaming=true``, which fetches only the first ``take`` rows. Ids are positions in the
    split.
    """
    check_settings(settings, ["split", "config", "image", "label", "max_pixels", "streaming", "take"], SOURCE)
    dataset = _streamed(name, settings, selection) if _streaming(settings) else _whole(name, settings)
    kinds = _kinds(dataset)
    column = parquet.choose(name, kinds, settings.get("image"))
    labels, names = None, ()
    if (key := settings.get("label", "label")) in dataset.column_names:
        names = getattr(dataset.features[key], "names", None) or ()
        where = f"column {key!r} of {name}"
        labels = as_labels(dataset[key][:], len(dataset), "label" in settings, where, len(names))
    elif "label" in settings:
        raise UnknownName(f"columns of {name}", key, dataset.column_names)
    if not len(dataset):
        raise HoldfastError(f"{name} holds no images")
    if kinds[column] in ("array", "list"):
        stored = Numbers(dataset, column, f"images of {name}")
        check_type(str(stored.dtype).removeprefix("torch."), tuple(stored.shape), name)
        return load_array(name, stored, labels, selection)
    ids = [str(row) for row in range(len(dataset))]
    return load_encoded(name, Column(dataset, column), ids, labels, selection, settings, names)


class Column:
    """Source of the encoded images in a column."""

    def __init__(self, dataset: Any, column: str) -> None:
        from datasets import Image

        self.dataset = dataset.select_columns([column]).cast_column(column, Image(decode=False))
        self.column = column

    def __call__(self, row: int) -> Path | bytes:
        image = self.dataset[row][self.column]
        if image is None:
            raise ValueError("no image in this row")
        return image["bytes"] if image["bytes"] is not None else Path(image["path"])


@final
class Numbers:
    """Column of lists or arrays of numbers, indexed like a tensor and read on demand."""

    def __init__(self, dataset: Any, column: str, where: str) -> None:
        self.dataset = dataset.select_columns([column]).with_format("arrow")
        self.column, self.where = column, where
        first = self._read([0])
        self.shape, self.dtype = torch.Size((len(dataset), *first.shape[1:])), first.dtype

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> Tensor:
        """Return the row, or those of a tensor of rows."""
        if isinstance(rows, int):
            return self._read([rows])[0]
        return self._read(rows.tolist()) if len(rows) else torch.empty((0, *self.shape[1:]), dtype=self.dtype)

    def _read(self, rows: list[int]) -> Tensor:
        values = parquet.dense(self.dataset[rows].column(self.column).combine_chunks(), self.where, rows[0])
        if "shape" in vars(self) and values.shape[1:] != self.shape[1:]:
            raise HoldfastError(
                f"{self.where} must all have one shape, got {tuple(self.shape[1:])} and, from row {rows[0]} on, "
                f"{values.shape[1:]}"
            )
        return torch.from_numpy(np.array(values))


def _streaming(settings: Mapping[str, str]) -> bool:
    streaming = settings.get("streaming", "false")
    if streaming not in ("true", "false"):
        raise HoldfastError(f"streaming is true or false, got {streaming!r}")
    if streaming == "false" and "take" in settings:
        raise HoldfastError("take belongs to streaming=true; --limit chooses among all images")
    return streaming == "true"


def _whole(name: str, settings: Mapping[str, str]) -> Any:
    return _split(name, _open(name, settings), settings.get("split"))


def _streamed(name: str, settings: Mapping[str, str], selection: Selection) -> Any:
    """Return the first rows of a dataset, with the columns that are needed."""

    def start() -> Any:
        stream = _split(name, _open(name, settings, streaming=True), settings.get("split"))
        stream = stream if stream.features else stream._resolve_features()  # some formats tell with the first row
        column, label = parquet.choose(name, _kinds(stream), settings.get("image")), settings.get("label", "label")
        return stream.select_columns([key for key in (column, label) if key in stream.features])

    _datasets()
    with explained(f"cannot load the dataset {name!r}", _advice):
        return first_rows(name, settings, selection, start)


def _datasets() -> Any:
    with explained("Hugging Face datasets need the extra packages", "run pip install datasets", ImportError):
        return import_module("datasets")


def _open(name: str, settings: Mapping[str, str], **options: Any) -> Any:
    datasets = _datasets()
    path = Path(name).expanduser()
    with explained(f"cannot load the dataset {name!r}", _advice):
        if saved(path):
            return datasets.load_from_disk(str(path))
        repository, _, revision = name.partition("@")
        return datasets.load_dataset(
            repository, settings.get("config"), revision=revision or None, split=settings.get("split"), **options
        )


def _advice(error: Exception) -> str:
    if "gated" in f"{type(error).__name__} {error}".lower():
        return "accept its terms on its page on the hub, then log in with hf auth login or set HF_TOKEN"
    return "check name, revision and connection"


def _split(name: str, dataset: Any, wanted: str | None) -> Any:
    """Return the one split that is meant."""
    if not isinstance(dataset, dict):
        return dataset
    splits = list(dataset)
    if wanted is None and len(splits) == 1:
        return dataset[splits[0]]
    if wanted is None:
        raise HoldfastError(f"{name} has the splits {', '.join(splits)}; choose one, as in {name}?split={splits[-1]}")
    check_known(f"splits of {name}", wanted, splits)
    return dataset[wanted]


def _kinds(dataset: Any) -> dict[str, parquet.Kind]:
    """Return the columns that may hold images, and how."""
    from datasets import Image

    images: dict[str, parquet.Kind] = {
        key: "image" for key, each in dataset.features.items() if isinstance(each, Image)
    }
    # Sounds and videos are structures with bytes, too, of a class of their own.
    is_struct = import_module("pyarrow").types.is_struct
    schema = dataset.features.arrow_schema
    plain = [field for field in schema if isinstance(dataset.features[field.name], dict) or not is_struct(field.type)]
    return {**images, **parquet.kinds(plain)}
