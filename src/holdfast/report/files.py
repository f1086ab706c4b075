"""Report as files: a page, and the same numbers for programs, papers and spreadsheets."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from holdfast.core.errors import explained
from holdfast.core.files import write_whole
from holdfast.core.records import SCHEMA_VERSION, Estimate, Failure, Record, Result
from holdfast.report.comparison.comparable import with_relative_errors
from holdfast.report.comparison.compare import Comparison
from holdfast.report.contents import Contents, RunState
from holdfast.report.figures.plots import drawings
from holdfast.report.overview.first_screen import FirstScreen
from holdfast.report.overview.tally import Tally
from holdfast.report.page.page import render
from holdfast.report.papers import paper_table
from holdfast.report.printed import csv, latex, markdown
from holdfast.report.sets import Sets


class ScreenCell(Record):
    """One encoder's number in a row."""

    encoder: str
    shown: str
    """As the page prints it."""
    best: bool
    """Whether the encoder is better than every other one, at 95% for the whole table."""
    estimates: tuple[Estimate, ...]
    """The number, or the proved and the attacked bound; none where it was not measured."""


class ScreenRow(Record):
    """One event with the numbers of all encoders."""

    heading: str
    title: str
    under: str
    """ε and norm, direction, n and what it counts."""
    evaluation: str
    confirmed: bool
    """Whether the number predicted robust probes on held-out encoders."""
    cells: tuple[ScreenCell, ...]


class Screen(Record):
    """The first screen of one table."""

    title: str
    encoders: tuple[str, ...]
    baselines: tuple[str, ...]
    leader: str
    """The most robust encoder by the verdict; empty where none is."""
    verdict: tuple[str, ...]
    red: str
    amber: str
    checks: str
    rows: tuple[ScreenRow, ...]


def screen(shown: FirstScreen) -> Screen:
    """Return a first screen as a record."""
    plain = {name: getattr(shown, name) for name in Screen.model_fields if name != "rows"}
    rows = list[ScreenRow]()
    for row in shown.rows:
        cells = (ScreenCell(encoder=c.encoder, shown=c.said, best=c.best, estimates=c.estimates) for c in row.cells)
        kind, names = row.kind, {"title": row.title, "under": row.under}
        names |= {"heading": kind.group, "evaluation": kind.evaluation}
        rows.append(ScreenRow(**names, confirmed=row.confirmed, cells=tuple(cells)))
    return Screen(**plain, rows=tuple(rows))


class Report(Record):
    """Everything a report shows; ``schema.json`` describes it."""

    schema_version: int = SCHEMA_VERSION
    results: tuple[Result, ...]
    failures: tuple[Failure, ...]
    comparison: Comparison
    first_screens: tuple[Screen, ...] = ()
    """First screens, one per table with rows for it."""
    tallies: tuple[Tally, ...] = ()
    """Comparisons won, counted over all conditions of a table; the verdict counts rows of the first screen instead."""


def report(contents: Contents) -> Report:
    """Return everything that a report of these records shows."""
    return Report(
        results=tuple(contents.results),
        failures=tuple(contents.failures),
        comparison=contents.comparison,
        first_screens=tuple(map(screen, contents.first_screens)),
        tallies=contents.tallies,
    )


def write(
    results: Sequence[Result],
    failures: Sequence[Failure],
    folder: Path,
    state: RunState | None = None,
    suite: str = "",
    sets: Sets | None = None,
) -> dict[str, Path]:
    """Write the report of stored records into ``folder`` and return the path of each of its files by kind.

    Nothing else is read: no model, no images, no clock, so that old runs render again at any time. ``state`` says how far
    a run is that lasts, ``suite`` which one was asked for, ``sets`` what belongs to each of several data sets.

    Raises:
        HoldfastError: the folder cannot be written; what was there before stays whole.
    """
    contents = Contents(with_relative_errors(results), failures)
    texts = {
        "report.html": render(contents, [str(folder)], state, "table.csv", suite, sets),
        "report.json": report(contents).model_dump_json(indent=1),
        "schema.json": json.dumps(Report.model_json_schema(mode="serialization"), indent=1),
        "table.csv": csv(contents.groups, contents.comparison),
        "table.md": markdown(contents.tables, contents.first_screens),
        "table.tex": latex(contents.tables),
        # One column per encoder: of several data sets each run has the paper's table, and sets.md their mean.
        **({f"{suite}.md": table} if not sets and (table := paper_table(results, suite)) else {}),
        **({"sets.md": sets.markdown(), "sets.csv": sets.csv()} if sets else {}),
        **{
            f"charts/{name}.svg": svg
            for name, svg in drawings(contents.groups, contents.plates, contents.comparison.encoders).items()
        },
    }
    problem = f"the report cannot be written to {folder}"
    with explained(problem, "choose a folder with room", OSError), ThreadPoolExecutor() as threads:
        # A file waits for the disk, and there are hundreds.
        list(threads.map(lambda name: write_whole(folder / name, texts[name].encode()), texts))
    return {name: folder / name for name in texts}
