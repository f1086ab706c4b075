"""Writing files completely or not at all, because a process may die at any moment; checksums and hashes."""

from __future__ import annotations

import os
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from secrets import token_hex

EMBEDDING_FILES = (".npy", ".npz", ".parquet", ".lance", ".faiss", ".index")
"""Endings of files of numbers, which are read as embeddings where an encoder is expected."""


def write_whole(path: Path, content: bytes) -> None:
    """Write a file in one step, so that a reader never sees half of it.

    Folders are created as needed.

    Raises:
        OSError: The file cannot be written; its old contents stay.
    """
    # Processes of several machines may have one number.
    partial = path.with_name(f".{path.name}.{os.getpid()}-{token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        if error.filename == str(partial):
            error.filename = str(path)
        raise
    finally:
        with suppress(OSError):
            partial.unlink()


def checksum(content: bytes) -> str:
    """Return the hash that names a file's content, 16 hexadecimal digits."""
    return blake2b(content, digest_size=8).hexdigest()


def checksum_of(path: Path) -> str:
    """Return ``checksum`` of the content of ``path``, read block by block."""
    digest = blake2b(digest_size=8)
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def hashed(*parts: object) -> int:
    """Signed 64-bit hash, the same in every process and on every machine."""
    text = "\x1f".join(map(str, parts))
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big", signed=True)


def sealed(record: bytes) -> bytes:
    """Add a checksum to a JSON object that is not empty, to detect damage later.

    Example:
        >>> print(sealed(b'{"a": 1}').decode())
        {
         "checksum": "165b44bb3d3e0923","a": 1}
    """
    return _seal(record) + record[1:]


def unsealed(content: bytes) -> bytes:
    """Return the JSON object that was ``sealed``.

    Raises:
        ValueError: any byte is not as it was written, or there is no checksum.
    """
    record = b"{" + content[len(_seal(b"")) :]
    if content != sealed(record):
        raise ValueError("its checksum does not fit")
    return record


def _seal(record: bytes) -> bytes:
    return b'{\n "checksum": "%s",' % checksum(record).encode()
