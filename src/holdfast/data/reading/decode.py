"""Decoding one image, wherever it is stored: upright, without transparency, 8 bits per channel."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Literal, TypeVar

import numpy as np
import torch
from jaxtyping import Shaped
from torch import Tensor

from holdfast.core.geometry import Geometry, Preprocessing
from holdfast.core.images import THREADS

if TYPE_CHECKING:
    from PIL import Image


Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class Stored:
    """An image in an archive or in a distant store."""

    read: Callable[[], bytes]
    """Function that returns the encoded image."""
    identity: Path | str | None = None
    """Text that changes with the content; None if there is none, so that the image is read in every run."""


Content = Path | bytes | Stored
Fetch = Callable[[int], Content]
"""From a row to its image; nothing of it is read yet, unless it is in memory."""


def identity(content: Content) -> Path | str | None:
    """Return what ``content`` is remembered by."""
    if isinstance(content, Stored):
        return content.identity
    return content if isinstance(content, Path) else None


def all_bytes(content: Content) -> bytes:
    """Return what is stored.

    Raises:
        ValueError: there is nothing, or a named pipe, which would make the reader wait for ever.
    """
    if isinstance(content, Path):
        if content.stat().st_size == 0:
            raise ValueError("zero bytes")
        return content.read_bytes()
    return content if isinstance(content, bytes) else content.read()


def side_by_side(work: Callable[[int], Found], rows: Sequence[int]) -> Iterator[Found]:
    """Results of ``work`` for each row, in order, computed ahead by several threads.

    Rows are handed out a few at a time: handing out one takes as long as decoding the smallest images does.
    """
    size = max(1, min(16, len(rows) // (4 * THREADS)))
    begun = deque[Future[list[Found]]]()
    with ThreadPoolExecutor(THREADS) as pool:
        for start in range(0, len(rows), size):
            begun.append(pool.submit(lambda some: [work(row) for row in some], rows[start : start + size]))
            if len(begun) > 4 * THREADS:  # a million tasks queued at once would outweigh the images
                yield from begun.popleft().result()
        while begun:
            yield from begun.popleft().result()


# Naming the formats keeps Pillow from handing a disguised file to a decoder that runs other programs (EPS).
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF", "PPM", "AVIF", "JPEG2000")

MAX_PIXELS = 64_000_000
"""How many pixels an image may have, unless the reference says otherwise: decoding takes a dozen bytes for each."""

MOST_ELONGATED = 100
"""Ratio of the sides up to which an image is given to a library's own transform: enlarging a line would fill the memory."""


@dataclass(frozen=True)
class Decoding:
    """How a file becomes an upright, opaque picture."""

    turned: bool = True
    """True to rotate the picture as its EXIF data says."""
    behind: Literal["white", "black", "nothing"] = "white"
    """Colour behind transparent parts; ``nothing`` drops transparency and shows the stored colours."""


USUAL = Decoding()
ORIENTATION, TRANSPARENT = 0x0112, ("LA", "PA", "RGBA", "La", "RGBa")
"""The EXIF tag of how a picture is turned, and the modes of pictures with transparency."""

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


def decode(
    content: Path | bytes, channels: int, geometry: Preprocessing, decoding: Decoding = USUAL
) -> Shaped[Tensor, "c h w"]:
    """First frame of an image file, shape (channels, height, width), 8 bits per channel."""
    with opened(content) as image:
        return fitted(_plain(image, "L" if channels == 1 else "RGB", decoding), geometry)


def fitted(image: Image.Image, geometry: Preprocessing) -> Shaped[Tensor, "c h w"]:
    """Pixels of a picture after resizing and cropping, shape (channels, height, width)."""
    if not isinstance(geometry, Geometry) and max(image.size) > MOST_ELONGATED * min(image.size):
        raise ValueError(f"{image.width} x {image.height} pixels, more than {MOST_ELONGATED} times longer than wide")
    return torch.from_numpy(np.array(geometry(image))).permute(2, 0, 1)


def complain(content: Path | bytes, thorough: bool) -> None:
    """Raise if an image file is damaged.

    Args:
        thorough: True to decode all of the file, false to read its header.

    Raises:
        Exception: The file is damaged; the error is that of the decoder.
    """
    with opened(content) as image:
        if thorough:
            image.draft(None, (1, 1))  # reads all of a JPEG but computes an eighth of its rows and columns
            _plain(image, "RGB")


def depends(content: Path | bytes) -> tuple[bool, bool]:
    """Whether a file has an EXIF rotation, and whether it has transparent parts."""
    with opened(content) as image:
        return image.getexif().get(ORIENTATION, 1) != 1, _transparent(image)


def _transparent(image: Image.Image) -> bool:
    return image.mode in TRANSPARENT or "transparency" in image.info


def _plain(image: Image.Image, mode: str, decoding: Decoding = USUAL) -> Image.Image:
    """Return ``image`` upright, opaque and in ``mode`` L or RGB."""
    from PIL import Image, ImageOps

    image = ImageOps.exif_transpose(image) if decoding.turned else image
    if image.mode == "F" or image.mode.startswith("I"):
        image = _eight_bits(image)
    if _transparent(image) and decoding.behind == "nothing":
        image = image.convert("RGBA")
    elif _transparent(image):
        page = Image.new("RGBA", image.size, decoding.behind)
        image = Image.alpha_composite(page, image.convert("RGBA"))
    return image.convert(mode)


def _eight_bits(image: Image.Image) -> Image.Image:
    """Return 16-bit grey as 8-bit grey: Pillow's own conversion clips at 255 where this divides by 257."""
    from PIL import Image

    values = np.asarray(image)
    if image.mode == "F" or values.min() < 0 or values.max() > 65535:
        raise ValueError(f"its pixels (Pillow mode {image.mode}) have no stated range; save 8 or 16 bits a channel")
    return Image.fromarray(((values.astype(np.uint32) + 128) // 257).astype(np.uint8))
