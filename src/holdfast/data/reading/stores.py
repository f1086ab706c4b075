"""Local and remote files, both through fsspec, and which file endings count as images."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path, PurePosixPath
from time import sleep
from typing import Any, TypeVar

from holdfast.core.errors import HoldfastError, first_line, warn
from holdfast.data.reading.decode import Stored
from holdfast.data.reading.scan_cache import local_version

Found = TypeVar("Found")

PAUSES = (0.5, 2.0, 8.0)
"""Seconds before each further attempt at what a store did not answer."""
FINAL = (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError, ImportError, NotImplementedError)
"""What no further attempt would change."""
SUMS = ("ETag", "etag", "sha256", "blob_id", "md5Hash", "md5", "crc32c", "Content-MD5", "Digest")
CHANGED = ("mtime", "LastModified", "last_modified", "updated", "Last-Modified", "created")
"""Under which names stores say what is in a file, or else when it changed."""


@dataclass(frozen=True)
class FileStore:
    """A file system of fsspec: this machine's own, or one behind an address."""

    filesystem: Any

    @classmethod
    def at(cls, address: str) -> tuple[FileStore, str]:
        """Return the store of ``address`` (a path or ``scheme://...``) and the path in it.

        Raises:
            HoldfastError: no one knows the scheme, or the package for it is missing.
        """
        from fsspec.core import url_to_fs

        scheme, _, place = address.partition("://")
        user, at, _ = place.partition("/")[0].rpartition("@")
        if at and ":" in user:
            # An address is written into reports, and there no one looks for a password.
            raise HoldfastError(
                f"the {scheme}:// address has a password before its @; leave it out and give it as the store's own tools "
                "take it (environment, configuration file)"
            )
        try:
            filesystem, path = url_to_fs(address)
        except ImportError as error:
            raise HoldfastError(
                f"{scheme}:// needs another package ({first_line(error)}). "
                "pip install 'holdfast-encoders[remote]' brings those for s3, gs and http"
            ) from error
        except ValueError as error:
            raise HoldfastError(f"{address!r} cannot be opened ({first_line(error)}); check its beginning") from error
        except Exception as error:  # each store's own complaints about credentials and addresses
            raise HoldfastError(_explained(address, error, 1)) from error
        return cls(filesystem), path

    @property
    def local(self) -> bool:
        """Return whether this is the machine's own file system."""
        spelled = self.filesystem.protocol
        return "file" in ((spelled,) if isinstance(spelled, str) else spelled)

    def ask(self, path: str, question: Callable[[], Found]) -> Found:
        """Result of ``question``, asked again after a pause if the store does not answer.

        Raises:
            FileNotFoundError: There is no such file.
            HoldfastError: The store refuses, or did not answer any attempt.
        """
        for attempt, pause in enumerate((*PAUSES, None), 1):
            try:
                return question()
            except FileNotFoundError:
                raise
            except Exception as error:  # every store has errors of its own
                if pause is None or _final(error):
                    raise HoldfastError(_explained(self.address(path), error, attempt)) from error
                sleep(pause)
        raise AssertionError("the last attempt returns or raises")

    def address(self, path: str) -> str:
        """Return how ``path`` is spelled outside this store."""
        return path if self.local else str(self.filesystem.unstrip_protocol(path))

    def find(self, folder: str) -> dict[str, StoredFile]:
        """Files below a folder by relative path, sorted, without hidden names.

        Raises:
            HoldfastError: the folder does not exist, or the store refuses or does not answer.
        """
        folder = folder.rstrip("/") + "/" * self.address(folder).startswith("http")  # whose folders end in a slash
        missing = None
        try:
            details = self.ask(folder, lambda: self.filesystem.find(folder, detail=True))
        except FileNotFoundError as error:
            details, missing = {}, error
        if not details:
            raise HoldfastError(
                f"no folder {self.address(folder)!r}, or nothing in it; check bucket and path"
            ) from missing
        start = folder.rstrip("/") + "/"
        names = {path.removeprefix(start): path for path in details}
        visible = [name for name in sorted(names) if not any(part.startswith(".") for part in name.split("/"))]
        return {name: StoredFile(self, names[name], _version(details[names[name]])) for name in visible}

    def expand(self, pattern: str) -> dict[str, StoredFile]:
        """Return the files that ``pattern`` (with {000..099}, {a,b}, *) stands for.

        They are named by their paths below its first part that has none of these, so that a file keeps its name in a
        larger pattern.

        Raises:
            HoldfastError: one of them does not exist, or nothing fits.
        """
        plain = re.split(r"[{*[]", pattern, maxsplit=1)[0].rpartition("/")[0]
        files: dict[str, StoredFile] = {}
        for path in braces(pattern):
            try:
                globbed = bool(re.search(r"[*[]", path))
                paths = self.ask(path, partial(self.filesystem.glob, path)) if globbed else [path]
                for each in paths:
                    details = self.ask(each, partial(self.filesystem.info, each))
                    files[each.removeprefix(plain + "/")] = StoredFile(self, each, _version(details))
            except FileNotFoundError as error:
                raise HoldfastError(f"no file {self.address(path)!r}; check the path") from error
        if not files:
            raise HoldfastError(f"no file fits {self.address(pattern)!r}; check the path")
        return dict(sorted(files.items()))


@dataclass(frozen=True)
class StoredFile:
    """A file of a store."""

    store: FileStore
    path: str
    listed: str | None
    """Version of the content, as listed by the store; None if unknown."""

    @property
    def version(self) -> str | None:
        """Return text that changes with the content, or None where nothing tells."""
        if self.store.local:
            return local_version(Path(self.path))
        version = self.listed or _version(self.store.ask(self.path, lambda: self.store.filesystem.info(self.path)))
        return version and f"{self.address}\0{version}"

    @property
    def address(self) -> str:
        """Return how it is spelled in a reference."""
        return self.store.address(self.path)

    def read(self, start: int = 0, end: int | None = None) -> bytes:
        """Bytes of the file, or a part of them."""
        if self.store.local:
            with open(self.path, "rb") as file:
                file.seek(start)
                return file.read(-1 if end is None else end - start)
        read: bytes = self.store.ask(
            self.path, lambda: self.store.filesystem.cat_file(self.path, start=start or None, end=end)
        )
        if end is not None and len(read) > end - start:
            raise HoldfastError(
                f"{self.address} was asked for {end - start} bytes and sent {len(read)}: its server sends files as a whole "
                "only; copy it to this machine"
            )
        return read

    def open(self) -> Any:
        """Return it as a file to read and seek in, a few large pieces at a time."""
        return self.store.ask(self.path, lambda: self.store.filesystem.open(self.path, "rb", block_size=1 << 20))


class StoredFiles:
    """From a row to its image, a file of its own in a store."""

    def __init__(self, files: list[StoredFile]) -> None:
        self.files = files
        self.versions: dict[int, str | None] = {}

    def __call__(self, row: int) -> Stored:
        if row not in self.versions:
            self.versions[row] = self.files[row].version
        return Stored(self.files[row].read, self.versions[row])


def braces(pattern: str) -> list[str]:
    """Return the paths that a pattern with braces stands for.

    Example:
        >>> braces("{train,test}/shard-{08..10}.tar")[1:4]
        ['train/shard-09.tar', 'train/shard-10.tar', 'test/shard-08.tar']
    """
    parts = re.split(r"\{([^{}]*)\}", pattern)
    for position in range(1, len(parts), 2):
        if not re.fullmatch(r"\d+\.\.\d+|.*,.*", parts[position]):
            raise HoldfastError(f"{pattern!r}: braces hold {{000..099}} or {{a,b}}, got {{{parts[position]}}}")
    return ["".join(chosen) for chosen in product(*map(_choices, range(len(parts)), parts))]


def _choices(position: int, part: str) -> list[str]:
    if position % 2 == 0:
        return [part]
    if "," in part:
        return part.split(",")
    first, last = part.split("..")
    return [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]


def _version(details: Mapping[str, Any]) -> str | None:
    for key in SUMS:
        if details.get(key):
            return f"{key}={details[key]}"
    times = [details[key] for key in CHANGED if details.get(key)]
    return f"{details.get('size')} {times[0]}" if times else None


def _status(error: Exception) -> int:
    """Return the status of an answer over HTTP, which each store's package keeps under a name of its own; else 0."""
    response = getattr(error, "response", None)
    statuses = getattr(error, "status", None), getattr(error, "code", None), getattr(response, "status_code", None)
    return next((status for status in statuses if isinstance(status, int)), 0)


def _final(error: Exception) -> bool:
    """Return whether another attempt is of no use: a refusal rather than a silence."""
    refused = 400 <= _status(error) < 500 and _status(error) != 429  # which asks for patience
    return refused or isinstance(error, FINAL) or _lacks_credentials(error)


def _lacks_credentials(error: Exception) -> bool:
    credentials_named = "credential" in f"{type(error)} {error}".lower()
    return credentials_named or isinstance(error, PermissionError) or _status(error) in (401, 403)


def _explained(address: str, error: Exception, attempts: int) -> str:
    reason = first_line(error)
    if _lacks_credentials(error):
        return (
            f"{address} may not be read ({reason}); log in as the store's own tools do (aws configure, gcloud auth login, "
            "hf auth login), or set their variables"
        )
    tried = f" after {attempts} attempts" if attempts > 1 else ""
    return f"{address} cannot be read{tried} ({reason}); check it and the connection and run the same command again"


SUFFIXES = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".apng", ".webp", ".avif", ".bmp", ".tif", ".tiff", ".gif"),
    *(".jp2", ".j2k", ".j2c", ".jpc", ".jpf", ".jpx", ".ppm", ".pgm", ".pbm", ".pnm"),
)
"""Endings of the images that are read, where the installed pillow decodes them."""
NOT_READ = (
    *(".heic", ".heif", ".hif", ".jxl", ".jxr", ".svg", ".eps", ".psd", ".xcf", ".ico", ".tga", ".dds", ".exr", ".hdr"),
    *(".pcx", ".qoi", ".pfm", ".dib", ".dcm", ".fits", ".raw", ".dng", ".cr2", ".cr3", ".nef", ".arw", ".orf", ".rw2"),
)
"""Endings of images that are not read: no safe decoder is installed with Holdfast."""


def ending(name: str) -> str:
    """Return the last ending of a name.

    Example:
        >>> ending("photos/left.HEIC")
        '.heic'
    """
    return PurePosixPath(name).suffix.lower()


def report(where: str, endings: Counter[str], read: int, kind: str = "files") -> None:
    """Say of how many images no pixel is read, by their ``endings``.

    Args:
        where: the name of the folder or tar.
        endings: how many names have each ending; only those in ``NOT_READ`` are counted.
        read: how many images are read.
        kind: what the images are: files or members.

    Raises:
        HoldfastError: no image is read.
    """
    counts = {key: count for key, count in endings.most_common() if key in NOT_READ}
    listed = ", ".join(f"{count:,} {key}" for key, count in counts.items())
    if not read:
        there = f" It has {listed}, which are not read." if counts else ""
        raise HoldfastError(f"{where} holds no images; expected {kind} ending in {', '.join(SUFFIXES)}.{there}")
    if counts:
        warn(
            f"{where}: {sum(counts.values()):,} images are not read, because of their format ({listed}). "
            "Convert them to PNG or JPEG to measure them",
            2,
        )
