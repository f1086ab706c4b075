"""Who is best at each headline quantity, and how far it falls at worst."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.report import text
from holdfast.report.tables import Cell, Row, Section, Table


@dataclass(frozen=True)
class Standing:
    """Who is best at one quantity."""

    section: Section
    leaders: tuple[str, ...]
    """The encoders that most often share the first place; never a baseline."""
    sentence: str
    worst: tuple[Row, Cell] | None
    """The first leader's worst number."""
    telling: bool
    """Whether some encoders come first and others do not, or there is one alone."""

    @property
    def at_worst(self) -> str:
        """Return that number in words."""
        if self.worst is None:
            return ""
        row, cell = self.worst
        where = " · ".join(filter(None, (row.first, row.rest)))
        who = f"{self.leaders[0]} at worst" if len(self.leaders) > 1 else "At worst"
        return f"{who} {cell.value} {cell.interval}{f' ({where})' if where else ''}"


def standings(table: Table) -> tuple[Standing, ...]:
    """Return who is best at each quantity of ``table`` that has a better direction."""
    return tuple(_standing(section, table) for section in table.sections if section.like.better != "neither")


def _standing(section: Section, table: Table) -> Standing:
    firsts = [names for row in section.rows if (names := row.firsts(table.encoders))]
    shares = Counter(name for names in firsts for name in names)
    leaders = tuple(name for name in table.ranked if shares and shares[name] == max(shares.values()))
    if len(table.ranked) == 1:
        leaders = table.ranked
    telling = bool(leaders) and (not firsts or any(len(names) < len(table.ranked) for names in firsts))
    sentence = _sentence(firsts, _missing(section, table), table)
    return Standing(section, leaders, sentence, _worst(section, table, leaders), telling)


def _missing(section: Section, table: Table) -> tuple[str, ...]:
    """Return who has no number in some row of ``section``, where therefore nobody is ranked."""
    return tuple(dict.fromkeys(name for row in section.rows for name in row.missing(table)))


def _sentence(firsts: Sequence[tuple[str, ...]], missing: Sequence[str], table: Table) -> str:
    if len(table.ranked) < 2:
        return "" if table.ranked else "All encoders have collapsed."
    if not firsts and set(missing) == set(table.ranked):
        return "No encoder has a number here."
    without = f"Not ranked where {text.listed(list(missing))} {text.have(missing)} no number." if missing else ""
    if not firsts:
        return without or "The encoders cannot be compared here."
    return f"{_places(firsts, table)} {without}".rstrip()


def _places(firsts: Sequence[tuple[str, ...]], table: Table) -> str:
    if all(len(names) == len(table.ranked) for names in firsts):
        under = f" under any of {len(firsts)} conditions" if len(firsts) > 1 else ""
        return f"No difference between the encoders was found{under}."
    if len(set(firsts)) == 1:
        return f"{'Best' if len(firsts[0]) == 1 else 'Tied for best'}{_under(len(firsts), len(firsts))}."
    parts = [
        f"{text.few(names, table.encoders)} {'is best' if len(names) == 1 else 'are tied for best'}"
        f"{_under(count, len(firsts))}"
        for names, count in Counter(firsts).most_common()
    ]
    return text.opening(f"{'; '.join(parts)}.")


def _under(count: int, total: int) -> str:
    if total == 1:
        return ""
    return f" under all {total} conditions" if count == total else f" under {count} of {total} conditions"


def _worst(section: Section, table: Table, leaders: Sequence[str]) -> tuple[Row, Cell] | None:
    if not leaders:
        return None
    place, sign = table.encoders.index(leaders[0]), 1 if section.like.better == "lower" else -1
    cells = [(row, cell) for row in section.rows if (cell := row.cells[place]) and cell.defined]
    # Of equal numbers the last, which belongs to the widest ball and the strongest attack.
    return max(reversed(cells), key=lambda item: sign * item[1].estimate.value, default=None)
