"""Rows of small images for the report, and which samples to show."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from io import BytesIO

import numpy as np
from torch import Tensor

from holdfast.core.encoder import Domain
from holdfast.core.records import Picture

SHOWN = 3


def png(pixels: Tensor, domain: Domain) -> str | None:
    """Return an image, shape (1 or 3, height, width), as a base64 PNG file; None for inputs that are no image."""
    from PIL import Image

    if pixels.ndim != 3 or pixels.shape[0] not in (1, 3):
        return None
    share = ((pixels.double().cpu() - domain.low) / (domain.high - domain.low)).clamp(0, 1)
    bytes_ = (share * 255).round().byte().permute(1, 2, 0).numpy()
    buffer = BytesIO()
    Image.fromarray(bytes_[:, :, 0] if bytes_.shape[2] == 1 else bytes_).save(buffer, format="PNG")
    return b64encode(buffer.getvalue()).decode()


def row(caption: str, parts: dict[str, Tensor], domain: Domain) -> Picture | None:
    """Return labelled images as one picture row, or None if they are no images."""
    files = {label: png(pixels, domain) for label, pixels in parts.items()}
    shown = {label: file for label, file in files.items() if file is not None}
    return Picture(caption=caption, labels=tuple(shown), pngs=tuple(shown.values())) if shown else None


def ends(values: Sequence[float], count: int = SHOWN) -> list[int]:
    """Return the positions of the ``count`` largest and then the ``count`` smallest defined values."""
    defined = [position for position in np.argsort(values).tolist() if values[position] == values[position]]
    worst = defined[::-1][:count]
    return worst + [position for position in defined[:count][::-1] if position not in worst]
