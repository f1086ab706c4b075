"""Rows of small images for reports and for sheets of attacked images, and which samples to show."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Sequence
from io import BytesIO
from textwrap import wrap

import numpy as np
from torch import Tensor

from holdfast.core.encoder import Domain
from holdfast.core.records import Picture

SHOWN = 3


def png(pixels: Tensor, domain: Domain) -> str | None:
    """Encode one image as a base64 PNG file.

    Of more than three channels it shows the first three, of two channels the first.

    Returns:
        Text of the file; None for inputs that are no image.
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
    """Labelled images as one row of pictures; None if the inputs are no images."""
    files = {label: png(pixels, domain) for label, pixels in parts.items()}
    shown = {label: file for label, file in files.items() if file is not None}
    channels = max((len(pixels) for pixels in parts.values()), default=0)
    if _shown(channels) < channels:
        caption = f"{caption} (channels 1 to {_shown(channels)} of {channels})"
    return Picture(caption=caption, labels=tuple(shown), pngs=tuple(shown.values())) if shown else None


def ends(values: Sequence[float], count: int = SHOWN) -> list[int]:
    """Positions of the largest and then of the smallest defined values."""
    defined = [position for position in np.argsort(values).tolist() if values[position] == values[position]]
    worst = defined[::-1][:count]
    return worst + [position for position in defined[:count][::-1] if position not in worst]


SIDE, GAP = 180, 12
"""Pixels of one picture on a sheet, and between two."""


def draw(pictures: Sequence[Picture]) -> bytes:
    """Rows of pictures with captions as one PNG file, small images enlarged."""
    from PIL import Image, ImageDraw, ImageFont

    font = ImageFont.load_default(14)
    columns, captions = max(len(picture.pngs) for picture in pictures), 3 * SIDE // 2
    step, top = SIDE + GAP, 30
    sheet = Image.new("RGB", (captions + columns * step + GAP, top + len(pictures) * step), "white")
    pen = ImageDraw.Draw(sheet)
    for column, label in enumerate(pictures[0].labels):
        pen.text((captions + column * step + SIDE // 2, top // 2), label, "black", font, anchor="mm")
    for line, picture in enumerate(pictures):
        # The font that comes with Pillow has Latin letters; others would all look alike.
        caption = picture.caption.encode("latin-1", "backslashreplace").decode("latin-1")
        broken = "\n".join(part for words in caption.split("\n") for part in wrap(words, captions // 8))
        pen.multiline_text((GAP, top + line * step + SIDE // 2), broken, "black", font, anchor="lm")
        for column, file in enumerate(picture.pngs):
            image = Image.open(BytesIO(b64decode(file))).convert("RGB")
            scale = SIDE / max(image.size)
            size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
            enlarged = image.resize(size, Image.Resampling.NEAREST if scale > 1 else Image.Resampling.BOX)
            sheet.paste(enlarged, (captions + column * step, top + line * step))
    file_ = BytesIO()
    sheet.save(file_, format="PNG")
    return file_.getvalue()
