"""Paired differences as the report prints them: ``a − b`` on the same images, with its interval and who is better."""

from __future__ import annotations

from dataclasses import replace

from holdfast.report import text
from holdfast.report.comparison import Pair
from holdfast.report.comparison.tables import Row, Section, Table


def pairs(table: Table) -> tuple[tuple[str, str], ...]:
    """Return every two encoders of ``table`` that are compared somewhere in it."""
    contests = [row.contest for section in table.sections for row in section.rows if row.contest]
    return tuple(dict.fromkeys((pair.a, pair.b) for contest in contests for pair in contest.pairs))


def pairs_in_table(table: Table) -> tuple[tuple[str, str], ...]:
    """Return the pairs that stand in the table itself: the only one of two encoders; others get a table of their own."""
    return pairs(table) if len(table.encoders) == 2 else ()


def table_of_differences(table: Table) -> Table:
    """Return ``table`` with those of its rows alone whose differences get a table of their own."""
    compared = [] if pairs_in_table(table) else [part for part in map(_compared, table.sections) if part.rows]
    return replace(table, sections=tuple(compared))


def _compared(section: Section) -> Section:
    return replace(section, rows=tuple(row for row in section.rows if row.contest and row.contest.pairs))


def head(names: tuple[str, str]) -> str:
    """Return what stands above the differences of two encoders."""
    return " − ".join(names)


def pair_of(row: Row, names: tuple[str, str]) -> Pair | None:
    """Return the comparison of two encoders in ``row``, if there is one."""
    pairs = row.contest.pairs if row.contest else ()
    return next((pair for pair in pairs if (pair.a, pair.b) == names), None)


def difference_text(row: Row, names: tuple[str, str]) -> str:
    """Return the difference of two encoders in ``row`` with its interval."""
    pair = pair_of(row, names)
    if pair is None:
        return "–"
    norm = next(text.norm_of(cell.estimate) for cell in row.cells if cell)
    value, low, high = (text.radius(norm, getattr(pair.difference, name)) for name in ("value", "low", "high"))
    return f"{value} [{low}, {high}]"


def outcome(pair: Pair | None) -> str:
    """Return who is better by the difference, in words."""
    if pair is None:
        return ""
    gap = pair.difference
    named = gap.outcome.replace("a is", f"{pair.a} is").replace("b is", f"{pair.b} is")
    # The interval alone would tell them apart, but so few samples may fall so by chance (`statistics.differences.paired`).
    chance = gap.outcome == "tied" and (gap.low > 0 or gap.high < 0)
    return f"{named} (too few differ)" if chance else named
