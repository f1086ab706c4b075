"""Images that need no download: scikit-learn's 1,797 handwritten digits of 8 x 8 pixels (Alpaydin and Kaynak 1998)."""

from __future__ import annotations

import torch

from holdfast.core.errors import check_known
from holdfast.core.images import Images
from holdfast.data.by_name import Selection, check_settings
from holdfast.data.reading.array_source import ArraySource

SOURCE = "builtin"
TRAINED = 1200
"""Digits that trained the built-in encoders, which are measured on the others."""

SETS = {"digits": range(TRAINED, 1797), "digits-train": range(TRAINED)}


def names() -> list[str]:
    """Return the names of the built-in images."""
    return list(SETS)


def load(name: str, settings: dict[str, str], selection: Selection) -> Images:
    """Digits of scikit-learn: held-out ``digits``, or ``digits-train`` of the built-in encoders."""
    from sklearn.datasets import load_digits

    check_settings(settings, [], SOURCE)
    check_known("built-in images", name, names())
    pixels, labels = load_digits(return_X_y=True)
    rows = list(SETS[name])
    stored = torch.from_numpy(pixels).float().reshape(-1, 1, 8, 8)[rows] / 16
    ids = [f"digits/{row:04}" for row in rows]
    source = ArraySource(f"builtin:{name}", stored, selection)
    images = Images(source, ids, torch.from_numpy(labels)[rows].long(), f"builtin:{name}")
    return images[selection.choose(ids)]
