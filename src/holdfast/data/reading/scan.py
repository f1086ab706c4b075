"""Which images can be read, their digests, and images that stay encoded until they are used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from hashlib import blake2b
from pathlib import Path
from typing import final

import numpy as np
import torch
from jaxtyping import Int, Shaped, UInt8
from torch import Tensor

from holdfast.core.errors import HoldfastError, explained, first_line, warn
from holdfast.core.geometry import Preprocessing
from holdfast.core.images import Images, changed
from holdfast.core.settings import convert
from holdfast.data.by_name import Selection
from holdfast.data.reading.decode import (
    MAX_PIXELS,
    USUAL,
    Content,
    Decoding,
    Fetch,
    all_bytes,
    complain,
    decode,
    depends,
    identity,
    pixel_limit,
    side_by_side,
)
from holdfast.data.reading.scan_cache import Known, ScanCache

DIGEST = 64
"""Bytes of an image's digest."""


@final
class Scan:
    """Scan of images: which can be read, and their digests."""

    def __init__(self, fetch: Fetch, ids: Sequence[str], max_pixels: int, scan_cache: ScanCache) -> None:
        self.fetch, self.ids, self.max_pixels, self.scan_cache = fetch, ids, max_pixels, scan_cache
        self.reasons: dict[int, str] = {}
        """Why each damaged image cannot be read, by its row."""
        self.digests: UInt8[np.ndarray, "n 64"] = np.zeros((len(ids), DIGEST), np.uint8)
        """Zeros where it is not known yet."""

    def read(self, rows: Sequence[int], thorough: bool, hashing: bool) -> None:
        """Find damaged images by their headers or by decoding; hash what is read completely.

        Images remembered as sound are not read again.

        Args:
            thorough: True to decode, false to read headers.
            hashing: True to read and hash all of them.
        """

        def examined(row: int) -> str | bytes:
            try:
                return self._sound(self.fetch(row), thorough, hashing)
            except HoldfastError:  # a store that does not answer says nothing about its images
                raise
            except Exception as error:  # decoders raise anything at all on damaged bytes
                return reason(error)

        try:
            with pixel_limit(self.max_pixels):
                for row, examination in zip(rows, side_by_side(examined, rows), strict=True):
                    if isinstance(examination, str):
                        self.reasons[row] = examination
                    elif examination:
                        self.digests[row] = np.frombuffer(examination, np.uint8)
        finally:
            self.scan_cache.save()

    def _sound(self, content: Content, thorough: bool, hashing: bool) -> bytes:
        """Return the digest of an image, empty if only its header was read; raise if it is damaged."""
        stamp = self.scan_cache.key(identity(content), self.max_pixels)
        known = self.scan_cache.known.get(stamp) if stamp else None
        if known is not None and known.decoded >= thorough:
            return known.digest
        if isinstance(content, Path) and not thorough and not hashing:
            complain(content, thorough)
            digest = b""
        else:
            read = all_bytes(content)
            complain(read, thorough)
            digest = blake2b(read).digest()
        if stamp:
            self.scan_cache.learn(stamp, Known(thorough, digest))
        return digest

    def hash(self, rows: Sequence[int]) -> None:
        """Read those of ``rows`` whose digests are not known yet.

        Raises:
            HoldfastError: one of them is gone.
        """
        unknown = [row for row in rows if not self.digests[row].any()]
        for row, digest in zip(unknown, side_by_side(self._hashed, unknown), strict=True):
            self.digests[row] = np.frombuffer(digest, np.uint8)
        self.scan_cache.save()

    def _hashed(self, row: int) -> bytes:
        try:
            content = self.fetch(row)
            stamp = self.scan_cache.key(identity(content), self.max_pixels)
            digest = blake2b(all_bytes(content)).digest()
        except HoldfastError:  # a store that does not answer
            raise
        except Exception as error:  # a file that went, or a member without an image
            gone = "is gone" if isinstance(error, OSError) else "cannot be read"
            raise HoldfastError(
                f"image {self.ids[row]!r} {gone} ({reason(error)}); run the same command again"
            ) from error
        if stamp:
            known = self.scan_cache.known.get(stamp, Known())
            self.scan_cache.learn(stamp, Known(known.decoded, digest))
        return digest


def reason(error: Exception) -> str:
    """Return the error's first line without the addresses Pillow puts into it."""
    from PIL import Image, UnidentifiedImageError

    if isinstance(error, UnidentifiedImageError):
        return "not an image, or of an unknown format"
    if isinstance(error, Image.DecompressionBombError):
        return f"{str(error).partition(',')[0]}, which ?max_pixels=NUMBER after the name of the images raises"
    return first_line(error)


THOROUGH = 20_000
"""Images that are decoded once when loaded, to find the damaged ones; of more, only the headers are read
(and those chosen are decoded, if they are so few)."""

SHOWN = 5


class Encoded:
    """Images of a scan that stay encoded until they are used.

    A digest is that of the file, not of the pixels made from it, so that encoders which resize the same files
    differently are known to be given the same images. How they resize is part of the encoder's own fingerprint.
    """

    def __init__(
        self,
        scan: Scan,
        rows: Sequence[int],
        ids: Sequence[str],
        channels: int,
        geometry: Preprocessing,
        skipped: Mapping[str, str],
    ) -> None:
        self.scan, self.rows, self.ids = scan, rows, ids
        self.channels, self.geometry, self.skipped = channels, geometry, skipped
        self.decoding = USUAL

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, rows: Sequence[int]) -> Shaped[Tensor, "b c h w"]:
        dtype = torch.float32 if self.geometry.floats else torch.uint8
        pixels = torch.empty((len(rows), self.channels, *self.geometry.crop), dtype=dtype)
        array = pixels.numpy()  # which is filled twice as fast

        def put(position: int) -> None:
            array[position] = self.picture(rows[position]).numpy()

        with pixel_limit(self.scan.max_pixels):
            for _ in side_by_side(put, range(len(rows))):
                pass
        return pixels

    def picture(self, row: int) -> Shaped[Tensor, "c h w"]:
        """Return the pixels of one image, which need not have the size of the others."""
        with explained(f"image {self.ids[row]!r} cannot be decoded", "remove it and run the same command again"):
            content, known = all_bytes(self.scan.fetch(self.rows[row])), self.scan.digests[self.rows[row]]
            if known.any() and blake2b(content).digest() != known.tobytes():
                raise changed(f"image {self.ids[row]!r}")
            return decode(content, self.channels, self.geometry, self.decoding)

    def otherwise(self, geometry: Preprocessing, decoding: Decoding) -> Encoded:
        """The same files, resized and decoded in another way."""
        again = copy(self)
        again.geometry, again.decoding = geometry, decoding
        return again

    def depends(self, row: int) -> tuple[bool, bool]:
        """Whether the file of ``row`` has an EXIF rotation, and whether it has transparent parts."""
        with pixel_limit(self.scan.max_pixels):
            content = self.scan.fetch(self.rows[row])
            return depends(content if isinstance(content, Path) else all_bytes(content))

    def digest(self, row: int) -> bytes:
        if not self.scan.digests[self.rows[row]].any():
            self.scan.hash(self.rows)
        return self.scan.digests[self.rows[row]].tobytes()


def load_encoded(
    name: str,
    fetch: Fetch,
    ids: Sequence[str],
    labels: Int[Tensor, "n"] | None,
    selection: Selection,
    settings: Mapping[str, str],
    classes: Sequence[str] = (),
    distant: bool = False,
) -> Images:
    """Return the images that ``selection`` chooses of the sound ones that ``fetch`` gives.

    All are judged before any is chosen, so that a command says the same of a folder however few images it needs; but
    of more than ``THOROUGH`` that are ``distant`` or in tars, where a header costs as much as an image, those chosen. The
    setting ``max_pixels`` replaces ``MAX_PIXELS``.

    Raises:
        HoldfastError: more are damaged than ``selection`` allows, or the encoder does not take pictures.
    """
    channels, most = _channels(selection), convert(settings.get("max_pixels", str(MAX_PIXELS)), int, "max_pixels")
    scan = Scan(fetch, ids, most, selection.scan_cache)
    few, every = len(ids) <= THOROUGH, selection.limit is None or selection.limit >= len(ids)
    judged = range(len(ids)) if few or every or not distant else range(0)
    scan.read(judged, few, every)
    sound = [row for row in range(len(ids)) if row not in scan.reasons]
    rows = [sound[position] for position in selection.choose([ids[row] for row in sound])]
    count = len(judged) or len(rows)
    if not judged or len(rows) <= THOROUGH < len(ids):  # of which headers were read at most
        scan.read(rows, len(rows) <= THOROUGH, True)
        rows = [row for row in rows if row not in scan.reasons]
    skipped = {ids[row]: scan.reasons[row] for row in sorted(scan.reasons)}
    _judge(name, skipped, count, selection.max_unreadable)
    kept_ids = [ids[row] for row in rows]
    source = Encoded(scan, rows, kept_ids, channels, selection.framing, skipped)
    return Images(source, kept_ids, None if labels is None else labels[rows], name, classes)


def _channels(selection: Selection) -> int:
    domain = selection.domain
    if len(domain.shape) != 3 or domain.shape[0] not in (1, 3) or (domain.low, domain.high) != (0, 1):
        last = len(domain.shape) == 3 and domain.shape[-1] in (1, 3)
        advice = "add ?layout=nhwc if its channels are last" if last else "pass an array file (.npy) of its inputs"
        raise HoldfastError(
            "image files suit encoders of 1 or 3 channels with pixels in [0, 1], but this one takes shape "
            f"{domain.shape} in [{domain.low:g}, {domain.high:g}]; {advice}"
        )
    return domain.shape[0]


def _judge(name: str, skipped: dict[str, str], total: int, allowed: float) -> None:
    if not skipped:
        return
    first = ", ".join(f"{key} ({reason})" for key, reason in list(skipped.items())[:SHOWN])
    more = f" and {len(skipped) - SHOWN} more" if len(skipped) > SHOWN else ""
    problem = f"{len(skipped)} of {total} images of {name} cannot be read: {first}{more}"
    if len(skipped) == total or len(skipped) > allowed * total:
        raise HoldfastError(f"{problem}; repair or remove them (up to {allowed:.0%} would be skipped)")
    warn(f"{problem}; they are skipped", 2)
