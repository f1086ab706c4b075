"""Experiment trackers that runs are also written to, each loaded when it is requested."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from shutil import copyfile
from typing import Any

from holdfast.core.errors import check_known, explained
from holdfast.core.records import Result
from holdfast.report.elsewhere import numbers

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
