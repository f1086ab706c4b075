"""Stored runs as they are read again: all of their results, or a sentence that says what is missing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from holdfast.commands.evaluated_run import SETS
from holdfast.core.errors import HoldfastError
from holdfast.core.files import unsealed
from holdfast.core.records import UNFINISHED, Failure, Result
from holdfast.encoders.loading.reference import label, named, stamp
from holdfast.measure.store import REQUEST, Store, load, some
from holdfast.run.request import Request, references

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
    request = _request(folder)
    missing = []
    for text, options in references(request):
        short, reference = named(text)
        encoder = stamp(reference, options)
        if not {encoder, short or label(reference.partition(":")[2])} & known:
            missing.append(
                Failure(
                    evaluation="evaluate",
                    encoder=encoder,
                    images=request.images or "the built-in images",
                    error=UNFINISHED,
                    reason=f"the run in {folder} stopped before it; repeat its holdfast evaluate",
                )
            )
    return missing


def _request(folder: Path) -> Request:
    try:
        return Request.model_validate_json(unsealed((folder / REQUEST).read_bytes()))
    except (OSError, ValueError) as error:
        raise HoldfastError(
            f"{folder / REQUEST} cannot be read, so no one knows what the run should hold; repeat its holdfast evaluate"
        ) from error


def data_sets(folder: Path) -> list[Path]:
    """Return the folder of each data set of a run of several, or the ``folder`` of a run of one."""
    if not (folder / SETS).is_file():
        return [folder]
    try:
        return [folder / name for name in json.loads((folder / SETS).read_bytes())]
    except (OSError, ValueError, TypeError) as error:
        raise HoldfastError(f"{folder / SETS}: cannot be read. Repeat the run's holdfast evaluate.") from error


def _loaded(folders: Sequence[Path]) -> dict[Path, Records]:
    for folder in folders:
        if missing := [part.name for part in data_sets(folder) if part != folder and not (part / REQUEST).is_file()]:
            raise HoldfastError(
                f"{folder}: the run stopped before {', '.join(missing)}. Repeat its holdfast evaluate, or name the folder "
                "of one data set."
            )
    runs = {part: load(part) for folder in dict.fromkeys(folders) for part in data_sets(folder)}
    for folder in runs:
        if damaged := Store(folder).damaged():
            raise HoldfastError(
                f"{some(damaged)} cannot be read (damaged, or of another version of holdfast); delete them and repeat the "
                "run's holdfast evaluate, which computes nothing else again"
            )
    return runs


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
