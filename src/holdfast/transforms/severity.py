"""Edits by name: every severity of a family, some severities of a common corruption, or a single transform."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from math import sqrt
from typing import Any, ClassVar

from holdfast.core.encoder import Pixels
from holdfast.core.errors import HoldfastError, UnknownName
from holdfast.core.noise import Noise
from holdfast.core.settings import listed
from holdfast.transforms.base import ImagePixels, Transform, transforms

# What all common corruptions share: five severities, whose parameters depend on the size of the image.
#
# Hendrycks and Dietterich publish parameters for images of 224 pixels (ImageNet-C) and of 32 (CIFAR-10-C). An image gets the
# parameters of the size that is nearer by ratio: below 85 pixels on its shorter side, sqrt(32 * 224), those of CIFAR-10-C.
# Lengths are in pixels and are not scaled, unless the docstring of a corruption says so.
#
# The published programs round down to 8 bits after each corruption, and some in between. Nothing is rounded here, so images
# are half a level brighter on average. Only ``pixelate-c`` is darker, by up to half a level: Pillow rounds twice to the
# nearest level, and halves up. Other differences are in each docstring.

SMALL, LARGE = 32, 224


@dataclass(frozen=True)
class CommonCorruption(Transform):
    """Corruption with five severities."""

    severity: int
    """Severity, 1 (mild) to 5."""

    allowed = ("severity in [1, 5]",)

    at_224: ClassVar[tuple[Any, ...]]
    at_32: ClassVar[tuple[Any, ...]]
    """Published parameters of each severity, for images of 32 pixels."""

    def change(self, pixels: ImagePixels, noise: Noise) -> ImagePixels:
        published = self.at_32 if small(pixels) else self.at_224
        return self.corrupt(pixels, noise, published[self.severity - 1])

    @abstractmethod
    def corrupt(self, pixels: ImagePixels, noise: Noise, c: Any) -> ImagePixels:
        """Corrupt images with the parameters of this severity."""


def small(pixels: ImagePixels) -> bool:
    """Return whether these images get the parameters of CIFAR-10-C."""
    return min(pixels.shape[-2:]) < sqrt(SMALL * LARGE)


EDITS = ("jpeg", "brightness", "contrast", "hue-saturation", "blur", "noise", "resize", "rotation", "crop")
"""The everyday edits, each on a ladder."""
FIFTEEN = (
    "gaussian-noise-c", "shot-noise-c", "impulse-noise-c", "defocus-blur-c", "glass-blur-c", "motion-blur-c",
    "zoom-blur-c", "snow-c", "frost-c", "fog-c", "brightness-c", "contrast-c", "elastic-transform-c", "pixelate-c",
    "jpeg-compression-c",
)  # fmt: skip
"""The common corruptions of the mean corruption error; the others are extra ones, on which nothing is to be judged."""
SEVERITIES = (1, 3, 5)


def edits_named(evaluation: str, names: Sequence[str]) -> tuple[Transform, ...]:
    """Edits of each family from mild to severe, without the identity, and single transforms.

    Args:
        evaluation: Name of the evaluation in errors.
        names: Names of families of edits or of common corruptions, or texts of transforms, as in ``gamma:0.5``.

    Raises:
        HoldfastError: A name is unknown.
    """
    known, chosen = transforms(), list[Transform]()
    graded = [name for name, kind in known.items() if kind.severities or issubclass(kind, CommonCorruption)]
    for name in names:
        if name not in graded:
            try:
                chosen.append(Transform.read(name))
            except HoldfastError as error:
                if re.search("[:+]", name):  # its settings are wrong, and the sentence says which
                    raise
                raise UnknownName(f"{evaluation}.edits", name, graded) from error
        elif issubclass(kind := known[name], CommonCorruption):
            chosen += [kind(severity) for severity in SEVERITIES]
        else:
            chosen += kind.family()[1:]
    once = dict.fromkeys(chosen)
    order = list(dict.fromkeys(map(family_of, once)))
    return tuple(sorted(once, key=lambda edit: order.index(family_of(edit))))


def edit_names(texts: str | Sequence[str]) -> tuple[str, ...]:
    """Names of edits that are given one by one or separated by commas; a comma before a setting separates no names.

    Raises:
        HoldfastError: Texts name nothing.

    Example:
        >>> edit_names("jpeg, rotation:5, random-resized-crop:scale_min=0.5,scale_max=1")
        ('jpeg', 'rotation:5', 'random-resized-crop:scale_min=0.5,scale_max=1')
    """
    parts = (re.split(r",(?!\s*(?:\w+\s*=|[\d.-]))", text) for text in listed(texts))
    names = tuple(name.strip() for part in parts for name in part if name.strip())
    if texts and not names:
        raise HoldfastError(f"edits: no edit is named, got {texts!r}. Expected names, as in jpeg,rotation:5. Name one.")
    return names


def family_of(edit: Transform) -> str:
    """Name of the family that an edit belongs to; a single transform that is no severity of one is its own.

    Example:
        >>> family_of(Transform.read("rotation:5")), family_of(Transform.read("jpeg:30+gamma:0.5"))
        ('rotation', 'jpeg:30 + gamma:0.5')
    """
    return edit.name if isinstance(edit, CommonCorruption) or edit in edit.family() else str(edit)


def families(edits: Sequence[Transform]) -> list[tuple[str, slice]]:
    """Each family by name and where its edits stand among ``edits``, from mild to severe.

    Args:
        edits: Edits, those of a family one after the other.
    """
    spans, start = [], 0
    for name, members in groupby(edits, key=family_of):
        end = start + len(list(members))
        spans.append((name, slice(start, end)))
        start = end
    return spans


def changed(edit: Transform, pixels: Pixels, noise: Noise) -> Pixels | None:
    """Edited images; None if the inputs are no images in [0, 1], or too small."""
    try:
        return edit(pixels, noise)
    except HoldfastError:
        return None
