"""Image loaders: each file turns one kind of reference (a folder, an array file, `builtin:`) into Images.

A module of this package with ``SOURCE`` (the word before the colon) and ``load(name, settings, selection)`` is a loader.
So is a module that another package names in the entry-point group ``holdfast.data``. Adding a loader takes no other
change.
"""

from __future__ import annotations

import csv
import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from holdfast.core.discovery import OldName, sources
from holdfast.core.encoder import Domain
from holdfast.core.errors import (
    Conflict,
    Described,
    HoldfastError,
    OutOfRange,
    check_given_once,
    check_whole,
    did_you_mean,
    readable,
    warn,
)
from holdfast.core.files import hashed
from holdfast.core.geometry import Geometry, Preprocessing
from holdfast.core.images import Images
from holdfast.core.settings import convert
from holdfast.data.reading.scan_cache import ScanCache


@dataclass(frozen=True)
class Selection:
    """Images to load for an encoder: all of them, or ``limit`` chosen by ``seed``."""

    domain: Domain
    """Shape and range of the encoder's inputs."""
    geometry: Preprocessing | None = None
    """How a picture becomes an input; None for the encoder's default."""
    limit: int | None = None
    """Largest number of images; None for all."""
    seed: int = 0
    """Seed of the choice."""
    max_unreadable: float = 0.05
    """Fraction of damaged images to tolerate, 0 to 1; they are listed and left out."""
    scan_cache: ScanCache = field(default_factory=ScanCache, compare=False)
    """What is known of files from an earlier run."""
    remembered = OldName("scan_cache")

    def __post_init__(self) -> None:
        check_whole(self.seed, "seed")
        if self.limit is not None:
            check_whole(self.limit, "limit", 1)
        if not 0 <= self.max_unreadable <= 1:
            raise HoldfastError(f"max_unreadable is a share between 0 and 1, got {self.max_unreadable}")

    @property
    def framing(self) -> Preprocessing:
        """Return how images of any size become inputs of the domain's (channels, height, width)."""
        height, width = self.domain.shape[1:]
        framing = self.geometry or Geometry(min(height, width), (height, width))
        if tuple(framing.crop) != (height, width):
            raise HoldfastError(f"geometry crops to {framing.crop}, but the encoder takes {height} x {width} images")
        return framing

    def choose(self, ids: Sequence[str]) -> list[int]:
        """Choose the rows to load, ascending; the choice does not depend on the order of ids.

        Example:
            >>> two = Selection(Domain((1, 2, 2)), limit=2)
            >>> ids = ["a", "b", "c", "d"]
            >>> {ids[row] for row in two.choose(ids)} == {ids[::-1][row] for row in two.choose(ids[::-1])}
            True
        """
        rows = range(len(ids))
        if self.limit is None or self.limit >= len(ids):
            return list(rows)
        return sorted(heapq.nsmallest(self.limit, rows, key=lambda row: hashed(self.seed, "limit", ids[row])))


def check_settings(settings: Mapping[str, str], known: Sequence[str], source: str) -> None:
    """Check that a loader knows every setting of a reference.

    Args:
        settings: Settings by name.
        known: Names that the loader knows.
        source: Name of the loader, for the error.

    Raises:
        HoldfastError: A setting is unknown.
    """
    for key in settings:
        if key not in known:
            offered = did_you_mean(key, list(known)) if known else "It takes none."
            raise HoldfastError(f"{source} images have no setting {key!r}. {offered}")


def as_labels(values: Any, count: int, named: bool, where: str, classes: int = 0) -> Int[Tensor, "n"] | None:
    """Labels as one integer per image; None if they are no such integers.

    Labels that the reference does not name are left out with a warning.

    Args:
        named: True if the reference names the labels.
        classes: Number of classes, or 0 if unknown.

    Raises:
        HoldfastError: The reference names labels that are not one integer per image.
    """
    labels = np.asarray(values)
    problem = f"{where} must be one integer per image, shape ({count},), got {labels.dtype} of shape {labels.shape}"
    if labels.shape == (count,) and labels.dtype.kind in "iu":
        outside = int(((labels < 0) | (labels >= classes)).sum()) if classes else 0
        if not outside:
            return torch.from_numpy(labels.astype(np.int64))
        problem = f"{where} must be from 0 to {classes - 1}, and {outside} of {count} are not (-1 means no label)"
    elif labels.dtype == object and 0 < (missing := sum(value is None for value in values)) < count:
        problem = f"{where} are missing for {missing} of {count} images"
    if named:
        raise HoldfastError(f"{problem}; leave labels out of the reference to do without")
    warn(f"{problem}; they are ignored")
    return None


def evenly(images: Images, count: int, seed: int) -> list[int]:
    """Choose ``count`` rows of each class, ascending; the choice does not depend on the order of ids.

    Raises:
        HoldfastError: The images have no labels, or a class has fewer of them.
    """
    if images.labels is None:
        raise HoldfastError(f"balanced: {images.name} has no labels to balance. Name them, as in ?labels=folders.")
    check_whole(count, "balanced", 1)
    labels = torch.as_tensor(images.labels)
    rows: list[int] = []
    for label in labels.unique().tolist():
        (own,) = torch.where(labels == label)
        if len(own) < count:
            raise HoldfastError(
                f"balanced: class {label} of {images.name} has {len(own)} images, got {count}. Lower it."
            )
        rows += heapq.nsmallest(count, own.tolist(), key=lambda row: hashed(seed, "limit", images.ids[row]))
    return sorted(rows)


FORMS = "prefix (the name before the last underscore), folders, or a CSV file with a line id,group for each image"


def groups_of(ids: Sequence[str], grouping: str) -> tuple[str, ...]:
    """Return the name of the group of each image.

    Args:
        grouping: ``prefix``, ``folders``, or a CSV file.

    Raises:
        HoldfastError: it is none of these, or leaves an image without a group.

    Example:
        >>> groups_of(["a/cat_01.png", "a/cat_02.png", "b/dog_01.png"], "prefix")
        ('a/cat', 'a/cat', 'b/dog')
        >>> groups_of(["a/cat_01.png", "b/dog_01.png"], "folders")
        ('a', 'b')
    """
    if grouping in ("prefix", "folders"):
        mark = "_" if grouping == "prefix" else "/"
        if without := [name for name in ids if mark not in (name.rpartition("/")[2] if mark == "_" else name)]:
            raise HoldfastError(f"groups={grouping} needs {mark!r} in every name, and {without[0]!r} has none")
        return tuple(name.rpartition(mark)[0] for name in ids)
    with readable(f"groups {grouping!r}", f"use {FORMS}", OSError, ValueError):
        text = Path(grouping).expanduser().read_text("utf-8-sig")
    rows = [row for row in csv.reader(text.splitlines()) if row]
    if wrong := next((row for row in rows if len(row) != 2), None):
        raise OutOfRange(f"columns of {grouping}", Described(f"{len(wrong)}: {wrong}"), "two, id and group")
    stated = dict(rows)
    if blank := next((name for name, group in stated.items() if not group.strip()), None):
        raise HoldfastError(f"{grouping} has an empty group for {blank!r}; name one, or leave groups out")
    if missing := [name for name in ids if name not in stated]:
        raise HoldfastError(
            f"{grouping} has no group for {len(missing)} of {len(ids)} images, {missing[0]!r} among them; add them"
        )
    return tuple(stated[name] for name in ids)


Loader = Callable[[str, dict[str, str], Selection], Images]


def loaders() -> dict[str, Loader]:
    """Image loaders by source: arrays, builtin, folder, fsspec, hf, parquet and others."""
    import holdfast.data as home

    return {source: module.load for source, module in sources(home).items()}


def load(
    reference: str,
    domain: Domain,
    geometry: Preprocessing | None = None,
    *,
    limit: int | None = None,
    seed: int = 0,
    max_unreadable: float = 0.05,
    scan_cache: ScanCache | None = None,
) -> Images:
    """Load images by reference as inputs of an encoder.

    Args:
        reference: Path (folder of image files, saved Hugging Face dataset, .npy, .npz, .safetensors or .parquet file,
            tar shards), address such as ``s3://bucket/folder``, or ``source:name``. Settings follow a question mark:
            ``folder:photos?labels=folders``, ``data.npz?images=x_test``, ``hf:user/name@revision?split=test``,
            ``shards/{000..099}.tar``, ``builtin:digits``. ``?groups=`` names groups of images: ``prefix``, ``folders``
            or a file of ``id,group``. ``?balanced=10`` keeps ten random images of each class.
        domain: Shape and range of the encoder's inputs.
        geometry: How the encoder's source resizes and crops; by default images are fitted to the domain.
        limit: Largest number of images, chosen at random by ``seed`` and the ids.
        max_unreadable: Fraction of damaged files among all files to tolerate, 0 to 1; ``images.skipped`` lists them. Up
            to 20,000 files are decoded once to find them; of more, only headers are read, and a file that fails later
            is named then.
        scan_cache: Files found sound before, with their digests; they are not read again for that.

    Example:
        >>> images = load("builtin:digits", Domain((1, 8, 8)), limit=3)
        >>> len(images), images.pixels([0]).shape
        (3, torch.Size([1, 1, 8, 8]))
        >>> load("bultin:digits", Domain((1, 8, 8)))
        Traceback (most recent call last):
        holdfast.core.errors.HoldfastError: no file or folder 'bultin:digits', and no image source 'bultin'. Did you mean ...
    """
    body, _, query = reference.partition("?")
    settings = _settings(query, reference)
    source, colon, name = body.partition(":")
    if name.startswith("//") or (source not in loaders() and "://" in body):
        source, name = "fsspec", body
    elif not colon or source not in loaders():
        source, name = kind(body), body
    grouping, balanced = settings.pop("groups", None), settings.pop("balanced", None)
    if balanced is not None and limit is not None:
        raise Conflict("images", f"balanced={balanced} and limit={limit}", "one of the two")
    images = loaders()[source](
        name, settings, Selection(domain, geometry, limit, seed, max_unreadable, scan_cache or ScanCache())
    )
    if balanced is not None:
        images = images[evenly(images, convert(balanced, int, "balanced"), seed)]
    if grouping is not None:
        images.groups = groups_of(images.ids, grouping)
    return images


def _settings(query: str, reference: str) -> dict[str, str]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True) if query else []
    except ValueError as error:
        raise HoldfastError(f"{reference!r}: settings take the form ?key=value&key=value, got {query!r}") from error
    check_given_once(f"the reference {reference!r}", [key for key, _ in pairs])
    return dict(pairs)


def kind(body: str) -> str:
    """Return which loader reads the path ``body``."""
    from holdfast.data import arrays, downloads, huggingface, parquet, tars

    path = Path(body).expanduser()
    if downloads.form(path):
        return downloads.SOURCE
    if path.is_dir():
        return huggingface.SOURCE if huggingface.saved(path) else "folder"
    if path.suffix.lower() in arrays.SUFFIXES and path.is_file():
        return arrays.SOURCE
    if path.suffix.lower() == parquet.SUFFIX and path.is_file():
        return parquet.SOURCE
    if tars.is_tar(body):
        return tars.SOURCE
    if path.is_file():
        expected = f"a folder of images or a file ending in {', '.join(arrays.SUFFIXES)}, {parquet.SUFFIX}, .tar"
        raise HoldfastError(f"{body!r} is neither {expected}; pass the folder that holds it")
    source, colon, _ = body.partition(":")
    other = (
        f", and no image source {source!r}. {did_you_mean(source, list(loaders()))}" if colon else "; check the path"
    )
    raise HoldfastError(f"no file or folder {body!r}{other}")
