"""Files of a stored run that no result needs any more, and their removal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
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
    kinds = grouped(pair for part in began or parts for pair in _removable(part))
    removables = [
        Removable(
            kind=kind, files=tuple(map(str, files)), bytes=sum(size for path in files for size, _ in _status(path))
        )
        for kind, files in kinds.items()
    ]
    for path in chain(*kinds.values()) if yes else ():
        with explained(f"cannot delete {path}", "check its permissions", OSError):
            path.unlink(missing_ok=True)
        with suppress(OSError):  # not empty
            path.parent.rmdir()
    return tuple(removables)


def _removable(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield what of the run in ``folder`` no result needs, with its kind: what finished cells were made from, failures,
    partial files, and leases of processes that died.

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
    stems = {stem for cell in cells if not store.holds(cell) for stem in cell.made_from}
    found = grouped((kind_of(folder, path), path) for path in files_of(folder))
    for kind in (*COMPUTED, "failures", LEASES, "partial"):
        for path in found.get(kind, ()):
            old = kind not in (LEASES, "partial") or any(time() - changed > ABANDONED for _, changed in _status(path))
            if old and not (kind in COMPUTED and path.parent.name in stems):
                yield kind, path


def _status(path: Path) -> Iterator[tuple[int, float]]:
    """Yield size and time of change of a file, unless it is gone."""
    with suppress(OSError):
        status = path.stat()
        yield status.st_size, status.st_mtime
