"""The value of ``holdfast.evaluate``: the results of a run, to use in Python and to write as a report."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from math import isnan
from pathlib import Path
from typing import Any

from holdfast.core.errors import HoldfastError, did_you_mean
from holdfast.core.records import Estimate, Failure, Result
from holdfast.core.settings import listed
from holdfast.measure.store import REQUEST, Store, StoreError
from holdfast.report import notebook, text, write
from holdfast.report.comparison.comparable import with_relative_errors
from holdfast.report.contents import Contents, RunState
from holdfast.report.elsewhere import log
from holdfast.report.notebook import Drawing
from holdfast.report.overview.first_screen import WHOLE, lines
from holdfast.report.sets import Sets

SETS = "sets.json"
"""The file that names the data sets of a run of several, whose folders lie beside it."""


@dataclass(frozen=True, eq=False, repr=False)
class EvaluatedRun:
    """The results of encoders and evaluations that were asked for together.

    ``run["breakaway"]`` is the result of one evaluation, ``run["breakaway", "mine"]`` that of the encoder called mine.
    """

    results: tuple[Result, ...]
    """One result per evaluation and encoder that could be measured."""
    failures: tuple[Failure, ...]
    """Evaluations that failed, each with the reason."""
    folder: Path
    """Folder of the run; without ``out``, it lives as long as this object."""
    page: Path | None = None
    """Page of the report in the folder ``out``."""
    data_sets: Mapping[str, EvaluatedRun] = field(default_factory=dict)
    """The run of each data set by its name, where several were measured; each has a folder in ``folder``."""

    def __getitem__(self, key: str | tuple[str, str]) -> Result:
        evaluation, encoder = (key, None) if isinstance(key, str) else key
        matching = [r for r in self.results if r.evaluation == evaluation and encoder in (None, r.encoder.name)]
        if len(matching) == 1:
            return matching[0]
        names = [result.encoder.name for result in matching]
        if matching:
            raise HoldfastError(
                f"{len(matching)} encoders have a result of {evaluation}, name one as in run[{evaluation!r}, {names[0]!r}]; "
                f"there are: {', '.join(names)}"
            )
        raise HoldfastError(self._missing(evaluation, encoder))

    def __iter__(self) -> Iterator[Result]:
        return iter(self.results)

    def _missing(self, evaluation: str, encoder: str | None) -> str:
        for failure in self.failures:
            if failure.evaluation == evaluation and encoder in (None, failure.encoder):
                return f"{evaluation} of {failure.encoder} has no result: {failure.reason}"
        cells: list[Result | Failure] = [*self.results, *self.failures]
        evaluations = sorted({cell.evaluation for cell in cells})
        if evaluation not in evaluations:
            return f"{evaluation!r} was not evaluated. {did_you_mean(evaluation, evaluations)}"
        encoders = sorted({cell.encoder.name if isinstance(cell, Result) else cell.encoder for cell in cells})
        return f"no encoder is called {encoder!r}. {did_you_mean(str(encoder), encoders)}"

    @property
    def partial(self) -> tuple[Result, ...]:
        """Return the results that are of fewer samples than planned, because the run ended before."""
        return tuple(result for result in self.results if result.planned is not None)

    def table(self) -> Any:
        """Return one row for each estimate: a pandas DataFrame where pandas is installed, else a list of dictionaries.

        The numbers of the first screen come first, and ``row`` names the row of it that they are; it is empty for the
        others. The conditions of a number (ball, attack, divergence) are columns.
        """
        results = with_relative_errors(self.results)
        screens = Contents(results, self.failures).first_screens
        titled = [
            (row.title, e) for screen in screens for row in screen.rows for cell in row.cells for e in cell.estimates
        ]
        places = {id(estimate): place for place, (_, estimate) in enumerate(titled)}
        cells = [(result, estimate) for result in results for estimate in result.estimates]
        cells.sort(key=lambda cell: places.get(id(cell[1]), len(places)))
        rows = [
            {"row": titled[places[id(estimate)]][0] if id(estimate) in places else "", **_row(result, estimate)}
            for result, estimate in cells
        ]
        with suppress(ImportError):
            return import_module("pandas").DataFrame(rows)
        return rows

    def report(self, folder: str | Path | None = None) -> Path:
        """Write the report and return the path of its page.

        Args:
            folder: where to; by default the run's own, where it is already if ``out`` named that; else it goes with this
                object.
        """
        if folder is None and self.page is not None:
            return self.page
        if self.data_sets:
            suite = suite_of(Store(next(iter(self.data_sets.values())).folder))
            return write_sets(self.data_sets, self.folder if folder is None else Path(folder), suite)
        return write_report(Store(self.folder), self.folder if folder is None else Path(folder))

    def log(self, to: str) -> None:
        """Keep the numbers with their intervals, the report and its table with a tracker of experiments.

        Args:
            to: ``mlflow``, ``wandb``, ``tensorboard`` or ``trackio``; a colon and an experiment, a project or a folder may
                follow, as in ``"wandb:encoders"``.

        Raises:
            HoldfastError: there is no such tracker, it is not installed, or it refuses.
        """
        log(self.results, self.report().parent, self.folder.name, to)

    def __repr__(self) -> str:
        """Return the first screen, or the worst numbers of a run without one, and the reason of each failure."""
        screens = Contents(with_relative_errors(self.results), self.failures).first_screens
        shown = [line for screen in screens for line in lines(screen, most=WHOLE)]
        failed = [f"  {each.encoder}  {each.evaluation}  no result    {each.reason}" for each in self.failures]
        return "\n".join([self._counts(), *(shown or self._worst()), *failed])

    def plot(self, what: str | None = None) -> Drawing:
        """Return plots, encoders overlaid, which a notebook shows and ``save(folder)`` writes as SVG files.

        Args:
            what: an evaluation or a quantity, as in ``"attack_radius"``; all by default.

        Raises:
            HoldfastError: nothing is called so, or it has nothing to draw.
        """
        return notebook.plot(self.results, what)

    def _repr_html_(self) -> str:
        return notebook.run_html(self.results, self.failures, self._counts())

    def _counts(self) -> str:
        return f"{len(self.results)} results, {len(self.failures)} failures in {self.folder}"

    def _worst(self) -> list[str]:
        """Return the worst of each result's first headline quantity: quantity, number and conditions in words."""
        lines = list[str]()
        for result in self.results:
            if e := worst(result):
                number = f"{text.value(e, e.value)} {text.interval(e)}".rstrip()
                where = text.conditions(e.conditions, aim=e.aim)
                lines.append("  ".join(("", result.encoder.name, result.evaluation, text.name_of(e), number, where)))
        return lines


def worst(result: Result) -> Estimate | None:
    """Return the worst defined estimate of the first headline quantity that ``result`` has."""
    estimates = [e for name in result.headline for e in result.estimates if e.quantity == name and not isnan(e.value)]
    alike = [e for e in estimates if e.quantity == estimates[0].quantity]
    return max(alike, key=lambda e: -e.value if e.better == "higher" else e.value, default=None)


def _row(result: Result, estimate: Estimate) -> dict[str, object]:
    return {
        "encoder": result.encoder.name,
        "evaluation": result.evaluation,
        "quantity": estimate.quantity,
        **estimate.conditions,
        **{name: getattr(estimate, name) for name in ("value", "low", "high", "n")},
        "planned": result.planned,
        "claim": estimate.claim.value,
        "unit": estimate.unit,
        "better": estimate.better,
    }


def suite_of(store: Store) -> str:
    """Return the suite that was last asked for; empty where the run keeps none that can be read."""
    try:
        return str(json.loads((store.folder / REQUEST).read_bytes()).get("suite", ""))
    except (OSError, ValueError):
        return ""


def write_sets(runs: Mapping[str, EvaluatedRun], folder: Path, suite: str) -> Path:
    """Write the report of several data sets, with their mean and ranks, and return the path of its page.

    Raises:
        HoldfastError: ``folder`` cannot be written.
    """
    results = [result for run in runs.values() for result in run.results]
    failures = [failure for run in runs.values() for failure in run.failures]
    sets = Sets({name: run.results for name, run in runs.items()}, suite)
    return write(results, failures, folder, suite=suite, sets=sets)["report.html"]


def write_report(store: Store, folder: Path, state: RunState | None = None) -> Path:
    """Write the report of everything in ``store`` into ``folder`` and return the path of its page.

    It shows the whole store: an earlier command may have put other encoders there. ``state`` says how far a run is that
    lasts.

    Raises:
        StoreError: ``folder`` cannot be written.
    """
    try:
        return write(store.results(), store.failures(), folder, state, suite_of(store))["report.html"]
    except OSError as error:
        raise StoreError(
            f"cannot write the report in {folder}: {error.strerror or error}; all results are kept, "
            "so free some space and run the same command again"
        ) from error


StoredRun = str | Path | EvaluatedRun
"""A run, or the folder of one."""


def folders_of(runs: StoredRun | Sequence[StoredRun]) -> list[Path]:
    """Return the folders of runs."""
    if not listed(runs):
        raise HoldfastError("no run was named; expected a folder, or what evaluate returns")
    return [folder_of(run) for run in listed(runs)]


def folder_of(run: StoredRun) -> Path:
    """Return the folder of a run."""
    if not isinstance(run, str | Path | EvaluatedRun):
        raise HoldfastError(f"runs are folders, or what evaluate returns, got {run!r}")
    return run.folder if isinstance(run, EvaluatedRun) else Path(run)
