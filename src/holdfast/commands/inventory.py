"""What the folder of a run holds, and what of it no result needs any more."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from time import time

import numpy as np

from holdfast.commands.stored_runs import unfinished
from holdfast.core.errors import HoldfastError
from holdfast.core.files import checksum_of
from holdfast.core.records import Record
from holdfast.execution.engines.ranks import LEASES
from holdfast.store.packs import ShardFolder
from holdfast.store.store import RECORDS, Store

COMPUTED = ("shards", "arrays", "fits")
"""What results are made from, a folder for each observation or fit."""
KINDS = (*RECORDS, *COMPUTED, LEASES, "partial", "other")
PARTIAL = re.compile(r"\.(.+\.)?\d+(-[0-9a-f]{8})?(\.npy)?")
"""How a file is called while it is written."""
ABANDONED = 3600.0
"""Seconds after which nobody writes a partial file or renews a lease any more, however wrong a clock may be."""


class MissingCell(Record):
    """A cell without a result: what was asked for, and why it is not there if it failed."""

    evaluation: str
    encoder: str
    reason: str | None = None


class Inventory(Record):
    """What the folder of one run holds."""

    folder: str
    encoders: tuple[str, ...]
    images: tuple[str, ...]
    evaluations: tuple[str, ...]
    finished: int
    failed: tuple[MissingCell, ...]
    missing: tuple[MissingCell, ...]
    bytes: dict[str, int]
    """By kind of file."""
    unreadable: tuple[str, ...]
    """Files that cannot be read back: they count as never computed."""
    touched: str
    """When a file was changed last, in UTC."""


class Removable(Record):
    """What of one kind no result needs."""

    kind: str
    files: tuple[str, ...]
    bytes: int


def inventories(folder: Path) -> list[Inventory]:
    """Return what the run in ``folder`` holds, or else the runs in the folders below it.

    Raises:
        HoldfastError: there is none.
    """
    runs = [folder] if _is_run(folder) else sorted(filter(_is_run, folder.glob("*")))
    if not runs:
        raise HoldfastError(
            f"{folder} holds no run (no run.json); name the folder that was given as --out, or one above"
        )
    return [inventory(run) for run in runs]


def inventory(folder: Path) -> Inventory:
    """Return what the run in ``folder`` holds; nothing is changed, and packs are not read but for their index."""
    store, files = Store(folder), _files(folder)
    results, failures, cells = store.results(), store.failures(), store.cells()
    # An earlier version did not say what was asked for: an encoder without a trace is all that can be known.
    wanted = [(cell.evaluation, cell.encoder) for cell in cells]
    if not cells:
        with suppress(HoldfastError):
            wanted = [(cell.evaluation, cell.encoder) for cell in unfinished([folder], results, failures)]
    finished = [result for result in results if result.planned is None]  # a partial one is still to be finished
    there = {(result.evaluation, result.encoder.name) for result in finished} | {
        (failure.evaluation, failure.encoder) for failure in failures
    }
    sizes, last = dict.fromkeys(KINDS, 0), 0.0
    for path in files:
        with suppress(OSError):
            status = path.stat()
            sizes[_kind(folder, path)] += status.st_size
            last = max(last, status.st_mtime)
    return Inventory(
        folder=str(folder),
        encoders=_distinct([*(result.encoder.name for result in results), *(encoder for _, encoder in wanted)]),
        images=_distinct([f"{result.images.name} ({result.images.count})" for result in results]),
        evaluations=_distinct([*(result.evaluation for result in results), *(evaluation for evaluation, _ in wanted)]),
        finished=len(finished),
        failed=tuple(MissingCell(evaluation=f.evaluation, encoder=f.encoder, reason=f.reason) for f in failures),
        missing=tuple(
            MissingCell(evaluation=evaluation, encoder=encoder)
            for evaluation, encoder in wanted
            if (evaluation, encoder) not in there
        ),
        bytes=sizes,
        unreadable=tuple(str(path) for path in _unreadable(folder, files)),
        touched=datetime.fromtimestamp(last, UTC).isoformat(timespec="seconds"),
    )


def removable(folder: Path) -> list[Removable]:
    """Return what of the run in ``folder`` no result needs: what finished cells were made from, failures, partial files,
    and leases of processes that died.

    What an unfinished cell is made from is left, so that the same command continues; of one evaluation of one encoder under
    several settings, that of those asked for last. Results, reports and the record of what was asked for are never among it.

    Raises:
        HoldfastError: there is no run, or an earlier version left it, which did not say what its cells are made from.
    """
    if not _is_run(folder):
        raise HoldfastError(f"{folder} holds no run (no run.json); name the folder that was given as --out")
    store = Store(folder)
    cells = store.cells()
    if not cells:
        raise HoldfastError(
            f"{folder} does not say what its cells are made from (an earlier version wrote it); repeat its "
            "holdfast evaluate, which computes nothing that is there, and clean it then"
        )
    open_cells = [cell for cell in cells if not store.holds(cell)]
    needed = {stem for cell in open_cells for stem in cell.made_from}
    files: dict[str, list[Path]] = {kind: [] for kind in (*COMPUTED, "failures", LEASES, "partial")}
    for path in _files(folder):
        kind = _kind(folder, path)
        old = kind not in (LEASES, "partial") or _age(path) > ABANDONED
        if kind in files and old and not (kind in COMPUTED and path.parent.name in needed):
            files[kind].append(path)
    return [
        Removable(kind=kind, files=tuple(map(str, paths)), bytes=sum(map(_size, paths)))
        for kind, paths in files.items()
        if paths
    ]


def remove(removables: Sequence[Removable]) -> None:
    """Delete all files of ``found``, and the folders that are then empty.

    Raises:
        HoldfastError: one cannot be deleted.
    """
    for path in (Path(file) for each in removables for file in each.files):
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise HoldfastError(f"cannot delete {path}: {error.strerror or error}; check its permissions") from error
        with suppress(OSError):  # not empty
            path.parent.rmdir()


def _is_run(folder: Path) -> bool:
    return (folder / "run.json").is_file()


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _kind(folder: Path, path: Path) -> str:
    """Return what kind of file of the run in ``folder`` this is."""
    if PARTIAL.fullmatch(path.name):
        return "partial"
    first, *below = path.relative_to(folder).parts
    depth = 1 if first in (*RECORDS, LEASES) else 2
    return first if first in KINDS and len(below) == depth else "other"


def _unreadable(folder: Path, files: Sequence[Path]) -> Iterator[Path]:
    yield from Store(folder).damaged()
    shard_folders = set[Path]()
    for path in files:
        kind = _kind(folder, path)
        try:
            if kind == "fits" and checksum_of(path) != path.stem:
                yield path
            elif kind == "arrays":
                np.load(path, mmap_mode="r")  # a cut one is refused; its numbers are checked when they are used
            elif kind == "shards":
                shard_folders.add(path.parent)
        except (OSError, ValueError):
            yield path
    for shards in sorted(shard_folders):
        yield from ShardFolder(shards).damaged()


def _distinct(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


def _size(path: Path) -> int:
    with suppress(OSError):
        return path.stat().st_size
    return 0


def _age(path: Path) -> float:
    with suppress(OSError):
        return time() - path.stat().st_mtime
    return 0.0
