"""Contents of stored runs, file by file and cell by cell, as ``holdfast runs`` shows them.

Also here: reading the results of stored runs, or one sentence on what is missing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel

from holdfast.commands.evaluated_run import SETS, StoredRun, folder_of
from holdfast.core.errors import HoldfastError, check_no_blanks, readable
from holdfast.core.files import checksum_of, unsealed
from holdfast.core.records import UNFINISHED, Failure, Record, Result
from holdfast.encoders.by_name import Options, label, named, references, stamp
from holdfast.measure.packs import ShardFolder
from holdfast.measure.store import DAMAGED, RECORDS, REPEAT, REQUEST, Store, kept, load
from holdfast.report.overview.alerts import by_budget
from holdfast.run.engines.ranks import LEASES

Records = tuple[list[Result], list[Failure]]


def read(folders: Sequence[Path]) -> Records:
    """Return the results and failures of the runs in ``folders``.

    Encoders that share a name but not their weights are called by their run as well, as in ``model.onnx (runs/may)``.

    Raises:
        HoldfastError: a folder holds no run, or results that cannot be read.
    """
    return _together(_loaded(folders))


def read_requested(folders: Sequence[Path]) -> Records:
    """Return what ``read`` does, and a failure for each encoder that one of the runs stopped before.

    Raises:
        HoldfastError: a folder holds no run, or one that cannot be read.
    """
    runs = _loaded(folders)
    results, failures = _together(runs)
    return results, [*failures, *(failure for folder, run in runs.items() for failure in unfinished(folder, *run))]


def unfinished(folder: Path, results: Sequence[Result], failures: Sequence[Failure]) -> list[Failure]:
    """Return a failure for each encoder that the run in ``folder`` was asked to measure and that left no trace there.

    What other runs know of it does not count: they may have looked at other images, or asked for less.
    """
    infos = [result.encoder for result in results]
    # Encoders that were made in Python share one source, so that their request calls them python:NAME.
    known = {info.source for info in infos} | {f"{info.source}:{info.name}" for info in infos}
    known |= {failure.encoder for failure in failures}
    with readable(str(folder / REQUEST), REPEAT, OSError, ValueError, because=DAMAGED):
        request = _Asked.model_validate_json(unsealed((folder / REQUEST).read_bytes()))
    missing = list[Failure]()
    reason = f"the run in {folder} stopped before it; repeat its command"
    stands: dict[str, Any] = {"images": request.images or "the built-in images", "error": UNFINISHED, "reason": reason}
    loading = Options(None, request.size, request.trust_remote_code)
    for text, options in references(request.encoders, request.arch, loading):
        short, reference = named(text)
        if reference.startswith("?") and any(source.endswith(reference) for source in known):
            continue  # a form of the reference of parity, whose source precedes it
        encoder = stamp(reference, options)
        if not {encoder, short or label(reference.partition(":")[2])} & known:
            missing.append(Failure(evaluation="evaluate", encoder=encoder, **stands))
    return missing


class _Asked(BaseModel):
    """What the request of a run says of its encoders and images."""

    encoders: tuple[str, ...] = ()
    images: str | None = None
    arch: tuple[str, ...] = ()
    size: int | None = None
    trust_remote_code: bool = False


def data_sets(folder: Path) -> list[Path]:
    """Return the folder of each data set of a run of several, or the ``folder`` of a run of one."""
    if not (folder / SETS).is_file():
        return [folder]
    with readable(str(folder / SETS), REPEAT, OSError, ValueError, TypeError, because=DAMAGED):
        return [folder / name for name in json.loads((folder / SETS).read_bytes())]


def _loaded(folders: Sequence[Path]) -> dict[Path, Records]:
    for folder in folders:
        if missing := [part.name for part in data_sets(folder) if part != folder and not (part / REQUEST).is_file()]:
            raise HoldfastError(
                f"{folder}: the run stopped before {', '.join(missing)}. Repeat its holdfast evaluate, or name the folder "
                "of one data set."
            )
    return {part: load(part) for folder in dict.fromkeys(folders) for part in data_sets(folder)}


def _together(runs: Mapping[Path, Records]) -> Records:
    """Return the records of all ``runs``, in which one name is one encoder."""
    names = _names({str(folder): results for folder, (results, _) in runs.items()})
    shared = {name for name, _ in names}
    results = [
        result.model_copy(update={"encoder": result.encoder.model_copy(update={"name": name})})
        if (name := names.get((result.encoder.name, result.encoder.fingerprint)))
        else result
        for results_of_run, _ in runs.values()
        for result in results_of_run
    ]
    failures = [
        failure.model_copy(update={"encoder": f"{failure.encoder} ({folder})"})
        if failure.encoder in shared
        else failure
        for folder, (_, failures_of_run) in runs.items()
        for failure in failures_of_run
    ]
    return results, failures


def _names(runs: dict[str, list[Result]]) -> dict[tuple[str, str], str]:
    """Return what to call each encoder (by name and fingerprint) whose name other runs use for other weights."""
    first: dict[str, dict[str, str]] = {}
    for folder, results in runs.items():
        for result in results:
            first.setdefault(result.encoder.name, {}).setdefault(result.encoder.fingerprint, folder)
    return {
        (name, fingerprint): f"{name} ({folder})"
        for name, folders in first.items()
        if len(folders) > 1 and len(set(folders.values())) == len(folders)
        for fingerprint, folder in folders.items()
    }


COMPUTED = ("shards", "arrays", "fits")
"""What results are made from, a folder for each observation or fit."""
KINDS = (*RECORDS, *COMPUTED, LEASES, "partial", "other")
PARTIAL = re.compile(r"\.(.+\.)?\d+(-[0-9a-f]{8})?(\.npy)?")
"""How a file is called while it is written."""


class UnfinishedCell(Record):
    """A cell that is not finished, and why, if that is known."""

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
    partial: tuple[UnfinishedCell, ...]
    """Those with a result of fewer samples than planned: the run ended before."""
    not_measured: tuple[UnfinishedCell, ...]
    """Those that a run ended before, or has not come to yet."""
    failed: tuple[UnfinishedCell, ...]
    """Those that an error ended."""
    bytes: dict[str, int]
    """By kind of file."""
    unreadable: tuple[str, ...]
    """Files that cannot be read back: they count as never computed."""
    touched: str
    """When a file was changed last, in UTC."""


def inventory(folder: Path) -> Inventory:
    """Return what the run in ``folder`` holds; nothing is changed, and packs are not read except for their index."""
    store, files = Store(folder), files_of(folder)
    records, cells = store.records(), store.cells()
    results, failures = kept(records, Result), kept(records, Failure)
    # An earlier version did not say what was asked for: an encoder without a trace is all that can be known.
    wanted = [(cell.evaluation, cell.encoder) for cell in cells]
    if not cells:
        with suppress(HoldfastError):
            wanted = [(cell.evaluation, cell.encoder) for cell in unfinished(folder, results, failures)]
    waiting, broken = by_budget(failures)
    finished = [result for result in results if result.planned is None]
    failed, spent = ({(each.evaluation, each.encoder): each.reason for each in those} for those in (broken, waiting))
    ended = [result for result in results if result.planned is not None]
    partial = {(r.evaluation, r.encoder.name): f"{r.looked_at:,} of {r.planned:,} samples" for r in ended}
    there = {*((each.evaluation, each.encoder.name) for each in finished), *partial, *failed}
    not_measured: dict[tuple[str, str], str | None] = {cell: None for cell in wanted if cell not in there}
    not_measured |= {cell: reason for cell, reason in spent.items() if cell not in partial}
    sizes, last = dict.fromkeys(KINDS, 0), 0.0
    for path in files:
        with suppress(OSError):
            status = path.stat()
            sizes[kind_of(folder, path)] += status.st_size
            last = max(last, status.st_mtime)
    return Inventory(
        folder=str(folder),
        encoders=_distinct([*(result.encoder.name for result in results), *(encoder for _, encoder in wanted)]),
        images=_distinct([f"{result.images.name} ({result.images.count})" for result in results]),
        evaluations=_distinct([*(result.evaluation for result in results), *(evaluation for evaluation, _ in wanted)]),
        finished=len(finished),
        partial=_unfinished({cell: samples for cell, samples in partial.items() if cell not in failed}),
        not_measured=_unfinished(not_measured),
        failed=_unfinished(failed),
        bytes=sizes,
        unreadable=tuple(
            map(str, [*(p for p, record in records.items() if record is None), *_unreadable(folder, files)])
        ),
        touched=datetime.fromtimestamp(last, UTC).isoformat(timespec="seconds"),
    )


def _unfinished(reasons: Mapping[tuple[str, str], str | None]) -> tuple[UnfinishedCell, ...]:
    return tuple(
        UnfinishedCell(evaluation=evaluation, encoder=encoder, reason=reason)
        for (evaluation, encoder), reason in reasons.items()
    )


def is_run(folder: Path) -> bool:
    """Return whether ``folder`` is that of a run."""
    return (folder / "run.json").is_file()


def files_of(folder: Path) -> list[Path]:
    """Return every file below ``folder``."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def kind_of(folder: Path, path: Path) -> str:
    """Return what kind of file of the run in ``folder`` this is."""
    if PARTIAL.fullmatch(path.name):
        return "partial"
    first, *below = path.relative_to(folder).parts
    depth = 1 if first in (*RECORDS, LEASES) else 2
    return first if first in KINDS and len(below) == depth else "other"


def _unreadable(folder: Path, files: Sequence[Path]) -> Iterator[Path]:
    shard_folders = set[Path]()
    for path in files:
        kind = kind_of(folder, path)
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


def runs(folder: StoredRun) -> tuple[Inventory, ...]:
    """Return what a run holds: encoders, images, evaluations, what is not finished, how large it is, what cannot be read.

    Args:
        folder: a run, the folder of one, or a folder with several of them in it.

    Raises:
        HoldfastError: there is none.
    """
    check_no_blanks(locals())
    place = folder_of(folder)
    within = [place] if is_run(place) else [place, *sorted(place.glob("*"))]
    folders = [part for part in dict.fromkeys(part for each in within for part in data_sets(each)) if is_run(part)]
    if not folders:
        raise HoldfastError(
            f"{place} holds no run (no run.json); name the folder that was given as --out, or one above"
        )
    return tuple(map(inventory, folders))
