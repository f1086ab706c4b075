"""What is known of image files from an earlier start: that they can be read, and their digests.

A file counts as unchanged while its path, size and time of change are. That is what ``make`` and ``git`` rely on, too;
``--rehash`` reads every file again. A file changed within the last seconds is not remembered, for clocks are coarse.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from time import time
from typing import final

import numpy as np

from holdfast.core.files import write_whole

YOUNG = 2.0
"""Seconds within which a file may change twice and keep its time of change."""
RECORD = np.dtype([("stamp", "V16"), ("decoded", "u1"), ("digest", "V64")])


@dataclass(slots=True)
class Known:
    """What is known of one file."""

    decoded: bool = False
    """Whether it was decoded, or its header alone read."""
    digest: bytes = b""


@final
@dataclass
class Remembered:
    """Files known to be sound, in the file ``path``; without one nothing outlives the process."""

    path: Path | None = None
    known: dict[bytes, Known] = field(default_factory=dict)
    rehash: bool = False
    """Whether nothing that is known counts."""

    @classmethod
    def at(cls, path: Path | None, rehash: bool = False) -> Remembered:
        """Return what ``path`` holds; nothing if it is damaged, missing or not to be trusted."""
        remembered = cls(path, rehash=rehash)
        if path is None or rehash:
            return remembered
        with suppress(OSError, ValueError):
            content = path.read_bytes()
            checksum, records = content[:16], content[16:]
            if blake2b(records, digest_size=16).digest() == checksum:
                for record in np.frombuffer(records, RECORD):
                    digest = bytes(record["digest"])
                    known = Known(bool(record["decoded"]), digest if any(digest) else b"")
                    remembered.known[bytes(record["stamp"])] = known
        return remembered

    def __reduce__(self) -> tuple[type[Remembered], tuple[()]]:
        """Go to other processes empty-handed: they read pixels alone."""
        return Remembered, ()

    def stamp(self, file: Path | bytes, max_pixels: int) -> bytes | None:
        """Return what ``file`` is known by until it changes; None if it is no file or changed just now."""
        if self.path is None or not isinstance(file, Path):
            return None
        status = file.stat()
        if time() - status.st_mtime < YOUNG:
            return None
        said = os.fsencode(file.absolute()) + f"\0{status.st_size} {status.st_mtime_ns} {max_pixels}".encode()
        return blake2b(said, digest_size=16).digest()

    def rows(self, file: Path, count: int) -> list[bytes] | None:
        """Return the digests of the ``count`` images in ``file``, an array, if they are known."""
        stamp = self.stamp(file, 0)
        if stamp is None or self.path is None or self.rehash:
            return None
        with suppress(OSError):
            content = self._rows_of(self.path, stamp).read_bytes()
            checksum, digests = content[:16], content[16:]
            if blake2b(digests, digest_size=16).digest() == checksum and len(digests) == 16 * count:
                return [digests[start : start + 16] for start in range(0, len(digests), 16)]
        return None

    def keep_rows(self, file: Path, digests: Sequence[bytes]) -> None:
        """Write the digests of the images in ``file``, 16 bytes each; without a word if that cannot be."""
        stamp, content = self.stamp(file, 0), b"".join(digests)
        if stamp is not None and self.path is not None:
            with suppress(OSError):
                write_whole(self._rows_of(self.path, stamp), blake2b(content, digest_size=16).digest() + content)

    @staticmethod
    def _rows_of(path: Path, stamp: bytes) -> Path:
        return path.with_name(f"{path.name}.{stamp.hex()}")

    def save(self) -> None:
        """Write what is known, in one step; without a word if that cannot be: it is only slower next time."""
        if self.path is None or not self.known:
            return
        records = np.zeros(len(self.known), RECORD)
        for record, (stamp, known) in zip(records, self.known.items(), strict=True):
            record["stamp"], record["decoded"], record["digest"] = stamp, known.decoded, known.digest.ljust(64, b"\0")
        content = records.tobytes()
        partial = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        with suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            partial.write_bytes(blake2b(content, digest_size=16).digest() + content)
            partial.replace(self.path)
