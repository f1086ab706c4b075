"""First screen as a record of ``report.json``, also under its old key ``scorecards`` until version 0.4."""

from __future__ import annotations

from typing import Literal

from holdfast.core.records import Conditions, Estimate, Number, Record
from holdfast.report.overview.first_rows import FirstRow, Shown
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


class Answer(Record):
    """A cell under the old key."""

    encoder: str
    evaluation: str
    quantity: str
    conditions: Conditions
    value: Number
    low: Number
    high: Number
    n: int
    confidence: float
    standing: Literal["best", ""]


class Line(Record):
    """A row under the old key; of two bounds the proved one."""

    question: str
    meaning: str
    evaluation: str
    answers: tuple[Answer, ...]


class Scorecard(Record):
    """A screen under the old key."""

    title: str
    encoders: tuple[str, ...]
    lines: tuple[Line, ...]


def screen(shown: FirstScreen) -> Screen:
    """Return a first screen as a record."""
    return Screen(
        title=shown.title,
        encoders=shown.encoders,
        baselines=shown.baselines,
        leader=shown.leader,
        verdict=shown.verdict,
        red=shown.red,
        amber=shown.amber,
        checks=shown.checks,
        rows=tuple(map(_row, shown.rows)),
    )


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


def scorecard(shown: FirstScreen) -> Scorecard:
    """Return a first screen under the names that ``report.json`` had in version 0.2."""
    lines = tuple(
        Line(
            question=row.title,
            meaning=row.under,
            evaluation=row.kind.evaluation,
            answers=tuple(_answer(row, cell) for cell in row.cells if cell.estimates),
        )
        for row in shown.rows
    )
    return Scorecard(title=shown.title, encoders=(*shown.encoders, *shown.baselines), lines=lines)


def _answer(row: FirstRow, cell: Shown) -> Answer:
    found = cell.estimates[0]
    return Answer(
        encoder=cell.encoder,
        evaluation=row.kind.evaluation,
        quantity=found.quantity,
        conditions=found.conditions,
        value=found.value,
        low=found.low,
        high=found.high,
        n=found.n,
        confidence=found.confidence,
        standing="best" if cell.best else "",
    )
