"""Advice for the reader: warnings, the best encoder per row, and the influence of the attack.

The only advice for a run that ended early is to continue it. Otherwise advice uses numbers of at least ``ENOUGH``
samples, and a suggested gate uses at least ``FEW``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from shlex import quote

from holdfast.core.records import Claim, Failure, Result, grouped
from holdfast.core.statistics.summaries import is_share
from holdfast.report import text
from holdfast.report.comparison.comparable import Group
from holdfast.report.comparison.tables import Cell, Row, Section, Table
from holdfast.report.gate import suggested
from holdfast.report.overview.alerts import (
    ENOUGH,
    FEW,
    HARM,
    SPENT,
    Alert,
    alerts,
    by_budget,
    causes,
    encoders_without_results,
    harm,
    other_radius,
)
from holdfast.report.overview.first_screen import FirstScreen
from holdfast.report.overview.study import study
from holdfast.report.overview.tally import Tally, tally

SHOWN = 3
"""Leaders whose worst number the advice gives."""


def advice(
    table: Table,
    groups: Sequence[Group],
    failures: Sequence[Failure],
    runs: Sequence[str] = (),
    screen: FirstScreen | None = None,
) -> tuple[str, ...]:
    """Return sentences to act on, the most useful first.

    Args:
        table: the headline numbers of ``groups``.
        groups: every result.
        failures: the cells without one.
        runs: the folders they are in, if they are known.
        screen: the first screen, whose verdict the advice follows and whose numbers a gate guards before any other.
    """
    results = [result for group in groups for result in group.results]
    if unfinished := _continue(results, failures):
        return (unfinished,)
    table, thin = _supported(table)
    tallied = tally(table)
    advised = _advised(table, tallied)
    robust = tuple(part for part in table.sections if part.robustness)
    # Whether something was proved for these networks, so that more can be.
    bounded = any("contradictions" in asked.quantities for result in results for asked in result.questions)
    name, command = gate_command(table, groups, failures, runs, screen)
    sentences = (
        *(
            f"{lost} was asked for and has no result, so nothing here speaks of it: {'; '.join(reasons)}."
            for lost, reasons in encoders_without_results(results, failures).items()
        ),
        thin,
        *_choice(table, tallied, advised, alerts(groups), bounded, screen),
        *(f"{gap.sentence}." for gap in tally(replace(table, sections=robust)).gaps),
        *_proportion(table),
        _stronger(table),
        "Lower bounds of harm come from attacks: a stronger attack may find more, so they prove no safety."
        if any((part.like.better, part.like.claim) == ("lower", Claim.LOWER) for part in table.sections)
        else "",
        _proved(table),
        f"{text.counted(len(failures), 'result')} failed for {text.counted(len(causes(failures)), 'reason')}, listed below. "
        "Fix what failed and repeat the command; it computes only what is missing."
        if failures
        else "",
        f"To notice when {name} gets worse, gate it: `{command}`" if command else "",
    )
    return tuple(filter(None, sentences))


def _continue(results: Sequence[Result], failures: Sequence[Failure]) -> str:
    partial = [result for result in results if result.planned is not None]
    spent, _ = by_budget(failures)
    if not partial and not spent:
        return ""
    counts = {"partial": len(partial), "not measured": len(spent)}
    which = text.listed([f"{text.counted(count, 'result')} {state}" for state, count in counts.items() if count])
    return f"Continue the run before you act on it: {which}. It was {SPENT}."


def _supported(table: Table) -> tuple[Table, str]:
    """Return ``table`` with the rows whose numbers rest on enough samples, and a sentence if none does."""

    def enough(row: Row) -> bool:
        return all(cell.estimate.n >= ENOUGH for cell in row.cells if cell and cell.defined)

    sections = tuple(replace(part, rows=tuple(filter(enough, part.rows))) for part in table.sections)
    kept = tuple(part for part in sections if part.rows)
    thin = (
        "" if kept or not table.sections else f"No number rests on {ENOUGH} samples: measure more images to learn more."
    )
    return replace(table, sections=kept), thin


@dataclass(frozen=True)
class Advised:
    """Who leads by the numbers that the study backs; no one where these tell no encoders apart, or agree on none."""

    tally: Tally
    evidence: str
    leaders: tuple[str, ...]
    numbers: tuple[str, ...]
    """Names of these numbers."""


def _advised(table: Table, tallied: Tally) -> Advised:
    """Return who leads by the metrics with evidence, or by those with some evidence if the first decide nothing."""
    backed, evidence = _of_numbers(table, ("use",)), "evidence"
    if not tally(backed).telling:
        backed, evidence = _of_numbers(table, ("some",)), "some evidence only"
    tallied_again = tally(backed)
    names = tuple(part.title for part in backed.sections)
    return Advised(tallied_again, evidence, tallied_again.leaders if tallied.conditions else (), names)


def _choice(
    table: Table, tallied: Tally, advised: Advised, alerts: Sequence[Alert], bounded: bool, screen: FirstScreen | None
) -> Iterator[str]:
    if screen is None or not screen.rows:
        leaders, sentences = _by_tally(table, tallied, advised, bounded)
    else:
        leaders, sentences = _by_screen(table, tallied, advised, screen)
    yield from sentences
    yield from _worst_of_leaders(table, leaders)
    of_some = [alert.encoders for alert in alerts if not set(table.ranked) <= set(alert.encoders)]
    if doubted := [name for name in leaders if any(name in encoders for encoders in of_some)]:
        yield f"Settle the notes about {text.listed(doubted)} before you rely on that."


def _by_screen(
    table: Table, tallied: Tally, advised: Advised, screen: FirstScreen
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return who leads by the verdict of the first screen, and why the study would choose another if it would.

    The verdict counts every row of robustness; the study's numbers are one or two of them.
    """
    if not tallied.conditions:
        return table.ranked if len(table.ranked) == 1 else (), ()
    if not tallied.telling and (saturated := other_radius(table)):
        return (), (f"The encoders are tied{saturated}",)
    leaders = (screen.leader,) if screen.leader else advised.leaders
    if not advised.leaders or screen.leader in advised.leaders:
        return leaders, ()
    numbers = text.listed(dict.fromkeys(advised.numbers))
    which = "these are some rows of the table, and the verdict counts all" if screen.leader else "the table names none"
    return leaders, (f"By {numbers} alone, {text.listed(advised.leaders)} would come first: {which}.",)


def _by_tally(table: Table, tallied: Tally, advised: Advised, bounded: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return who leads by all numbers of a run without a first screen, and the sentences that say so."""
    if not tallied.conditions:
        return table.ranked if len(table.ranked) == 1 else (), ()
    leaders = advised.leaders or (() if advised.tally.telling else tallied.leaders)
    if not tallied.telling:
        saturated = other_radius(table)
        return leaders, (
            f"The encoders are tied in {'all ' * (tallied.conditions > 1)}{text.counted(tallied.conditions, 'condition')} "
            f"of robustness compared: these images cannot tell them apart{saturated or '; use more of them.'}",
        )
    if advised.leaders:
        other = (
            f"Counting all numbers, {text.listed(tallied.leaders)} would come first; that is no "
            "reason to prefer another."
        )
        differs = tallied.leaders and tallied.leaders != leaders
        lead = _lead(advised.tally, f" by numbers with {advised.evidence} in our study")
        if len(leaders) == 1:
            first = f"Of these encoders {leaders[0]} is the most robust: it is {lead}; {_tied(advised.tally)}."
        else:
            first = f"No single encoder stands out: {text.listed(leaders)} are each {lead}; {_tied(advised.tally)}."
        return leaders, (first, *([other] if differs else []))
    if leaders:
        return leaders, (_undecided(table, tallied, bounded),)
    decisive = advised.tally if advised.tally.telling else tallied
    return leaders, (
        f"The encoders differ in {decisive.telling} of {text.counted(decisive.conditions, 'condition')} of robustness, "
        "but none is best or tied for best throughout any question: no reason to prefer one.",
    )


def _of_numbers(table: Table, advised: Sequence[str]) -> Table:
    studied = tuple(part for part in table.sections if study().advice(part.evaluation, part.like.quantity) in advised)
    return replace(table, sections=studied)


def _lead(tallied: Tally, evidence: str) -> str:
    """Return at how many questions, not conditions, the leaders lead: conditions are views of the same attacks."""
    most, count = max(tallied.firsts.values()), tallied.telling_questions
    rest = ", tied on the rest" if tallied.questions > count else ""
    alone = sorted(tallied.firsts.values())[-2:] == [0, most]
    best = "best" if alone else "best or tied for best"
    questions = f"{text.counted(count, 'question')} that {'tells' if count == 1 else 'tell'} them apart"
    return f"{best} on {most} of {questions}{evidence}{rest}"


def _tied(tallied: Tally) -> str:
    tied = tallied.conditions - tallied.telling
    return f"{tied or 'none'} of {text.counted(tallied.conditions, 'condition')} {'is' if tied < 2 else 'are'} tied"


def _undecided(table: Table, tallied: Tally, bounded: bool) -> str:
    """Return who leads by other numbers alone, and what to measure instead if it has not been and can be."""
    each = f"{text.listed(tallied.leaders)} {'is' if len(tallied.leaders) == 1 else 'are each'} {_lead(tallied, '')}"
    measured = {part.evaluation for part in table.sections}
    proofs = "certified-"
    better = [name for name in study().best if name not in measured and (bounded or not name.startswith(proofs))]
    then = f" Measure {text.listed(better)} as well, which have more." if better else ""
    return (
        f"{each} ({_tied(tallied)}), but only by numbers without evidence in our study: that alone "
        f"is no reason to prefer one.{then}"
    )


def _proportion(table: Table) -> Iterator[str]:
    """Yield where a baseline is better than every encoder that is not one."""
    for name in table.baselines:
        places = []
        for section in table.sections:
            contests = [row.contest for row in section.rows if row.contest and row.contest.ranks]
            count = sum(contest.beats_all(name) for contest in contests)
            if count:
                places.append(f"{section.title} ({count} of {text.counted(len(contests), 'condition')})")
        if places:
            whom = "all of them" if len(table.ranked) > 1 else table.ranked[0]
            yield f"The baseline {name} is better than {whom} at {text.listed(places)}."


def _worst_of_leaders(table: Table, leaders: Sequence[str]) -> Iterator[str]:
    """Yield the worst main metric of each leader, because the best encoder need not be good."""
    for name in leaders[:SHOWN]:
        place = table.encoders.index(name)
        cells = [
            (harm(cell), section, row, cell)
            for section in table.sections
            if (section.like.better, section.like.claim) in HARM and is_share(section.like.unit)
            for row in section.rows
            if (cell := row.cells[place]) and cell.defined
        ]
        if cells:
            most, section, row, cell = max(reversed(cells), key=lambda item: item[0])
            where = row.where
            perfect = 0 if section.like.better == "lower" else 1
            others = [harm(other) for each, other in row.defined(table, table.ranked).items() if each != name]
            beside = " The other encoders do no better." if others and min(others) >= most else ""
            yield (
                f"Weakest result of {name}: {section.title} is {cell.value} "
                f"{cell.interval}{f' ({where})' if where else ''}; {perfect} would be perfect.{beside}"
            )


def _stronger(table: Table) -> str:
    """Return how much the choice of attack changed a number at most, counting only intervals that do not touch.

    Shares differ by points, because a factor over a tiny share says little; other numbers by a factor.
    """
    rows = []
    for section in table.sections:
        share = is_share(section.like.unit)
        for same in _by_attack(section):
            for place, name in enumerate(table.encoders):
                cells = [cell for row in same if (cell := row.cells[place]) and isfinite(cell.estimate.value)]
                low, high = (end(cells, key=lambda cell: cell.estimate.value, default=None) for end in (min, max))
                if low is None or high is None or not low.estimate.high < high.estimate.low:
                    continue
                a, b = low.estimate.value, high.estimate.value
                if share or a > 0:
                    rows.append((b - a if share else b / a, section, name, high, low))
    if not rows:
        return ""
    shares = [item for item in rows if is_share(item[1].like.unit)]
    gap, section, name, high, low = max(shares or rows, key=lambda item: item[0])
    worse, milder = (high, low) if section.like.better == "lower" else (low, high)
    much = f"a difference of {text.number(gap)}" if shares else f"a factor of {text.number(gap)}"
    return (
        f"Judge by the stronger attack: {_attack(worse)} takes {section.title} of {name} from "
        f"{milder.value} (under {_attack(milder)}) to {worse.value}, {much}."
    )


def _attack(cell: Cell) -> str:
    return text.condition("attack", cell.estimate.conditions["attack"], cell.estimate.aim)


def _by_attack(section: Section) -> list[list[Row]]:
    if section.like.better == "neither":
        return []
    cases = grouped(
        (tuple({**row.like.conditions, "attack": attack.partition(" at ")[2]}.items()), row)
        for row in section.rows
        if (attack := row.like.conditions.get("attack"))
    )
    return [rows for rows in cases.values() if len(rows) > 1]


def _proved(table: Table) -> str:
    """Return the largest certificate of the first quantity that has one."""
    for section in table.sections:
        cells = [(row, name, cell) for row in section.rows for name, cell in row.defined(table, table.ranked).items()]
        if cells and (section.like.better, section.like.claim) == ("higher", Claim.LOWER):
            row, name, cell = max(cells, key=lambda item: item[2].estimate.value)
            most = ", the most of these encoders" if len(table.ranked) > 1 else ""
            number = f"{cell.value} {cell.interval} ({row.where})"
            return f"Proved, whatever the attack: {section.title} of {name} is {number}{most}."
    return ""


def gate_command(
    table: Table, groups: Sequence[Group], failures: Sequence[Failure], runs: Sequence[str], screen: FirstScreen | None
) -> tuple[str, str]:
    """Return an encoder and a check that would notice if it became worse than its interval allows; two empty texts where
    there is none to give.

    No advice is to guard an encoder that is not advised or is useless, nor by a bound that cannot be broken. A number of
    the first screen is guarded before any other.
    """
    results = [result for group in groups for result in group.results]
    if _continue(results, failures):
        return "", ""
    table, _ = _supported(table)
    advised = _advised(table, tally(table)).leaders or (table.ranked if len(table.ranked) == 1 else ())
    if screen and screen.leader:
        advised = (screen.leader,)
    folders = " ".join(map(quote, runs)) or "RUN"
    for name in advised[:1] if advised and not _useless(table, advised[0]) else ():
        place = table.encoders.index(name)
        numbers = [(evaluation, by[name]) for evaluation, by in (screen.numbers if screen else ()) if name in by]
        for section in table.sections:
            cells = [cell for row in section.rows if (cell := row.cells[place]) and cell.defined]
            if section.like.better == "lower" and cells:
                # Of equal numbers the last, which belongs to the widest ball and the strongest attack.
                worst = max(reversed(cells), key=lambda cell: cell.estimate.value)
                numbers.append((section.evaluation, worst.estimate))
        for evaluation, estimate in numbers:
            if ":" not in estimate.conditions.get("ball", "") or estimate.n < FEW:
                continue
            if gate := suggested(results, evaluation, name, estimate):
                return name, f"holdfast check {folders} --strict --require {quote(gate)}"
    return "", ""


def _useless(table: Table, name: str) -> bool:
    place = table.encoders.index(name)
    cells = [
        cell
        for section in table.sections
        if section.like.quantity == "nearest_neighbour_accuracy"
        for row in section.rows
        if (cell := row.cells[place]) and cell.defined
    ]
    return bool(cells) and all(cell.estimate.value == 0 for cell in cells)
