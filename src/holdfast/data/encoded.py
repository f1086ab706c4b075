"""Images kept as encoded files and decoded whenever they are read, so that a million of them fit into memory."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from hashlib import blake2b, file_digest
from io import BytesIO
from pathlib import Path

import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from holdfast.core.encoder import Geometry
from holdfast.core.errors import HoldfastError, HoldfastWarning
from holdfast.core.images import Images
from holdfast.core.settings import convert
from holdfast.data.base import THREADS, Request
from holdfast.data.decode import MAX_PIXELS, complain, decode, pixel_limit
from holdfast.data.remembered import Known, Remembered

THOROUGH = 20_000
"""Up to so many images are decoded once when loaded, to find the damaged ones; of more, only the headers are read
(and those chosen are decoded, if they are so few)."""

SHOWN = 5

Fetch = Callable[[int], Path | bytes]
"""From a row to its file or its bytes."""


class Encoded:
    """Image files as a source of pixels; ``skipped`` says which were left out, and why.

    A digest is that of the file, not of the pixels made from it, so that encoders which resize the same files
    differently are known to be given the same images. How they resize is part of the encoder's own fingerprint.
    """

    def __init__(
        self,
        fetch: Fetch,
        rows: Sequence[int],
        ids: Sequence[str],
        channels: int,
        geometry: Geometry,
        max_pixels: int,
        remembered: Remembered,
    ) -> None:
        self.fetch, self.rows, self.ids = fetch, rows, ids
        self.channels, self.geometry, self.max_pixels = channels, geometry, max_pixels
        self.remembered = remembered
        self.skipped: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, rows: Sequence[int]) -> UInt8[Tensor, "b c h w"]:
        pixels = torch.empty((len(rows), self.channels, *self.geometry.crop), dtype=torch.uint8)
        with pixel_limit(self.max_pixels), ThreadPoolExecutor(THREADS) as pool:
            for position, image in enumerate(pool.map(self._decode, rows)):
                pixels[position] = image
        return pixels

    def _decode(self, row: int) -> UInt8[Tensor, "c h w"]:
        try:
            return decode(self.fetch(self.rows[row]), self.channels, self.geometry)
        except Exception as error:  # decoders raise anything at all on damaged bytes
            said = f"image {self.ids[row]!r} cannot be decoded ({_reason(error)})"
            raise HoldfastError(f"{said}; remove it and run the same command again") from error

    def digest(self, row: int) -> bytes:
        return self._digests[row]

    @cached_property
    def _digests(self) -> tuple[bytes, ...]:
        """The digest of every file, read side by side where it is not remembered."""
        with ThreadPoolExecutor(THREADS) as pool:
            found = tuple(pool.map(self._digest, range(len(self)), chunksize=64))
        self.remembered.save()
        return found

    def _digest(self, row: int) -> bytes:
        content = self.fetch(self.rows[row])
        try:
            stamp = self.remembered.stamp(content, self.max_pixels)
            known = self.remembered.known.setdefault(stamp, Known()) if stamp else Known()
            if not known.digest:
                with content.open("rb") if isinstance(content, Path) else BytesIO(content) as file:
                    known.digest = file_digest(file, blake2b).digest()
                self.remembered.changed = True
            return known.digest
        except OSError as error:
            raise HoldfastError(
                f"image {self.ids[row]!r} is gone ({_reason(error)}); run the same command again"
            ) from error


def load_encoded(
    name: str,
    fetch: Fetch,
    ids: Sequence[str],
    labels: Int[Tensor, "n"] | None,
    request: Request,
    settings: Mapping[str, str],
    classes: Sequence[str] = (),
) -> Images:
    """Return the images that ``request`` chooses of the sound ones that ``fetch`` gives.

    All are judged before any is chosen, so that a command says the same of a folder however few images it needs. The
    setting ``max_pixels`` replaces ``MAX_PIXELS``.

    Raises:
        HoldfastError: more are damaged than ``request`` allows, or the encoder does not take pictures.
    """
    channels, most = _channels(request), convert(settings.get("max_pixels", str(MAX_PIXELS)), int, "max_pixels")
    remembered = request.remembered
    skipped = survey(fetch, range(len(ids)), len(ids) <= THOROUGH, most, remembered)
    sound = [row for row in range(len(ids)) if row not in skipped]
    rows = [sound[position] for position in request.choose([ids[row] for row in sound])]
    if len(rows) <= THOROUGH < len(ids):  # few of many, whose headers alone were read
        skipped |= survey(fetch, rows, True, most, remembered)
        rows = [row for row in rows if row not in skipped]
    listed = {ids[row]: skipped[row] for row in sorted(skipped)}
    _judge(name, listed, len(ids), request.max_unreadable)
    kept_ids = [ids[row] for row in rows]
    source = Encoded(fetch, rows, kept_ids, channels, request.framing, most, remembered)
    source.skipped = listed
    return Images(source, kept_ids, None if labels is None else labels[rows], name, classes)


def _channels(request: Request) -> int:
    domain = request.domain
    if len(domain.shape) != 3 or domain.shape[0] not in (1, 3) or (domain.low, domain.high) != (0, 1):
        raise HoldfastError(
            "image files suit encoders of 1 or 3 channels with pixels in [0, 1], but this one takes shape "
            f"{domain.shape} in [{domain.low:g}, {domain.high:g}]; pass an array file (.npy) of its inputs"
        )
    return domain.shape[0]


def survey(
    fetch: Fetch, rows: Sequence[int], thorough: bool, max_pixels: int, remembered: Remembered
) -> dict[int, str]:
    """Return the reason why each damaged row of ``rows`` cannot be read: by its header or, if ``thorough``, decoded.

    Those ``remembered`` as sound are not read again.
    """

    def problem(row: int) -> str | None:
        try:
            content = fetch(row)
            stamp = remembered.stamp(content, max_pixels)
            known = remembered.known.get(stamp) if stamp else None
            if known is None or (thorough and not known.decoded):
                complain(content, thorough)
                if stamp:
                    remembered.known.setdefault(stamp, Known()).decoded |= thorough
        except Exception as error:  # decoders raise anything at all on damaged bytes
            return _reason(error)
        return None

    found: dict[int, str] = {}
    with pixel_limit(max_pixels), ThreadPoolExecutor(THREADS) as pool:
        for start in range(0, len(rows), 1024):  # a million tasks queued at once would outweigh the images
            block = rows[start : start + 1024]
            found.update((row, said) for row, said in zip(block, pool.map(problem, block), strict=True) if said)
    return found


def _judge(name: str, skipped: dict[str, str], total: int, allowed: float) -> None:
    if not skipped:
        return
    first = ", ".join(f"{key} ({reason})" for key, reason in list(skipped.items())[:SHOWN])
    more = f" and {len(skipped) - SHOWN} more" if len(skipped) > SHOWN else ""
    said = f"{len(skipped)} of {total} images of {name} cannot be read: {first}{more}"
    if len(skipped) == total or len(skipped) > allowed * total:
        raise HoldfastError(f"{said}; repair or remove them (up to {allowed:.0%} would be skipped)")
    warnings.warn(f"{said}; they are skipped", HoldfastWarning, stacklevel=3)


def _reason(error: Exception) -> str:
    """Return the error's first line without the addresses Pillow puts into it."""
    from PIL import Image, UnidentifiedImageError

    if isinstance(error, UnidentifiedImageError):
        return "not an image, or of an unknown format"
    if isinstance(error, Image.DecompressionBombError):
        return f"{str(error).partition(',')[0]}, which ?max_pixels=NUMBER after the name of the images raises"
    return (str(error).splitlines() or [type(error).__name__])[0]
