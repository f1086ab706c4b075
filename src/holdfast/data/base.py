"""What all image loaders share: selecting images, checks, and groups of images that belong together."""

from __future__ import annotations

import csv
import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from holdfast.core.discovery import OldName
from holdfast.core.encoder import Domain
from holdfast.core.errors import Described, HoldfastError, OutOfRange, check_whole, did_you_mean, readable, warn
from holdfast.core.files import hashed
from holdfast.core.geometry import Geometry, Preprocessing
from holdfast.core.images import Images
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
