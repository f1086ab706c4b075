"""Edits by the names of their families: every severity of an edit, or some severities of a common corruption."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from holdfast.core.encoder import Pixels
from holdfast.core.errors import HoldfastError, UnknownName
from holdfast.core.noise import Noise
from holdfast.transforms.base import Transform, transforms
from holdfast.transforms.imagenet_c.base import CommonCorruption

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
    """Edits of each family from mild to severe, without the identity.

    Raises:
        HoldfastError: A name is unknown.
    """
    known, chosen = {name: kind for name, kind in transforms().items() if graded(kind)}, list[Transform]()
    for name in names:
        if name not in known:
            raise UnknownName(f"{evaluation}.edits", name, known)
        kind = known[name]
        if issubclass(kind, CommonCorruption):
            chosen += [kind(severity) for severity in SEVERITIES]
        else:
            chosen += kind.family()[1:]
    return tuple(chosen)


def families(edits: Sequence[Transform]) -> list[tuple[str, slice]]:
    """Return each family by name and where its edits stand among ``edits``, from mild to severe."""
    spans, start = [], 0
    for name, members in groupby(edits, key=lambda edit: edit.name):
        end = start + len(list(members))
        spans.append((name, slice(start, end)))
        start = end
    return spans


def graded(kind: type[Transform]) -> bool:
    """Return whether a transform comes in strengths."""
    return bool(kind.severities) or issubclass(kind, CommonCorruption)


def changed(edit: Transform, pixels: Pixels, noise: Noise) -> Pixels | None:
    """Edited images; None if the inputs are no images in [0, 1], or too small."""
    try:
        return edit(pixels, noise)
    except HoldfastError:
        return None
