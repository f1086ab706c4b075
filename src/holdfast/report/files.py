"""The report as files: one page to read, and the same numbers for programs, papers and spreadsheets."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from holdfast.core.errors import HoldfastError
from holdfast.core.files import write_whole
from holdfast.core.records import SCHEMA_VERSION, Failure, Record, Result
from holdfast.report.charts import files
from holdfast.report.compare import Comparison, compare
from holdfast.report.page import render
from holdfast.report.plots import plates
from holdfast.report.printed import csv, latex, markdown
from holdfast.report.protocol import groups
from holdfast.report.relative import with_relative_errors
from holdfast.report.scorecard import Scorecard, scorecards
from holdfast.report.tables import summary
from holdfast.report.tally import Tally, tally


class Report(Record):
    """Everything a report shows; ``schema.json`` describes it."""

    schema_version: int = SCHEMA_VERSION
    results: tuple[Result, ...]
    failures: tuple[Failure, ...]
    comparison: Comparison
    scorecards: tuple[Scorecard, ...] = ()
    """Plain questions with each encoder's number and standing: one card per table."""
    tallies: tuple[Tally, ...] = ()
    """Who won how often: one count per table."""


def report(results: Sequence[Result], failures: Sequence[Failure], comparison: Comparison) -> Report:
    """Return everything that a report of these records shows."""
    grouped = groups(results)
    return Report(
        results=tuple(results),
        failures=tuple(failures),
        comparison=comparison,
        scorecards=scorecards(grouped, comparison),
        tallies=tuple(tally(table) for table in summary(grouped, comparison)),
    )


def write(results: Sequence[Result], failures: Sequence[Failure], folder: Path) -> dict[str, Path]:
    """Write the report of stored records into ``folder`` and return the path of each of its files by kind.

    Nothing else is read: no model, no images, no clock, so that old runs render again at any time.

    Raises:
        HoldfastError: the folder cannot be written; what was there before stays whole.
    """
    results = with_relative_errors(results)
    comparison = compare(results)
    grouped = groups(results)
    tables = summary(grouped, comparison)
    drawn = {group.key: plates(group, comparison.encoders) for group in grouped}
    texts = {
        "report.html": render(results, failures, comparison, [str(folder)], drawn),
        "report.json": report(results, failures, comparison).model_dump_json(indent=1),
        "schema.json": json.dumps(Report.model_json_schema(mode="serialization"), indent=1),
        "table.csv": csv(grouped, comparison),
        "table.md": markdown(tables, scorecards(grouped, comparison)),
        "table.tex": latex(tables),
        **{f"charts/{name}.svg": svg for name, svg in files(grouped, drawn, comparison.encoders).items()},
    }
    try:
        for name, content in texts.items():
            write_whole(folder / name, content.encode())
    except OSError as error:
        raise HoldfastError(f"the report cannot be written to {folder} ({error}); choose a folder with room") from error
    return {name: folder / name for name in texts}
