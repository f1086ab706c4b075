"""Stored shards of one observation: single files, packs of many, and arrays mapped from disk."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, NamedTuple, TypeVar, final

import numpy as np
from safetensors import deserialize

from holdfast.core.files import checksum, checksum_of, sealed, unsealed, write_whole

if TYPE_CHECKING:  # stored runs are listed without loading torch
    from torch import Tensor

    from holdfast.core.run_settings import Observed

# The shards of one observation on disk: each in a file of its own at first, then many in one file, a pack.
#
# Shards of small tensors would be a file each for every few hundred images. So once there are ``LOOSE`` of them, they
# are copied into a pack and deleted; small packs become larger ones in the same way, up to tens of megabytes. Files
# are never changed, and named by what they hold, so any number of processes may write, pack and read at once without
# a lock:
#
# - a file is deleted only after another that holds the same has been moved into its place; a reader that misses it meanwhile
#   looks for new files again;
# - two that pack the same shards write the same file; what is in two files counts once.
#
# In a pack, each shard follows its length and checksum, so that damage costs no more than the shards it lies in.
# Beside a pack lies an index of its shards and their ids, which speaks for the pack while its size and time of change
# stay: a reader that does not find one, or none that fits, reads the pack and writes it again.

IDS = ".ids"
"""The tensor of each shard that spells its samples' ids (JSON as bytes)."""
SHARD, PACK, INDEX = ".safetensors", ".pack", ".index"
LOOSE = 64
"""Number of shards in files of their own that are packed."""
SMALL = 16
"""Number of small packs that are packed into a larger one."""
FULL = 32 << 20
"""Bytes from which a pack is not added to; half of that is a small one."""
MARK = b"holdfast"
HEAD = struct.Struct("<8sQ8s")
"""What stands before each shard of a pack: the mark, its length in bytes and its checksum."""
Taken = TypeVar("Taken")
Stamp = tuple[int, int]
"""A file's size in bytes and its time of change in nanoseconds."""


class Member(NamedTuple):
    """One sound shard: where it lies, its checksum, and the ids of its samples as JSON."""

    path: Path
    start: int
    length: int
    checksum: str
    ids: str


@final
class ShardFolder:
    """The shards of one observation, all under ``folder``; what cannot be read back exactly is not there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._known: dict[Path, tuple[Stamp, list[Member]]] = {}
        self._added = 0
        self._counted, self._ids = set[str](), set[str]()
        """Checksums of the shards whose ids were read, and these ids."""

    def add(self, content: bytes) -> None:
        """Keep a shard, spelled as a safetensors file.

        Raises:
            OSError: it cannot be written.
        """
        write_whole(self.folder / f"{checksum(content)}{SHARD}", content)
        self._added += 1
        if self._added % LOOSE == 0:
            with suppress(OSError):  # it is kept; packing only saves files
                self.pack()

    def ids(self) -> set[str]:
        """Return the ids of all samples that are kept; nothing but new files is read for it."""
        members = {member.checksum: member for member in self._each(lambda member: member)}
        if not self._counted <= members.keys():  # something was removed or damaged
            self._counted, self._ids = set(), set()
        for name in members.keys() - self._counted:
            self._ids.update(json.loads(members[name].ids))
        self._counted = set(members)
        return self._ids.copy()

    def shards(self, wanted: Container[str]) -> Iterator[tuple[list[str], Observed]]:
        """Yield the ids and tensors of every shard, once, that holds any sample that is ``wanted``."""

        def read(member: Member) -> tuple[list[str], Observed] | None:
            ids = json.loads(member.ids)
            if not any(name in wanted for name in ids):
                return ids, {}
            content = _content(member)
            if content is None:
                # Damaged since the index was made, though nothing shows it: the next reader reads all.
                self._known.pop(member.path, None)
                with suppress(OSError):
                    member.path.with_suffix(INDEX).unlink(missing_ok=True)
                return None
            return ids, loaded(content)

        for ids, tensors in self._each(read):
            if tensors:
                del tensors[IDS]
                yield ids, tensors

    def _each(self, take: Callable[[Member], Taken | None]) -> Iterator[Taken]:
        """Yield the result of ``take`` for each sound shard; copies count once."""
        ids, looked_at = set[str](), set[Path]()
        # Again until nothing is new: files may be packed by another process while these are read.
        while fresh := [path for path in self._files() if path not in looked_at]:
            for path in fresh:
                looked_at.add(path)
                for member in self._members(path):
                    if member.checksum not in ids and (shard := take(member)) is not None:
                        ids.add(member.checksum)
                        yield shard

    def damaged(self) -> list[Path]:
        """Return the files that hold anything that cannot be read back."""
        damaged = list[Path]()
        for path in self._files():
            members = self._members(path)
            held = sum(member.length for member in members) + HEAD.size * len(members) * (path.suffix == PACK)
            with suppress(OSError):  # packed meanwhile
                if not members or _stamp(path)[0] != held:
                    damaged.append(path)
        return damaged

    def pack(self) -> None:
        """Put shards that lie alone into packs, and small packs into larger ones, where there are many.

        Raises:
            OSError: a pack cannot be written; nothing is lost.
        """
        for suffix, many in ((SHARD, LOOSE), (PACK, SMALL)):
            small = [path for path in self._files() if path.suffix == suffix and _stamp(path)[0] < FULL // 2]
            if len(small) >= many:
                self._merge(small)

    def _merge(self, paths: Sequence[Path]) -> None:
        packed, done, size = dict[str, bytes](), list[Path](), 0
        for path in paths:
            members = self._members(path)
            contents = {member.checksum: _content(member) for member in members}
            sound = {name: content for name, content in contents.items() if content is not None}
            packed |= sound
            if sound and len(sound) == len(members):  # else another process took it, or it is damaged
                done.append(path)
                size += sum(map(len, sound.values()))
            if size >= FULL:
                self._write(packed, done)
                packed, done, size = {}, [], 0
        if done:
            self._write(packed, done)

    def _write(self, packed: dict[str, bytes], instead_of: Sequence[Path]) -> None:
        """Write one pack, then delete the files that it stands for."""
        names = sorted(packed)
        path = self.folder / f"{checksum(''.join(names).encode())}{PACK}"
        content = b"".join(
            part for name in names for part in (HEAD.pack(MARK, len(packed[name]), bytes.fromhex(name)), packed[name])
        )
        write_whole(path, content)
        self._members(path)  # writes its index
        for other in instead_of:
            if other != path:  # small packs may all lie within one of them
                for gone in (other, other.with_suffix(INDEX)):
                    gone.unlink(missing_ok=True)
                self._known.pop(other, None)

    def _files(self) -> list[Path]:
        """Return all files of shards, in an order that only their contents decide."""
        with suppress(FileNotFoundError):
            return sorted(
                path for path in self.folder.iterdir() if path.suffix in (SHARD, PACK) and path.name[0] != "."
            )
        return []

    def _members(self, path: Path) -> list[Member]:
        """Return the sound shards of the file ``path``, none if it cannot be read."""
        with suppress(OSError):
            stamp = _stamp(path)
            if path not in self._known or self._known[path][0] != stamp:
                self._known[path] = stamp, _indexed(path, stamp) or _scanned(path, stamp)
            return self._known[path][1]
        return []


def _content(member: Member) -> bytes | None:
    """Return the content of a shard, or None if it cannot be read back as it was written."""
    with suppress(OSError), member.path.open("rb") as file:
        file.seek(member.start)
        content = file.read(member.length)
        if checksum(content) == member.checksum:
            return content
    return None


def _stamp(path: Path) -> Stamp:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def _scanned(path: Path, stamp: Stamp) -> list[Member]:
    """Return the sound shards that ``path`` holds, all of it read; those of a pack are written to its index."""
    content = path.read_bytes()
    if path.suffix == SHARD:
        sound = checksum(content) == path.stem
        return [Member(path, 0, len(content), path.stem, _ids(content))] if sound else []
    members, start = list[Member](), 0
    while (start := content.find(MARK, start)) >= 0 and (body := start + HEAD.size) <= len(content):
        _, length, digest = HEAD.unpack_from(content, start)
        shard = content[body : body + length]
        if checksum(shard) == digest.hex():
            members.append(Member(path, body, length, digest.hex(), _ids(shard)))
            start = body + length
        else:  # damaged, its length perhaps, too: what follows begins at some other mark
            start += len(MARK)
    index = {"stamp": stamp, "members": [member[1:] for member in members]}
    with suppress(OSError):  # without it, the pack is read again next time
        write_whole(path.with_suffix(INDEX), sealed(json.dumps(index).encode()))
    return members


def _ids(shard: bytes) -> str:
    return bytes(dict(deserialize(shard))[IDS]["data"]).decode()


def _indexed(path: Path, stamp: Stamp) -> list[Member] | None:
    """Return what the index of the pack ``path`` says that it holds; None if there is none, or none of this very file."""
    if path.suffix == SHARD:
        return None
    with suppress(OSError, ValueError):
        known_stamp = json.loads(unsealed(path.with_suffix(INDEX).read_bytes()))
        if tuple(known_stamp["stamp"]) == stamp:
            return [Member(path, *member) for member in known_stamp["members"]]
    return None


def spelled(tensors: Observed, ids: Sequence[str] | None = None) -> bytes:
    """Return ``tensors`` as a safetensors file, with the ``ids`` of their rows if there are any."""
    import safetensors.torch
    import torch

    # Cloned because tensors that share memory are refused.
    copies = {name: values.detach().cpu().contiguous().clone() for name, values in tensors.items()}
    if ids is not None:
        copies[IDS] = torch.frombuffer(bytearray(json.dumps(list(ids)).encode()), dtype=torch.uint8)
    return safetensors.torch.save(copies)


def loaded(content: bytes) -> Observed:
    """Return the tensors of a safetensors file."""
    import safetensors.torch

    return safetensors.torch.load(content)


def mapped(folder: Path) -> Tensor | None:
    """Return the array in ``folder`` without reading it into memory; None if there is none, or a damaged one."""
    for path in sorted(folder.glob("[!.]*.npy")):
        with suppress(OSError, ValueError):
            if checksum_of(path) == path.stem:
                import torch

                # Copied when written to, so that torch need not warn: no one writes.
                return torch.from_numpy(np.load(path, mmap_mode="c"))
    return None


def write_rows(
    folder: Path, shards: Iterable[tuple[Sequence[str], Observed]], name: str, row: Mapping[str, int]
) -> Tensor | None:
    """Return tensor ``name`` of ``shards`` as one array in ``folder``, each id in its ``row``; None if some are missing.

    Written as a file rather than through a map: a full disk is then an error, where a map would end the process.

    Raises:
        OSError: it cannot be written.
    """
    filled, start = np.zeros(len(row), dtype=bool), 0
    partial = folder / f".{os.getpid()}-{token_hex(4)}.npy"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with partial.open("xb") as file:
            for ids_of_shard, tensors in shards:
                here = [position for position, sample in enumerate(ids_of_shard) if sample in row]
                rows = np.array([row[ids_of_shard[position]] for position in here])
                values = tensors[name].numpy()
                if not start:
                    header = {"descr": values.dtype.str, "fortran_order": False, "shape": (len(row), *values.shape[1:])}
                    np.lib.format.write_array_header_1_0(file, header)
                    start = file.tell()
                # Neighbouring rows at once: those of a shard mostly are.
                for run in np.split(np.arange(len(rows)), np.flatnonzero(np.diff(rows) != 1) + 1):
                    file.seek(start + int(rows[run[0]]) * values[0].nbytes)
                    file.write(np.ascontiguousarray(values[[here[position] for position in run]]).data)
                filled[rows] = True
            file.flush()
            os.fsync(file.fileno())
        if not filled.all():
            return None
        partial.replace(folder / f"{checksum_of(partial)}.npy")
    finally:
        with suppress(OSError):
            partial.unlink()
    return mapped(folder)
