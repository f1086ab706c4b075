"""What every image loader does, and the few decisions that all of them share."""

from __future__ import annotations

import heapq
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from holdfast.core.arguments import check_whole
from holdfast.core.encoder import Domain
from holdfast.core.errors import HoldfastError, HoldfastWarning, did_you_mean
from holdfast.core.geometry import Geometry, Preprocessing
from holdfast.core.noise import hashed
from holdfast.data.reading.remembered import Remembered


@dataclass(frozen=True)
class Selection:
    """Images for an encoder of this ``domain`` and ``geometry``: all of them, or ``limit`` chosen by ``seed``.

    Up to ``max_unreadable`` of all images there are, as a share, may be damaged; they are listed and left out.
    ``remembered`` is what is known of files from an earlier start.
    """

    domain: Domain
    geometry: Preprocessing | None = None
    limit: int | None = None
    seed: int = 0
    max_unreadable: float = 0.05
    remembered: Remembered = field(default_factory=Remembered, compare=False)

    def __post_init__(self) -> None:
        check_whole(self.seed, "seed")
        if self.limit is not None:
            check_whole(self.limit, "limit")
        if self.limit is not None and self.limit < 1:
            raise HoldfastError(f"limit must be at least 1 image, got {self.limit}")
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
        """Return the rows to load, ascending; whether an id is among them does not depend on the order of ids.

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
    """Raise unless every key of ``settings`` is one that the loader of ``source`` knows."""
    for key in settings:
        if key not in known:
            offered = did_you_mean(key, list(known)) if known else "it takes none"
            raise HoldfastError(f"{source} images have no setting {key!r}; {offered}")


def as_labels(values: Any, count: int, named: bool, where: str, classes: int = 0) -> Int[Tensor, "n"] | None:
    """Return ``values`` as one integer per image, each the number of one of the ``classes`` if these are known.

    ``named`` says that the reference names the labels. Others that are not such integers are left out with a warning.

    Raises:
        HoldfastError: they are named, and are not one integer per image.
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
    warnings.warn(f"{problem}; they are ignored", HoldfastWarning, stacklevel=2)
    return None
