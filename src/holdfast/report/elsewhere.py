"""Stored results for other programs: model cards of Hugging Face and trackers of experiments."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from math import isfinite
from pathlib import Path
from shutil import copyfile
from typing import TYPE_CHECKING, Any

from holdfast.core.errors import HoldfastError, UnknownName, check_known, explained
from holdfast.core.records import Estimate, Result
from holdfast.report import text
from holdfast.report.comparison.comparable import baselines, difference, labelled, with_relative_errors
from holdfast.report.comparison.tables import interval

if TYPE_CHECKING:
    from huggingface_hub import EvalResultEntry


# The format (https://huggingface.co/docs/hub/eval-results) has a dataset, a task, a value, a date and one field of free
# text, in which everything stands without which a number says less.

FOLDER = ".eval_results"
REPOSITORY = re.compile(r"\w[\w.-]*/\w[\w.-]*", re.ASCII)
"""Owner and name of a repository on the hub."""


def of_encoder(results: Sequence[Result], wanted: str | None) -> list[Result]:
    """Return the results of one encoder: the one ``wanted``, or the only one that is no baseline.

    Raises:
        HoldfastError: there is no such encoder, or more than one; it has collapsed; an evaluation occurs twice.
    """
    every, known = labelled(results), baselines(results)
    names = [name for name in dict.fromkeys(name for name, _ in every) if name not in known]
    if wanted is None and len(names) != 1:
        raise HoldfastError(
            f"a model repository is of one encoder, the run of {len(names)}; choose: {', '.join(names)}"
        )
    name = wanted or names[0]
    results_of_encoder = [result for label, result in every if label == name]
    if not results_of_encoder:
        raise UnknownName("encoder of the run", name, {label for label, _ in every})
    if any(result.findings.collapsed for result in results_of_encoder):
        raise HoldfastError(
            f"{name} has collapsed: one embedding for all images is useless, so its numbers are not published"
        )
    first: dict[str, Result] = {}
    for result in results_of_encoder:
        other = first.setdefault(result.evaluation, result)
        if other is not result:
            departure = difference(result, other)
            raise HoldfastError(
                f"{result.evaluation} was measured under two protocols ({departure}); publish a run that holds one"
            )
    return results_of_encoder


def check_repository(name: str, flag: str) -> None:
    """Raise unless ``name`` is that of a repository on the hub.

    Example:
        >>> check_repository("nope", "dataset")
        Traceback (most recent call last):
        holdfast.core.errors.HoldfastError: --dataset takes OWNER/NAME as on the hub, as in lab/photos, got 'nope'
    """
    if not REPOSITORY.fullmatch(name) or ".." in name:
        raise HoldfastError(f"--{flag} takes OWNER/NAME as on the hub, as in lab/photos, got {name!r}")


def files(results: Sequence[Result], dataset: str) -> dict[str, list[EvalResultEntry]]:
    """Return the path of each file in the repository with its entries: the main numbers of an evaluation.

    Numbers that are undefined or infinite are left out, and so is a file without numbers.

    Args:
        results: of one encoder, at most one of each evaluation.
        dataset: the benchmark's name on the hub.

    Raises:
        HoldfastError: ``huggingface_hub`` is missing or older than the format.
    """
    check_repository(dataset, "dataset")
    contents = {f"{FOLDER}/holdfast-{result.evaluation}.yaml": _entries(result, dataset) for result in results}
    return {path: entries for path, entries in contents.items() if entries}


def yaml(entries: Sequence[EvalResultEntry]) -> str:
    """Return the text of a file."""
    from huggingface_hub import eval_result_entries_to_yaml
    from yaml import safe_dump

    return str(safe_dump(eval_result_entries_to_yaml(list(entries)), sort_keys=False, allow_unicode=True))


def task(result: Result, estimate: Estimate) -> str:
    """Return the id of the task that ``estimate`` answers: evaluation, quantity and conditions.

    A benchmark's ``eval.yaml`` has to name it so.
    """
    parts = (result.evaluation, estimate.quantity, *(part for pair in estimate.conditions.items() for part in pair))
    return re.sub(r"[^\w.]+", "-", "-".join(parts))


def notes(result: Result, estimate: Estimate) -> str:
    """Return the meaning and method of ``estimate`` in sentences."""
    e = estimate
    conditions = ", ".join(f"{key}={value}" for key, value in e.conditions.items())
    settings = "; ".join(f"{key}={text.setting(value)}" for key, value in sorted(result.settings.items()))
    versions = ", ".join(f"{key} {result.provenance[key]}" for key in ("holdfast", "torch") if key in result.provenance)
    images, bank = result.images, result.bank
    sentences = (
        f"{text.name_of(e)} ({e.unit}): {e.claim} of {e.of}",
        f"{e.confidence:.0%} interval {interval(e)} by {e.method}, n = {e.n:,}",
        f"Partial: the run ended after {result.looked_at:,} of {result.planned:,} samples"
        if result.planned is not None
        else "",
        f"The {e.better} the better" if e.better != "neither" else "",
        f"Conditions: {conditions}" if conditions else "",
        f"Evaluation {result.evaluation}, version {result.version}, settings {settings}",
        f"Images: {images.name}, {images.count:,}, fingerprint {images.fingerprint}",
        f"{result.bank_title}: {bank.name}, {bank.count:,}, fingerprint {bank.fingerprint}" if bank else "",
        f"Encoder: {result.encoder.source}, fingerprint {result.encoder.fingerprint}",
        f"Versions: {versions}" if versions else "",
        *(f"Warning: {warning.rstrip('.')}" for warning in (*result.encoder.warnings, *result.findings.warnings)),
    )
    return ". ".join(filter(None, sentences)) + "."


def _entries(result: Result, dataset: str) -> list[EvalResultEntry]:
    problem, fix = "evaluation-result files need huggingface_hub 1.4 or later", "run pip install 'huggingface_hub>=1.4'"
    with explained(problem, fix, ImportError):
        from huggingface_hub import EvalResultEntry
    return [
        EvalResultEntry(
            dataset_id=dataset,
            task_id=task(result, estimate),
            value=estimate.value,
            date=result.provenance.get("started"),
            notes=notes(result, estimate),
        )
        for estimate in result.estimates
        if estimate.quantity in result.headline and isfinite(estimate.value)
    ]


# Trackers know a number as ``ENCODER/EVALUATION/QUANTITY.CONDITION.VALUE...``, and the ends of its interval as ``.low`` and
# ``.high``. What is no letter, digit, dot or dash within a part is an underscore, since not every tracker takes more; and
# all names have as many slashes, since trackers that keep files cannot have a number and a folder of one name.


def numbers(results: Sequence[Result]) -> dict[str, float]:
    """Return every finite number of ``results`` and the ends of its interval, by name; the table holds the others.

    Where two would have one name, the second is distinguished by its place.

    Example:
        >>> numbers([])
        {}
    """
    named = dict[str, float]()
    for encoder, result in labelled(with_relative_errors(results)):
        for estimate in result.estimates:
            quantity = ".".join((estimate.quantity, *(f"{key}.{value}" for key, value in estimate.conditions.items())))
            parts = (encoder, result.evaluation, quantity)
            name = taken = "/".join(re.sub(r"[^\w.-]", "_", part) for part in parts)
            place = 2
            while name in named:
                name, place = f"{taken}_{place}", place + 1
            values = {name: estimate.value, f"{name}.low": estimate.low, f"{name}.high": estimate.high}
            named |= {key: value for key, value in values.items() if isfinite(value)}
    return named


PROJECT = "holdfast"
Keep = Callable[[Any, Mapping[str, float], Sequence[Path], str, str], None]
"""Keeps named numbers and files with a tracker, under the name of a run and in the place that was asked for."""
ARTEFACTS = ("report.html", "report.json", "table.csv", "table.md")
"""The files of the report that are kept with the numbers."""


def log(results: Sequence[Result], folder: Path, name: str, to: str) -> None:
    """Keep the numbers of ``results``, with their intervals, and the report in ``folder`` with the tracker ``to``.

    Args:
        results: of a run.
        folder: holds its report.
        name: how the tracker calls the run.
        to: ``mlflow``, ``wandb``, ``tensorboard`` or ``trackio``; a colon and an experiment, a project or a
            folder may follow.

    Raises:
        HoldfastError: there is no such tracker, it is not installed, or it refuses.
    """
    tracker, _, place = to.partition(":")
    loaded, keep = tracker_of(to)
    files = [folder / file for file in ARTEFACTS if (folder / file).is_file()]
    with explained(f"{tracker} did not take the run", f"log in, or let it work offline. The run is in {folder}"):
        keep(loaded, numbers(results), files, name, place)


def tracker_of(to: str) -> tuple[Any, Keep]:
    """Return the module of a tracker and what keeps a run with it.

    Raises:
        HoldfastError: there is no such tracker, or it is not installed.

    Example:
        >>> tracker_of("tensorbord")
        Traceback (most recent call last):
        holdfast.core.errors.UnknownName: ... Did you mean 'tensorboard'? Known: ...
    """
    tracker = to.partition(":")[0]
    check_known("tracker", tracker, TRACKERS)
    module, keep = TRACKERS[tracker]
    with explained(f"{tracker} cannot be imported", f"install it with: pip install {tracker}", ImportError):
        return import_module(module), keep


def _tensorboard(module: Any, named: Mapping[str, float], files: Sequence[Path], name: str, place: str) -> None:
    folder = Path(place or "tensorboard") / name
    with module.SummaryWriter(str(folder)) as writer:
        for key, value in named.items():
            writer.add_scalar(key, value, 0)
        for file in files:
            if file.suffix == ".md":
                writer.add_text(file.name, file.read_text())
    for file in files:
        copyfile(file, folder / file.name)


def _mlflow(module: Any, named: Mapping[str, float], files: Sequence[Path], name: str, place: str) -> None:
    begun = module.active_run() is None
    if begun:
        module.set_experiment(place or PROJECT)
        module.start_run(run_name=name)
    try:
        module.log_metrics(dict(named))
        for file in files:
            module.log_artifact(str(file))
    finally:
        if begun:
            module.end_run()


def _wandb(module: Any, named: Mapping[str, float], files: Sequence[Path], name: str, place: str) -> None:
    begun = module.run is None
    run = module.init(project=place or PROJECT, name=name) if begun else module.run
    try:
        run.log(dict(named))
        artefact = module.Artifact(PROJECT, type="report")
        for file in files:
            artefact.add_file(str(file))
        run.log_artifact(artefact)
    finally:
        if begun:
            run.finish()


def _trackio(module: Any, named: Mapping[str, float], files: Sequence[Path], name: str, place: str) -> None:
    module.init(project=place or PROJECT, name=name)
    try:
        module.log(dict(named))
        for file in files:
            module.log_artifact(str(file), type="report")
    finally:
        module.finish()


TRACKERS: dict[str, tuple[str, Keep]] = {
    "mlflow": ("mlflow", _mlflow),
    "wandb": ("wandb", _wandb),
    "tensorboard": ("torch.utils.tensorboard", _tensorboard),
    "trackio": ("trackio", _trackio),
}
"""The module of each tracker, and how it keeps a run."""
