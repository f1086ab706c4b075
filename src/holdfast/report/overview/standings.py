"""Who is best at each headline quantity, and how far it falls at worst."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.report.comparison.tables import Cell, Row, Section, Table


@dataclass(frozen=True)
class Standing:
    """Who is best at one quantity."""

    section: Section
    leaders: tuple[str, ...]
    """The encoders that most often share the first place; never a baseline."""
    worst: tuple[Row, Cell] | None
    """The first leader's worst number."""


def standings(table: Table) -> tuple[Standing, ...]:
    """Return who is best at each quantity of ``table`` that has a better direction."""
    return tuple(_standing(section, table) for section in table.sections if section.like.better != "neither")


def _standing(section: Section, table: Table) -> Standing:
    firsts = [names for row in section.rows if (names := row.firsts(table.encoders))]
    shares = Counter(name for names in firsts for name in names)
    leaders = tuple(name for name in table.ranked if shares and shares[name] == max(shares.values()))
    if len(table.ranked) == 1:
        leaders = table.ranked
    return Standing(section, leaders, _worst(section, table, leaders))


def _worst(section: Section, table: Table, leaders: Sequence[str]) -> tuple[Row, Cell] | None:
    if not leaders:
        return None
    place, sign = table.encoders.index(leaders[0]), 1 if section.like.better == "lower" else -1
    cells = [(row, cell) for row in section.rows if (cell := row.cells[place]) and cell.defined]
    # Of equal numbers the last, which belongs to the widest ball and the strongest attack.
    return max(reversed(cells), key=lambda item: sign * item[1].estimate.value, default=None)
