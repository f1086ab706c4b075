"""A run on disk, and the provenance of every result.

Finished cells are JSON records; observations are shards. A key holds everything that may change the content of a file: not
batch size, device or number of workers.
"""

from __future__ import annotations

import json
import platform
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from errno import EDQUOT, ENOSPC
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from holdfast.core.errors import HoldfastError, Unreadable
from holdfast.core.files import checksum, sealed, unsealed, write_whole
from holdfast.core.records import Failure, Record, Result
from holdfast.core.version import VERSION
from holdfast.measure.packs import ShardFolder, loaded, mapped, spelled, write_rows

if TYPE_CHECKING:  # the records of a run are read without loading torch
    from torch import Tensor

    from holdfast.core.encoder import Encoder
    from holdfast.core.images import Images
    from holdfast.core.run_settings import Observed, RunSettings
    from holdfast.measure.evaluation import Evaluation
    from holdfast.measure.observation import Observation
    from holdfast.measure.population import Fit


class Key(Record):
    """Everything that may change what a file holds; its digest names the file."""

    kind: str
    version: int
    settings: dict[str, Any]
    encoder: str
    images: str
    seed: int
    precision: str
    name: str = ""
    """The encoder's name: two names for the same weights share shards but are two columns of a table."""

    @property
    def digest(self) -> str:
        return checksum(json.dumps(self.model_dump(), sort_keys=True).encode())

    @property
    def stem(self) -> str:
        """A file name that a person can read and that is unique."""
        return "-".join(filter(None, (self.kind, plain(self.name), self.digest)))


def key_of(
    what: Evaluation | Observation | Fit[Any],
    encoder: Encoder,
    images: Images,
    run: RunSettings,
    bank: Images | None = None,
) -> Key:
    """Return what identifies ``what`` of this encoder on these images; an evaluation also by what it is made from."""
    from holdfast.measure.evaluation import Evaluation, key_facts, parts, settings
    from holdfast.measure.population import Fit

    observations = parts(what.observation()) if isinstance(what, Evaluation) else ()
    sources: dict[str, Any] = (
        {"observed": [key_of(part, encoder, images, run, bank).digest for part in observations]} if observations else {}
    )
    # What is learned follows from the settings, except for its version; results older than fits hold the first of each.
    learned = {} if isinstance(what, Fit) else {fit.name: fit.version for fit in what.fits() if fit.version > 1}
    sources |= {"learned": learned} if learned else {}
    fits = (what,) if isinstance(what, Fit) else what.fits()
    if any(fit.uses_texts for fit in fits):
        sources |= {"texts": encoder.texts.fingerprint if encoder.texts else "", "classes": list(images.classes or ())}
    return Key(
        kind=what.name,
        version=what.version,
        settings={**settings(what), **key_facts(what, images, run, bank), **sources},
        encoder=encoder.fingerprint,
        images=images.fingerprint,
        seed=run.seed,
        precision=run.precision,
        name=encoder.name if isinstance(what, Evaluation) else "",
    )


def plain(name: str) -> str:
    """Return ``name`` as a piece of a file name."""
    return re.sub(r"[^\w.]+", "_", name)[:60]


# A process may die at any moment. So every file is written beside its final name and moved there in one step, nothing
# is rewritten in place, and whatever cannot be read back exactly (truncated, damaged, foreign) counts as never
# computed: files are named by their checksums, and records, which keep their names, begin with theirs. The page
# docs/architecture.md lists the files.
#
# A shard says which samples it holds, so that a later run may cut its work differently and still use it. An array is what
# the shards of one observation hold, one row after the other, where it is too large to be held in memory.


class StoreError(HoldfastError):
    """The run's folder cannot be written: no cell can be kept, so the run ends."""


class Cell(Record):
    """A cell that was asked for, the file its result has, and the folders of what it is made from."""

    evaluation: str
    encoder: str
    result: str
    made_from: tuple[str, ...]


class Cells(Record):
    """The cells that one command asked for of one encoder."""

    cells: tuple[Cell, ...]


Kept = TypeVar("Kept", bound=Record)
RECORDS: dict[str, type[Record]] = {"results": Result, "failures": Failure, "cells": Cells}
"""What the folders of a run hold that are read back as records."""
REQUEST = "run.json"
DAMAGED, REPEAT = "damaged, or of another version of holdfast", "repeat the run's holdfast evaluate"
SHOWN = 3
"""Largest number of damaged files that a message names."""


class Store:
    """The files of one run under ``folder``. Every write makes the folders it needs, or raises ``StoreError``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._shard_folders: dict[str, ShardFolder] = {}
        self._home: tuple[int, int] | None = None
        """The folder that was written to, once one was."""

    def request(self, content: str) -> None:
        """Record what was asked for, as JSON text."""
        self._write(self.folder / REQUEST, sealed(content.encode()))

    def write_file(self, name: str, content: bytes) -> None:
        """Write the file ``name`` below the folder, made of what is kept here and meant for people and programs."""
        self._write(self.folder / name, content)

    def expect(self, cells: Sequence[Cell]) -> None:
        """Record that ``cells`` were asked for: a file for each set of them, so that two commands may do so at once."""
        content = Cells(cells=tuple(cells)).model_dump_json(indent=1).encode()
        self._write(self.folder / "cells" / f"{checksum(content)}.json", sealed(content))

    def cells(self) -> list[Cell]:
        """Return every cell that was asked for; of one evaluation of one encoder the way it was asked for last."""
        paths = sorted(_paths(self.folder / "cells"), key=_changed)
        lists = [record.cells for path in paths if (record := _record(path, Cells))]
        return list({(cell.evaluation, cell.encoder): cell for cells in lists for cell in cells}.values())

    def result(self, key: Key) -> Result | None:
        """Return the cell ``key``, of all or some of its samples, or None if it is missing or damaged."""
        return _record(self.folder / "results" / f"{key.stem}.json", Result)

    def holds(self, cell: Cell) -> bool:
        """Return whether ``cell`` is finished, with all of its samples."""
        result = _record(self.folder / "results" / f"{cell.result}.json", Result)
        return result is not None and result.planned is None

    def finish(self, key: Key, result: Result) -> None:
        """Keep ``result`` as the cell ``key``, instead of what an earlier version found under the same protocol."""
        path = self.folder / "results" / f"{key.stem}.json"
        self._write(path, sealed(result.model_dump_json(indent=1).encode()))
        for other in path.parent.glob(f"{key.kind}-*.json"):
            if other != path and (old := _record(other, Result)) and _cell(old) == _cell(result):
                other.unlink(missing_ok=True)

    def fail(self, failure: Failure) -> None:
        """Keep why a cell has no result."""
        content = failure.model_dump_json(indent=1).encode()
        self._write(self._failure(failure.evaluation, failure.encoder), sealed(content))

    def clear_failure(self, evaluation: str, encoder: str) -> None:
        """Forget that this cell failed, if it did: it is about to be tried again."""
        with suppress(OSError):
            self._failure(evaluation, encoder).unlink()

    def _failure(self, evaluation: str, encoder: str) -> Path:
        return self.folder / "failures" / f"{evaluation}-{plain(encoder)}-{checksum(encoder.encode())}.json"

    def results(self) -> list[Result]:
        """Return every readable result under the folder: all that a report needs."""
        return _records(self.folder / "results", Result)

    def failures(self) -> list[Failure]:
        """Return every recorded failure."""
        return _records(self.folder / "failures", Failure)

    def records(self) -> dict[Path, Record | None]:
        """Return every record by its file; None where it cannot be read back, and so counts as never computed."""
        paths = [(path, kind) for name, kind in RECORDS.items() for path in _paths(self.folder / name)]
        records = {path: _record(path, kind) for path, kind in paths}
        return {path: record for path, record in records.items() if record is not None or path.is_file()}

    def damaged(self) -> list[Path]:
        """Return the files of records that cannot be read back as they were written."""
        return [path for path, record in self.records().items() if record is None]

    def keep(self, key: Key, ids: Sequence[str], observed: Observed) -> None:
        """Keep what was ``observed`` of the samples ``ids`` (tensors whose first axis runs over them)."""
        shards = self._shards(key)
        with self._writing(shards.folder):
            shards.add(spelled(observed, ids))

    def kept_ids(self, key: Key) -> set[str]:
        """Return the ids of all samples of which something was observed; asked again, it reads no more than new files."""
        return self._shards(key).ids()

    def observed(self, key: Key, ids: Sequence[str]) -> tuple[list[str], Observed]:
        """Return which of ``ids`` were observed, in their order, and what was seen of them, row by row."""
        row = {name: position for position, name in enumerate(ids)}
        arrays: Observed = {}
        filled = np.zeros(len(ids), dtype=bool)
        for names, tensors in self._shards(key).shards(row):
            here = [position for position, name in enumerate(names) if name in row and not filled[row[name]]]
            rows = [row[names[position]] for position in here]
            for name, values in tensors.items():
                if name not in arrays:
                    arrays[name] = values.new_empty((len(ids), *values.shape[1:]))
                arrays[name][rows] = values[here]
            filled[rows] = True
        if filled.all():
            return list(ids), arrays
        have = filled.nonzero()[0].tolist()
        return [ids[position] for position in have], {name: values[have] for name, values in arrays.items()}

    def array(self, key: Key, name: str, ids: Sequence[str]) -> Tensor | None:
        """Return tensor ``name`` of what was observed of all ``ids``, memory-mapped; None if some are missing.

        It is written once, shard by shard, so that no more than a shard is ever held.
        """
        folder = self.folder / "arrays" / key.stem
        if (known := mapped(folder)) is not None:
            return known
        # Asked first, so that nothing is written in vain.
        if not self.kept_ids(key).issuperset(ids):
            return None
        row = {sample: position for position, sample in enumerate(ids)}
        with self._writing(folder):
            return write_rows(folder, self._shards(key).shards(row), name, row)

    def learned(self, key: Key) -> Observed | None:
        """Return what was learned under ``key``, or None if that is missing or damaged."""
        for path in sorted(self._fits(key).glob("*.safetensors")):
            with suppress(OSError):
                content = path.read_bytes()
                if checksum(content) == path.stem:
                    return loaded(content)
        return None

    def keep_learned(self, key: Key, learned: Observed) -> None:
        """Keep what was ``learned``."""
        content = spelled(learned)
        self._write(self._fits(key) / f"{checksum(content)}.safetensors", content)

    def _shards(self, key: Key) -> ShardFolder:
        return self._shard_folders.setdefault(key.stem, ShardFolder(self.folder / "shards" / key.stem))

    def _fits(self, key: Key) -> Path:
        return self.folder / "fits" / key.stem

    def _write(self, path: Path, content: bytes) -> None:
        with self._writing(path):
            write_whole(path, content)

    @contextmanager
    def _writing(self, path: Path) -> Iterator[None]:
        """Turn whatever keeps ``path`` from being written into one sentence."""
        if self._home not in (None, _identity(self.folder)):
            # Made again, it would hold a piece of the run, perhaps below the point where a drive used to be.
            raise StoreError(
                f"{self.folder} is gone: removed, or on a drive that is not there any more; bring it back, or choose "
                "another --out, and run the same command again"
            )
        try:
            yield
        except OSError as error:
            full = error.errno in (ENOSPC, EDQUOT)
            advice = "free some space or choose another" if full else "see why it cannot be written, or choose another"
            why = error.strerror or str(error)
            raise StoreError(
                f"cannot write {path}: {why}; {advice} --out (everything written before is kept)"
            ) from error
        self._home = self._home or _identity(self.folder)


def _identity(folder: Path) -> tuple[int, int] | None:
    """Return an identity of ``folder`` that another folder of its name does not share, or None if it is gone."""
    with suppress(OSError):
        status = folder.stat()
        return status.st_dev, status.st_ino
    return None


def _cell(result: Result) -> tuple[object, ...]:
    encoder = result.encoder.name, result.encoder.fingerprint
    return result.evaluation, result.version, encoder, result.images.fingerprint, result.settings


def _changed(path: Path) -> float:
    with suppress(OSError):
        return path.stat().st_mtime
    return 0.0


def _record(path: Path, kind: type[Kept]) -> Kept | None:
    try:
        return kind.model_validate_json(unsealed(path.read_bytes()))
    except (OSError, ValueError):  # gone, damaged, or of a version with other fields
        return None


def _records(folder: Path, kind: type[Kept]) -> list[Kept]:
    return [record for path in _paths(folder) if (record := _record(path, kind)) is not None]


def _paths(folder: Path) -> list[Path]:
    return sorted(folder.glob("[!.]*.json"))


def some(paths: Sequence[Path]) -> str:
    """Return the first of ``paths``, and how many more there are.

    Example:
        >>> some([Path("a"), Path("b")]), some([Path("a")] * 9)
        ('a, b', 'a, a, a and 6 more')
    """
    more = f" and {len(paths) - SHOWN} more" if len(paths) > SHOWN else ""
    return ", ".join(map(str, paths[:SHOWN])) + more


def failure_of(
    evaluation: str, encoder: str, images: str, error: Exception, run: RunSettings, started: datetime
) -> Failure:
    """Return the record of an ``error`` that ended a cell."""
    reason = str(error) or type(error).__name__
    origin = provenance(run, started)
    cell = {"evaluation": evaluation, "encoder": encoder, "images": images}
    return Failure(**cell, error=type(error).__name__, reason=reason, provenance=origin)


def load(folder: Path) -> tuple[list[Result], list[Failure]]:
    """Return the results and failures of the run in ``folder``.

    Raises:
        HoldfastError: there is no run in it, or one with records that cannot be read.
    """
    if not (folder / REQUEST).is_file():
        raise HoldfastError(f"{folder} holds no run (no run.json); name the folder that was given as --out")
    records = Store(folder).records()
    if damaged := [path for path, record in records.items() if record is None]:
        raise Unreadable(some(damaged), DAMAGED, fix=f"delete them and {REPEAT}, which computes nothing else again")
    return kept(records, Result), kept(records, Failure)


def kept(records: Mapping[Path, Record | None], kind: type[Kept]) -> list[Kept]:
    """Return the ``records`` of one ``kind``."""
    return [record for record in records.values() if isinstance(record, kind)]


def provenance(run: RunSettings, started: datetime) -> dict[str, str]:
    """Return versions, commit, device and times of a computation that began at ``started`` (aware) and ends now."""
    seconds = (datetime.now(UTC) - started).total_seconds()
    return {
        **versions(),
        **checkout(),
        "device": run.computes_on,
        "batch_size": str(run.batch_size),
        "started": started.isoformat(timespec="seconds"),
        "seconds": f"{seconds:.1f}",
    }


@cache
def versions() -> dict[str, str]:
    """Return the versions of everything that computes."""
    import torch

    return {
        "holdfast": VERSION,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "platform": platform.platform(),
    }


@cache
def checkout() -> dict[str, str]:
    """Return the commit of the source tree the library runs from and whether it has changes; nothing if installed."""
    home = Path(__file__).parent
    # An installed copy may lie inside someone else's repository, whose commit would say nothing.
    if _git(home, "ls-files", "--error-unmatch", "__init__.py") is None:
        return {}
    commit, changes = _git(home, "rev-parse", "HEAD"), _git(home, "status", "--porcelain", "--", ".")
    return {"commit": commit, "dirty": str(bool(changes)).lower()} if commit else {}


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
