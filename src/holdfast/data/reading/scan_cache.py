"""Cache of image files: whether they can be read, their digests, and what archives contain.

A file counts as unchanged while its path, size and modification time are the same, as for ``make`` and ``git``;
``--rehash`` reads every file again. A file that changed within the last seconds is not cached, because clocks are coarse.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from time import time
from typing import final

import numpy as np

from holdfast.core.files import write_whole

FILE = "files.index"
"""How the file is called in the folder of a run or a training."""
YOUNG = 2.0
"""Seconds within which a file may change twice and keep its time of change."""
RECORD = np.dtype([("stamp", "V16"), ("decoded", "u1"), ("digest", "V64")])
FORMAT = b"files.index 2"
"""Part of the checksum, so that an index in an older format counts as damaged."""


@dataclass(slots=True)
class Known:
    """What is known of one file."""

    decoded: bool = False
    """True if the file was decoded; false if only its header was read."""
    digest: bytes = b""


@final
@dataclass
class ScanCache:
    """Files known to be sound, kept in a file for later runs."""

    path: Path | None = None
    """File that keeps the records; None keeps nothing."""
    known: dict[bytes, Known] = field(default_factory=dict)
    """Files of one image, by cache key."""
    contents: dict[bytes, bytes] = field(default_factory=dict)
    """Records of files of many images, such as the digests of an array's rows, by cache key."""
    changed: bool = False
    """True if there are records that were not saved."""

    @classmethod
    def at(cls, path: Path | None, rehash: bool = False) -> ScanCache:
        """Read the records at ``path``; none if the file is damaged, missing or not trusted.

        Args:
            rehash: True to ignore old records.
        """
        scan_cache = cls(path)
        if path is None or rehash:
            return scan_cache
        with suppress(OSError, ValueError):
            written = path.read_bytes()
            if _checksum(written[16:]) == written[:16]:
                count = int.from_bytes(written[16:24], "little")
                records = np.frombuffer(written, RECORD, count, 24)
                for stamp, decoded, digest in records.tolist():
                    scan_cache.known[stamp] = Known(bool(decoded), digest if any(digest) else b"")
                scan_cache.contents = dict(_unpacked(written, 24 + records.nbytes))
        return scan_cache

    def __reduce__(self) -> tuple[type[ScanCache], tuple[()]]:
        """Go to other processes empty-handed: they read pixels alone."""
        return ScanCache, ()

    def key(self, file: Path | str | None, *context: object) -> bytes | None:
        """Return what ``file`` is known by, together with ``context``, until it changes.

        Args:
            file: a local file, or text that identifies a stored object and changes with its content, or neither.
            context: what else decides the meaning of what is scan_cache, such as the largest size allowed.

        Returns:
            16 bytes; None if there is no file, or it changed just now, or nothing is to be remembered.
        """
        if self.path is None or file is None:
            return None
        version = local_version(file) if isinstance(file, Path) else file
        if version is None:
            return None
        return blake2b(os.fsencode(version) + b"\0" + " ".join(map(str, context)).encode(), digest_size=16).digest()

    def learn(self, stamp: bytes, known: Known) -> None:
        """Record what is known of the file of one image."""
        self.known[stamp] = known
        self.changed = True

    def recall(self, stamp: bytes | None, find: Callable[[], bytes]) -> bytes:
        """Record under a cache key, computed and kept if there is none.

        Args:
            stamp: Cache key; None keeps nothing.
        """
        if stamp in self.contents:
            return self.contents[stamp]
        content = find()
        if stamp is not None:
            self.contents[stamp] = content
            self.changed = True
        return content

    def save(self) -> None:
        """Write all records in one step; a failure is ignored, since it only costs time."""
        if self.path is None or not self.changed:
            return
        records = np.zeros(len(self.known), RECORD)
        for record, (stamp, known) in zip(records, self.known.items(), strict=True):
            record["stamp"], record["decoded"], record["digest"] = stamp, known.decoded, known.digest.ljust(64, b"\0")
        parts = [len(self.known).to_bytes(8, "little"), records.tobytes()]
        for stamp, content in self.contents.items():
            parts += [stamp, len(content).to_bytes(8, "little"), content]
        written = b"".join(parts)
        with suppress(OSError):
            write_whole(self.path, _checksum(written) + written)
            self.changed = False


def local_version(file: Path) -> str | None:
    """Return text that changes when ``file`` does; None if it changed just now."""
    status = os.stat(file)
    if time() - status.st_mtime < YOUNG:
        return None
    return f"{os.path.abspath(file)}\0{status.st_size} {status.st_mtime_ns}"


def _checksum(written: bytes) -> bytes:
    return blake2b(written, digest_size=16, person=FORMAT).digest()


def _unpacked(written: bytes, start: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield stamps and contents from the position ``start`` on."""
    while start < len(written):
        length = int.from_bytes(written[start + 16 : start + 24], "little")
        yield written[start : start + 16], written[start + 24 : start + 24 + length]
        start += 24 + length
