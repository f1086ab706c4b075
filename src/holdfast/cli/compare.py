"""``holdfast compare``: compare stored results of one or several runs, image by image."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.cli import flags
from holdfast.cli.flags import flag, switch
from holdfast.core.errors import UnknownName
from holdfast.core.options import MEASURED, OUTPUT
from holdfast.core.settings import names_of

if TYPE_CHECKING:
    from rich.table import Table as Grid

    from holdfast.commands.compare import ComparedRuns
    from holdfast.report.comparison.compare import Contest
    from holdfast.report.comparison.tables import Cell, Table

ABREAST = 3
"""Number of differences side by side on a terminal."""
FORMATS = ("table", "markdown", "csv", "latex", "json")


def command(
    runs: flags.StoredRuns,
    html: Path | None = flag(None, "Also write the comparison as an HTML page.", OUTPUT, "FILE"),
    format_: str = flag("table", "Print as table, markdown, csv, latex or json.", OUTPUT, "FORMAT", name="--format"),
    only: flags.Only = None,
    where: flags.Where = None,
    full: bool = switch("--full", "Print all tables and paired differences, not only the first screen."),
    relative_to: str | None = flag(
        None, "Scale corruption errors by this encoder's (default: baseline, or first).", MEASURED, "ENCODER"
    ),
) -> int:
    """Compare encoders from stored runs.

    holdfast compare runs/mine runs/theirs --html compared.html
    """
    if format_ not in FORMATS:
        raise UnknownName("--format", format_, FORMATS)
    from holdfast.commands.compare import compare

    comparison = compare(runs, only=names_of(only or (), "--only"), where=where or (), relative_to=relative_to)
    if html:
        comparison.page(html)
    show(comparison, format_, full)
    return 0


def show(comparison: ComparedRuns, form: str = "table", full: bool = False) -> None:
    """Print a comparison, and what it leaves out."""
    from holdfast.report.comparison.compare import incomparable
    from holdfast.report.overview.alerts import missing_sentences

    _print(form, comparison, full)
    for sentence in incomparable(comparison.refusals):
        print(f"not compared: {sentence}", file=sys.stderr)
    for sentence in missing_sentences(comparison.failures):
        print(sentence, file=sys.stderr)


def _print(form: str, comparison: ComparedRuns, full: bool) -> None:
    from holdfast.report.files import report
    from holdfast.report.overview.alerts import encoders_without_results
    from holdfast.report.overview.first_screen import WHOLE, lines
    from holdfast.report.printed import csv, latex, markdown

    contents = comparison.contents
    if form == "table":
        for screen in contents.first_screens:
            print(screen.title)
            print("\n".join(lines(screen, most=WHOLE)), end="\n\n")
        if contents.first_screens and not full:
            print("All tables, intervals and paired differences: add --full")
            return
        _tables(contents.tables, len(encoders_without_results(contents.results, contents.failures)))
    elif form == "json":
        print(report(contents).model_dump_json(indent=1))
    elif form == "csv":
        print(csv(contents.groups, contents.comparison), end="")
    elif form == "markdown":
        print(markdown(contents.tables, contents.first_screens), end="")
    else:
        print(latex(contents.tables), end="")


def _tables(tables: Sequence[Table], absent: int) -> None:
    from holdfast.cli.terminal import console, show
    from holdfast.report.comparison.tables import pairs, pairs_in_table, table_of_differences
    from holdfast.report.overview.tally import tally

    out = console()
    for table in tables:
        count = len(table.encoders)
        of = f" of {count + absent}" if absent else ""
        out.print(f"{table.title}, {count}{of} encoders" if count + absent > 1 else table.title)
        show(_grid(table, table.encoders, pairs_in_table(table)))
        for sentence in (*(gap.sentence for gap in tally(table).gaps), *table.notes):
            out.print(sentence)
        out.print()
        rest, shown = table_of_differences(table), pairs(table)
        for start in range(0, len(shown) if rest.sections else 0, ABREAST):
            out.print("Paired differences")
            show(_grid(rest, (), shown[start : start + ABREAST]))


def _grid(table: Table, encoders: Sequence[str], pairs: Sequence[tuple[str, str]]) -> Grid:
    """Return rows of ``table`` for a terminal: a number, its interval and its rank per encoder, a difference per pair."""
    from rich import box
    from rich.table import Table as Grid
    from rich.text import Text

    from holdfast.report.comparison.tables import difference_text, head, outcome, pair_of
    from holdfast.report.text import ARROWS

    grid = Grid(box=box.SIMPLE_HEAD)
    heads = [*encoders, *map(head, pairs)]
    for title in ("", *heads):
        grid.add_column(Text(title), overflow="fold")
    for section in table.sections:
        title = f"{section.title} {ARROWS[section.like.better]}".rstrip()
        grid.add_row(Text(f"{title} ({section.like.claim})", style="bold"), *[""] * len(heads))
        for row in section.rows:
            cells = [_cell(cell, name, row.contest) for name, cell in zip(encoders, row.cells, strict=False)]
            grid.add_row(
                *map(
                    Text,
                    [
                        f"  {row.where or 'all images'}",
                        *cells,
                        *(f"{difference_text(row, names)} {outcome(pair_of(row, names))}".strip() for names in pairs),
                    ],
                )
            )
    return grid


def _cell(cell: Cell | None, name: str, contest: Contest | None) -> str:
    if cell is None:
        return "not measured"
    # The difference says who is better of two; ranks are for three and more.
    rank = _rank(name, contest) if contest and len(contest.pairs) > 1 and len(contest.ranks) > 1 else ""
    return " ".join(filter(None, (cell.value, cell.interval, rank)))


def _rank(name: str, contest: Contest) -> str:
    """Return the rank of ``name``, and whether another encoder of that rank cannot be told from it."""
    if name not in contest.ranks:
        return ""
    rank = contest.ranks[name]
    peers = [{pair.a, pair.b} - {name} for pair in contest.pairs if pair.difference.outcome == "tied"]
    tied = any(contest.ranks.get(other) == rank for pair in peers if len(pair) == 1 for other in pair)
    return f"{'tied ' if tied else ''}#{rank}"
