"""The first rows of a Hugging Face dataset that is too large to fetch, kept on this machine as they are encoded.

A stream goes forward only, while attacked rows, anchors and neighbours are looked up in any order. So its first rows are
read once, into a folder in the cache of Hugging Face datasets, and are then a saved dataset like any other.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any

from holdfast.core.errors import HoldfastError, HoldfastWarning
from holdfast.core.settings import convert
from holdfast.data.base import Selection
from holdfast.data.reading.stores import FileStore

CHOOSING = ("config", "split", "image", "label")
"""Settings that decide which rows and columns a stream has."""


def first_rows(name: str, settings: Mapping[str, str], selection: Selection, start: Callable[[], Any]) -> Any:
    """Return the first ``take`` rows (by default as many as the request's limit) of the stream that ``start`` begins.

    They are read from the stream once, unless files of a local folder changed since.

    Raises:
        HoldfastError: it is not said how many, or the stream has no images.
    """
    import datasets

    count = convert(settings["take"], int, "take") if "take" in settings else selection.limit
    if count is None or count < 1:
        raise HoldfastError(
            f"{name} is to be streamed, so say how many of its first images to fetch, as in --limit 1000 or "
            "?streaming=true&take=50000"
        )
    warnings.warn(
        f"{name} is streamed: its first {count:,} images stand for all of it, though datasets may be sorted by class",
        HoldfastWarning,
        stacklevel=4,
    )
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
    """Write the first ``count`` rows of ``stream`` to ``folder``, whole or not at all."""
    import datasets

    features = stream.features
    pictures = [key for key, feature in features.items() if isinstance(feature, datasets.Image)]
    for key in pictures:
        stream = stream.cast_column(key, datasets.Image(decode=False))

    def rows() -> Iterator[dict[str, Any]]:
        for row in stream.take(count):
            yield {**row, **{key: _whole(row[key]) for key in pictures}}

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


def _whole(image: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return an image with its bytes, which some streams leave where they are."""
    if image is None or image["bytes"] is not None:
        return image
    store, path = FileStore.at(image["path"])
    return {"bytes": store.ask(path, lambda: store.filesystem.cat_file(path)), "path": None}
