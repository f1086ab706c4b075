"""From the bytes of an image file to pixels: upright, opaque, 8 bits a channel, resized and cropped."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from io import BytesIO
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from holdfast.core.encoder import Geometry

if TYPE_CHECKING:
    from PIL import Image

# Naming the formats keeps Pillow from handing a disguised file to a decoder that runs other programs (EPS).
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF", "PPM", "AVIF", "JPEG2000")

MAX_PIXELS = 64_000_000
"""How many pixels an image may have, unless the reference says otherwise: decoding takes a dozen bytes for each."""

ELONGATED = 16
"""How many times longer than wide an image may be before its ends, which no crop shows, are cut off unseen."""


_ALLOWED: list[int] = []
_OUTSIDE = ExitStack()
_TURN = Lock()


@contextmanager
def pixel_limit(most: int) -> Iterator[None]:
    """Have Pillow refuse images, frames and tiles of more than ``most`` pixels.

    Pillow has one limit for all threads, so the first to come sets it, the last to leave restores it, and in between the
    largest counts.
    """
    from PIL import Image

    with _TURN:
        if not _ALLOWED:
            _OUTSIDE.callback(setattr, Image, "MAX_IMAGE_PIXELS", Image.MAX_IMAGE_PIXELS)
            _OUTSIDE.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        _ALLOWED.append(most)
        Image.MAX_IMAGE_PIXELS = max(_ALLOWED) // 2  # Pillow warns above its limit and refuses above twice as much
    try:
        yield
    finally:
        with _TURN:
            _ALLOWED.remove(most)
            if _ALLOWED:
                Image.MAX_IMAGE_PIXELS = max(_ALLOWED) // 2
            else:
                _OUTSIDE.close()


def opened(content: Path | bytes) -> Image.Image:
    """Return the image of a file or of its bytes, its header read and its pixels not yet.

    Raises:
        ValueError: there is nothing to read; Pillow raises much else about damaged files.
    """
    from PIL import Image

    if (content.stat().st_size if isinstance(content, Path) else len(content)) == 0:
        raise ValueError("zero bytes")  # so are named pipes, which would make the reader wait for ever
    Image.preinit()
    if not {*FORMATS} <= {*Image.OPEN}:
        Image.init()  # registers the rest; an older Pillow has no AVIF, and names that it lacks are errors of their own
    known = [name for name in FORMATS if name in Image.OPEN]
    return Image.open(content if isinstance(content, Path) else BytesIO(content), formats=known)


def decode(content: Path | bytes, channels: int, geometry: Geometry) -> UInt8[Tensor, "c h w"]:
    """Return the first frame of an image file as (``channels``, height, width), turned as its EXIF data says."""
    with opened(content) as image:
        values = np.array(fit(_plain(image, "L" if channels == 1 else "RGB"), geometry))
    return torch.from_numpy(values.reshape(*geometry.crop, channels)).permute(2, 0, 1)


def complain(content: Path | bytes, thorough: bool) -> None:
    """Raise if the file is damaged: as its header says or, if ``thorough``, as decoding all of it shows."""
    with opened(content) as image:
        if thorough:
            image.draft(None, (1, 1))  # reads all of a JPEG but computes an eighth of its rows and columns
            _plain(image, "RGB")


def _plain(image: Image.Image, mode: str) -> Image.Image:
    """Return ``image`` upright and in ``mode`` L or RGB; what is transparent shows a white page behind it."""
    from PIL import Image, ImageOps

    image = ImageOps.exif_transpose(image)
    if image.mode == "F" or image.mode.startswith("I"):
        image = _eight_bits(image)
    if image.mode in ("LA", "PA", "RGBA", "La", "RGBa") or "transparency" in image.info:
        page = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(page, image.convert("RGBA"))
    return image.convert(mode)


def _eight_bits(image: Image.Image) -> Image.Image:
    """Return 16-bit grey as 8-bit grey: Pillow's own conversion clips at 255 where this divides by 257."""
    from PIL import Image

    values = np.asarray(image)
    if image.mode == "F" or values.min() < 0 or values.max() > 65535:
        raise ValueError(f"its pixels (Pillow mode {image.mode}) have no stated range; save 8 or 16 bits a channel")
    return Image.fromarray(((values.astype(np.uint32) + 128) // 257).astype(np.uint8))


def fit(image: Image.Image, geometry: Geometry) -> Image.Image:
    """Return ``image`` with its shorter side resized to ``geometry.resize`` and its centre cropped.

    Sizes and corners are rounded as torchvision does, so that its recipes are followed to the pixel. An image too
    elongated to fill the crop is enlarged until it does; torchvision would frame it in black.
    """
    from PIL import Image

    image = _middle(image)
    (width, height), (rows, columns) = image.size, geometry.crop
    short = min(width, height)
    size = [int(geometry.resize * side / short) for side in (width, height)]
    enlarge = max(1.0, columns / size[0], rows / size[1])
    size = [max(round(side * enlarge), least) for side, least in zip(size, (columns, rows), strict=True)]
    left, top = round((size[0] - columns) / 2), round((size[1] - rows) / 2)
    resized = image.resize((size[0], size[1]), Image.Resampling[geometry.interpolation.upper()])
    return resized.crop((left, top, left + columns, top + rows))


def _middle(image: Image.Image) -> Image.Image:
    """Return the middle of a very long image: enlarging all of a line of pixels would fill the memory."""
    most = ELONGATED * min(image.size)
    left, top = (max(0, side - most) // 2 for side in image.size)
    return image.crop((left, top, image.width - left, image.height - top)) if left or top else image
