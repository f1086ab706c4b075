"""Files of a stored run that no result needs any more, and their removal."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from time import time

from holdfast.commands.evaluated_run import StoredRun, folder_of
from holdfast.commands.runs import COMPUTED, data_sets, files_of, is_run, kind_of
from holdfast.core.errors import HoldfastError, check_no_blanks, explained
from holdfast.core.records import Record, grouped
from holdfast.measure.store import Store
from holdfast.run.engines.ranks import LEASES

ABANDONED = 3600.0
"""Seconds after which no process still writes a partial file or renews a lease, even with wrong clocks."""


class Removable(Record):
    """What of one kind no result needs."""

    kind: str
    files: tuple[str, ...]
    bytes: int


def clean(folder: StoredRun, *, yes: bool = False) -> tuple[Removable, ...]:
    """Return what of a run no result needs: what finished cells were made from, failures, abandoned partial files, leases.

    Args:
        folder: a run, or the folder of one.
        yes: remove it. Otherwise nothing is changed.

    Raises:
        HoldfastError: there is no run, an earlier version left it, or a file cannot be deleted.
    """
    check_no_blanks(locals())
    parts = data_sets(folder_of(folder))
    began = [part for part in parts if is_run(part)]  # a run that was stopped may have begun with some data sets only
    removables = _together([each for part in began or parts for each in removable(part)])
    if yes:
        remove(removables)
    return tuple(removables)


def _together(removables: Sequence[Removable]) -> list[Removable]:
    """Return one of each kind."""
    kinds = grouped((each.kind, each) for each in removables)
    return [
        Removable(
            kind=kind, files=tuple(file for each in same for file in each.files), bytes=sum(e.bytes for e in same)
        )
        for kind, same in kinds.items()
    ]


def removable(folder: Path) -> list[Removable]:
    """Return what of the run in ``folder`` no result needs: what finished cells were made from, failures, partial files,
    and leases of processes that died.

    What an unfinished cell is made from is left, so that the same command continues; of one evaluation of one encoder under
    several settings, that of those asked for last. Results, reports and the record of what was asked for are never among it.

    Raises:
        HoldfastError: there is no run, or an earlier version left it, which did not say what its cells are made from.
    """
    if not is_run(folder):
        raise HoldfastError(f"{folder} holds no run (no run.json); name the folder that was given as --out")
    store = Store(folder)
    cells = store.cells()
    if not cells:
        raise HoldfastError(
            f"{folder} does not say what its cells are made from (an earlier version wrote it); repeat its "
            "holdfast evaluate, which computes nothing that is there, and clean it then"
        )
    open_cells = [cell for cell in cells if not store.holds(cell)]
    stems = {stem for cell in open_cells for stem in cell.made_from}
    files: dict[str, list[Path]] = {kind: [] for kind in (*COMPUTED, "failures", LEASES, "partial")}
    for path in files_of(folder):
        kind = kind_of(folder, path)
        old = kind not in (LEASES, "partial") or _age(path) > ABANDONED
        if kind in files and old and not (kind in COMPUTED and path.parent.name in stems):
            files[kind].append(path)
    return [
        Removable(kind=kind, files=tuple(map(str, paths)), bytes=sum(map(_size, paths)))
        for kind, paths in files.items()
        if paths
    ]


def remove(removables: Sequence[Removable]) -> None:
    """Delete all files of ``removables``, and the folders that are then empty.

    Raises:
        HoldfastError: one cannot be deleted.
    """
    for path in (Path(file) for each in removables for file in each.files):
        with explained(f"cannot delete {path}", "check its permissions", OSError):
            path.unlink(missing_ok=True)
        with suppress(OSError):  # not empty
            path.parent.rmdir()


def _size(path: Path) -> int:
    with suppress(OSError):
        return path.stat().st_size
    return 0


def _age(path: Path) -> float:
    with suppress(OSError):
        return time() - path.stat().st_mtime
    return 0.0
