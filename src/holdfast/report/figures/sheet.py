"""Rows of pictures on one sheet, for people who want to see what an attack does."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Sequence
from io import BytesIO

from holdfast.core.records import Picture

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
