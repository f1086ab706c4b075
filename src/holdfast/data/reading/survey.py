"""Which images can be read, why the others cannot, and the digests of those that were read: each is read once."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import final

import numpy as np
from jaxtyping import UInt8

from holdfast.core.errors import HoldfastError
from holdfast.data.reading.content import Content, Fetch, all_bytes, identity, side_by_side
from holdfast.data.reading.decode import complain, pixel_limit
from holdfast.data.reading.remembered import Known, Remembered

DIGEST = 64
"""Bytes of an image's digest."""


@final
class Survey:
    """What is known of the images ``ids`` that ``fetch`` gives, those of more than ``max_pixels`` being damaged."""

    def __init__(self, fetch: Fetch, ids: Sequence[str], max_pixels: int, remembered: Remembered) -> None:
        self.fetch, self.ids, self.max_pixels, self.remembered = fetch, ids, max_pixels, remembered
        self.reasons: dict[int, str] = {}
        """Why each damaged image cannot be read, by its row."""
        self.digests: UInt8[np.ndarray, "n 64"] = np.zeros((len(ids), DIGEST), np.uint8)
        """Zeros where it is not known yet."""

    def examine(self, rows: Sequence[int], thorough: bool, hashing: bool) -> None:
        """Find the damaged ones of ``rows``: by their headers or, if ``thorough``, by decoding them.

        Whatever is read as a whole, as all are for ``hashing``, is hashed in passing. Those remembered as sound are not
        read again.
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
            self.remembered.save()

    def _sound(self, content: Content, thorough: bool, hashing: bool) -> bytes:
        """Return the digest of an image, empty if only its header was read; raise if it is damaged."""
        stamp = self.remembered.stamp(identity(content), self.max_pixels)
        known = self.remembered.known.get(stamp) if stamp else None
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
            self.remembered.learn(stamp, Known(thorough, digest))
        return digest

    def hash(self, rows: Sequence[int]) -> None:
        """Read those of ``rows`` whose digests are not known yet.

        Raises:
            HoldfastError: one of them is gone.
        """
        unknown = [row for row in rows if not self.digests[row].any()]
        for row, digest in zip(unknown, side_by_side(self._hashed, unknown), strict=True):
            self.digests[row] = np.frombuffer(digest, np.uint8)
        self.remembered.save()

    def _hashed(self, row: int) -> bytes:
        try:
            content = self.fetch(row)
            stamp, digest = (
                self.remembered.stamp(identity(content), self.max_pixels),
                blake2b(all_bytes(content)).digest(),
            )
        except HoldfastError:  # a store that does not answer
            raise
        except Exception as error:  # a file that went, or a member without an image
            gone = "is gone" if isinstance(error, OSError) else "cannot be read"
            raise HoldfastError(
                f"image {self.ids[row]!r} {gone} ({reason(error)}); run the same command again"
            ) from error
        if stamp:
            known = self.remembered.known.get(stamp, Known())
            self.remembered.learn(stamp, Known(known.decoded, digest))
        return digest


def reason(error: Exception) -> str:
    """Return the error's first line without the addresses Pillow puts into it."""
    from PIL import Image, UnidentifiedImageError

    if isinstance(error, UnidentifiedImageError):
        return "not an image, or of an unknown format"
    if isinstance(error, Image.DecompressionBombError):
        return f"{str(error).partition(',')[0]}, which ?max_pixels=NUMBER after the name of the images raises"
    return (str(error).splitlines() or [type(error).__name__])[0]
