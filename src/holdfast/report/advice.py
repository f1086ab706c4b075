"""What a reader should do: the warnings, who is best at what, and how far the attack decides the answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite

from holdfast.report import text
from holdfast.report.protocol import Group
from holdfast.report.tables import Cell, Row, Section, Table
from holdfast.result import Claim, Failure


@dataclass(frozen=True)
class Alert:
    """A warning, with the encoders it concerns and the evaluations that raised it."""

    encoders: tuple[str, ...]
    evaluations: tuple[str, ...]
    warning: str


@dataclass(frozen=True)
class Standing:
    """Who is best at one quantity."""

    section: Section
    leaders: tuple[str, ...]
    """The encoders that most often share the first place."""
    sentence: str
    worst: tuple[Row, Cell] | None
    """The first leader's worst number."""

    @property
    def at_worst(self) -> str:
        """Return that number in words."""
        if self.worst is None:
            return ""
        row, cell = self.worst
        where = " · ".join(filter(None, (row.first, row.rest)))
        return f"{self.leaders[0]} at worst {cell.value} {cell.interval}{f' ({where})' if where else ''}"


def alerts(groups: Sequence[Group]) -> tuple[Alert, ...]:
    """Return every warning once."""
    found: dict[str, tuple[dict[str, None], dict[str, None]]] = {}
    for group in groups:
        for name, result in group.items():
            for warning in result.findings.warnings:
                encoders, evaluations = found.setdefault(warning, ({}, {}))
                encoders[name] = evaluations[result.title] = None
    return tuple(Alert(tuple(who), tuple(where), warning) for warning, (who, where) in found.items())


def standings(table: Table) -> tuple[Standing, ...]:
    """Return who is best at each quantity of ``table`` that has a better direction."""
    return tuple(_standing(section, table) for section in table.sections if section.like.better != "neither")


def _standing(section: Section, table: Table) -> Standing:
    firsts = [names for row in section.rows if (names := _firsts(row, table.encoders))]
    shares = Counter(name for names in firsts for name in names)
    leaders = tuple(name for name in table.encoders if shares and shares[name] == max(shares.values()))
    if not firsts:
        why = (
            "One encoder alone: nothing to compare." if len(table.encoders) == 1 else "No two encoders are comparable."
        )
        leaders = table.encoders if len(table.encoders) == 1 else ()
        return Standing(section, leaders, why, _worst(section, table, leaders))
    parts = [
        f"{text.listed(list(names))} {'is best' if len(names) == 1 else 'are tied for best'}{_under(count, len(firsts))}"
        for names, count in Counter(firsts).most_common(3)
    ]
    return Standing(section, leaders, f"{'; '.join(parts)}.", _worst(section, table, leaders))


def _under(count: int, total: int) -> str:
    if total == 1:
        return ""
    return f" under all {total} conditions" if count == total else f" under {count} of {total} conditions"


def _firsts(row: Row, encoders: Sequence[str]) -> tuple[str, ...]:
    return tuple(name for name, cell in zip(encoders, row.cells, strict=True) if cell and cell.mark)


def _worst(section: Section, table: Table, leaders: Sequence[str]) -> tuple[Row, Cell] | None:
    if not leaders:
        return None
    place, sign = table.encoders.index(leaders[0]), 1 if section.like.better == "lower" else -1
    cells = [(row, cell) for row in section.rows if (cell := row.cells[place]) and cell.defined]
    return max(cells, key=lambda item: sign * item[1].estimate.value, default=None)


def advice(table: Table, failures: Sequence[Failure]) -> tuple[str, ...]:
    """Return sentences to act on, the most useful first."""
    return tuple(filter(None, (*_choice(table), _stronger(table), _claims(table), _rerun(failures), _gate(table))))


def _choice(table: Table) -> Iterator[str]:
    rows = [names for part in table.sections for row in part.rows if (names := _firsts(row, table.encoders))]
    told = [names for names in rows if len(names) < len(table.encoders)]  # a tie of all tells nobody apart
    if not rows:
        return
    shares = Counter(name for names in told for name in names)
    leaders = [name for name in table.encoders if told and shares[name] == max(shares.values())]
    lead = (
        f"best or tied for best in {max(shares.values(), default=0)} of the {text.counted(len(told), 'headline row')}"
    )
    if not told:
        yield "The encoders are tied in every headline row: these images cannot tell them apart; use more of them."
    elif len(leaders) == 1:
        yield f"Of these encoders {leaders[0]} holds fastest: it is {lead} that tell encoders apart."
    else:
        yield f"No single encoder stands out: {text.listed(leaders)} are each {lead} that tell encoders apart."
    yield "All this is about whether codes stay put, not whether they are useful: choose among encoders that do your job."


def _stronger(table: Table) -> str:
    """Return how much the choice of attack changed a number at most, counting only intervals that do not touch."""
    found = [
        (high.estimate.value / low.estimate.value, section, name, high, low)
        for section in table.sections
        for row in _by_attack(section)
        for name, low, high in _apart(row, table.encoders)
    ]
    if not found:
        return ""
    ratio, section, name, high, low = max(found, key=lambda item: item[0])
    worse, milder = (high, low) if section.like.better == "lower" else (low, high)
    return (
        f"Judge by the stronger attack: {worse.estimate.conditions['attack']} takes {section.title} of {name} from "
        f"{milder.value} (under {milder.estimate.conditions['attack']}) to {worse.value}, a factor of {text.number(ratio)}."
    )


def _by_attack(section: Section) -> list[list[Row]]:
    """Return the rows of ``section`` that differ in the attack alone, together."""
    found: dict[tuple[tuple[str, str], ...], list[Row]] = {}
    for row in section.rows:
        cell = next((cell for cell in row.cells if cell), None)
        if cell and "attack" in cell.estimate.conditions and section.like.better != "neither":
            rest = tuple((key, value) for key, value in cell.estimate.conditions.items() if key != "attack")
            found.setdefault(rest, []).append(row)
    return [rows for rows in found.values() if len(rows) > 1]


def _apart(rows: Sequence[Row], encoders: Sequence[str]) -> Iterator[tuple[str, Cell, Cell]]:
    """Yield each encoder's lowest and highest number over ``rows`` if both are positive and their intervals apart."""
    for place, name in enumerate(encoders):
        cells = [cell for row in rows if (cell := row.cells[place]) and isfinite(cell.estimate.value)]
        if len(cells) > 1:
            low, high = (end(cells, key=lambda cell: cell.estimate.value) for end in (min, max))
            if low.estimate.value > 0 and low.estimate.high < high.estimate.low:
                yield name, low, high


def _claims(table: Table) -> str:
    claims = {section.like.claim for section in table.sections if section.like.better == "lower"}
    if Claim.LOWER not in claims:
        return ""
    return "Numbers marked as lower bounds come from attacks: a stronger attack may find more, so they prove no safety."


def _rerun(failures: Sequence[Failure]) -> str:
    if not failures:
        return ""
    return (
        f"{text.counted(len(failures), 'cell')} could not be computed; "
        "mend the causes listed below and repeat the command, which computes only what is missing."
    )


def _gate(table: Table) -> str:
    """Return a check that would notice if the leader became worse than its interval allows."""
    for standing in standings(table):
        if standing.worst is None or standing.section.like.better != "lower":
            continue
        estimate = standing.worst[1].estimate
        if "ball" in estimate.conditions and isfinite(estimate.high):
            gate = f"{estimate.quantity}@{estimate.conditions['ball']}<={_up(estimate.high):g}"
            return f"To notice when {standing.leaders[0]} gets worse, gate it: `holdfast check RUN --require '{gate}'`"
    return ""


def _up(value: float) -> float:
    """Return ``value`` rounded up to two digits."""
    rounded = float(f"{value:.2g}")
    return rounded if rounded >= value else float(f"{value * 1.05:.2g}")
