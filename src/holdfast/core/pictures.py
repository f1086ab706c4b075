"""Rows of small images for reports and for sheets of attacked images, and which samples to show."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Sequence
from io import BytesIO

import numpy as np
from torch import Tensor

from holdfast.core.encoder import Domain
from holdfast.core.records import Picture

SHOWN = 3


def png(pixels: Tensor, domain: Domain) -> str | None:
    """Return an image (channels, height, width) as a base64 PNG file; None for inputs that are no image.

    Of more than three channels it shows the first three, of two the first.
    """
    from PIL import Image

    if pixels.ndim != 3:
        return None
    share = ((pixels[: _shown(len(pixels))].double().cpu() - domain.low) / (domain.high - domain.low)).clamp(0, 1)
    bytes_ = (share * 255).round().byte().permute(1, 2, 0).numpy()
    buffer = BytesIO()
    Image.fromarray(bytes_[:, :, 0] if bytes_.shape[2] == 1 else bytes_).save(buffer, format="PNG")
    return b64encode(buffer.getvalue()).decode()


def _shown(channels: int) -> int:
    return 3 if channels >= 3 else 1


def row(caption: str, parts: dict[str, Tensor], domain: Domain) -> Picture | None:
    """Return labelled images as one picture row, or None if they are no images."""
    files = {label: png(pixels, domain) for label, pixels in parts.items()}
    shown = {label: file for label, file in files.items() if file is not None}
    channels = max((len(pixels) for pixels in parts.values()), default=0)
    if _shown(channels) < channels:
        caption = f"{caption} (channels 1 to {_shown(channels)} of {channels})"
    return Picture(caption=caption, labels=tuple(shown), pngs=tuple(shown.values())) if shown else None


def ends(values: Sequence[float], count: int = SHOWN) -> list[int]:
    """Return the positions of the ``count`` largest and then the ``count`` smallest defined values."""
    defined = [position for position in np.argsort(values).tolist() if values[position] == values[position]]
    worst = defined[::-1][:count]
    return worst + [position for position in defined[:count][::-1] if position not in worst]


INCHES = 1.6
"""The side of one picture."""


def draw(pictures: Sequence[Picture]) -> bytes:
    """Return ``pictures`` as a PNG file, a row each with its caption beside it, small images enlarged."""
    from matplotlib.figure import Figure
    from PIL import Image

    columns = max(len(picture.pngs) for picture in pictures)
    # The captions take the width of a picture and a half.
    figure = Figure(figsize=(INCHES * (columns + 1.5), INCHES * len(pictures) + 0.4), layout="constrained")
    grid = figure.subplots(len(pictures), columns + 1, squeeze=False, width_ratios=[1.5, *[1] * columns])
    for axes, picture in zip(grid, pictures, strict=True):
        for axis in axes:
            axis.axis("off")
        axes[0].text(0, 0.5, picture.caption, va="center", ha="left", fontsize=8, wrap=True)
        for axis, label, png in zip(axes[1:], picture.labels, picture.pngs, strict=False):
            axis.imshow(Image.open(BytesIO(b64decode(png))).convert("RGB"), interpolation="nearest")
            if picture is pictures[0]:
                axis.set_title(label, fontsize=9)
    file = BytesIO()
    figure.savefig(file, dpi=120)
    return file.getvalue()
