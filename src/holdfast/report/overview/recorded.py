"""First screen as a record of ``report.json``."""

from __future__ import annotations

from holdfast.core.records import Estimate, Record
from holdfast.report.overview.first_rows import FirstRow
from holdfast.report.overview.first_screen import FirstScreen


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
    return Screen(**plain, rows=tuple(map(_row, shown.rows)))


def _row(row: FirstRow) -> ScreenRow:
    return ScreenRow(
        heading=row.kind.group,
        title=row.title,
        under=row.under,
        evaluation=row.kind.evaluation,
        confirmed=row.confirmed,
        cells=tuple(
            ScreenCell(encoder=cell.encoder, shown=cell.said, best=cell.best, estimates=cell.estimates)
            for cell in row.cells
        ),
    )
