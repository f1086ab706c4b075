"""The first screen of a report: a verdict, at most nine rows under five headings, and what was checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite, isnan, nan

from holdfast.core.records import Estimate, Failure, Result
from holdfast.report import text
from holdfast.report.comparison.comparable import Group, tabled
from holdfast.report.comparison.compare import Comparison, case, jointly_ranked
from holdfast.report.comparison.tables import Row, Section, Table, table
from holdfast.report.overview.alerts import FEW, alerts
from holdfast.report.overview.first_rows import (
    GROUPS,
    ROBUSTNESS,
    FirstRow,
    Picked,
    Shown,
    check_one_event,
    first_row,
    picked,
)
from holdfast.report.overview.tally import OTHERS, asked

WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


@dataclass(frozen=True)
class FirstScreen:
    """First screen: verdict, rows, proofs, and an alert if needed."""

    title: str
    encoders: tuple[str, ...]
    """Encoders to choose from, one column each."""
    baselines: tuple[str, ...]
    """Baselines, which share one narrow column."""
    collapsed: tuple[str, ...]
    rows: tuple[FirstRow, ...]
    verdict: tuple[str, ...]
    """One or two sentences, the first of them bold."""
    amber: str
    """The one thing that changes a decision; empty if nothing does."""
    red: str
    checks: str
    notes: int
    """Warnings that stand in the sections they concern."""
    exact: Table
    """The rows with intervals and paired differences, these at 95% each."""
    leader: str = ""
    """The encoder that the verdict calls the most robust; empty where none is."""

    @property
    def groups(self) -> list[tuple[str, str, list[FirstRow]]]:
        """Headings with rows, each with its sentence."""
        headings = {**GROUPS, OTHERS: ""}
        found = [(name, said, [row for row in self.rows if row.kind.group == name]) for name, said in headings.items()]
        return [group for group in found if group[2]]

    @property
    def unlabelled(self) -> bool:
        """Whether the table is about robustness, but has no metric with labels."""
        found = {row.kind.group for row in self.rows}
        return bool(found) and not found & {"Labels", OTHERS}

    @property
    def numbers(self) -> list[tuple[str, Mapping[str, Estimate]]]:
        """Return each row's evaluation with the numbers of its encoders."""
        return [(row.kind.evaluation, row.numbers) for row in self.rows]

    def beside(self, row: FirstRow) -> list[str]:
        """Return the name and number of each baseline, which share one cell."""
        cells = [cell for cell in row.cells if cell.encoder in self.baselines]
        return [f"{cell.encoder.removeprefix('baseline:')} {cell.said}" for cell in cells]

    def shown(self, row: FirstRow) -> list[Shown]:
        """Return the cells of the encoders to choose among."""
        return [cell for cell in row.cells if cell.encoder in self.encoders]


def first_screens(
    groups: Sequence[Group], comparison: Comparison, tables: Sequence[Table], failures: Sequence[Failure]
) -> tuple[FirstScreen, ...]:
    """Return one screen per summary table that has rows for it.

    Raises:
        HoldfastError: two rows of one title speak of different things, or a proof lies above an attack.
    """
    screens = []
    for part, short in zip(tabled(groups), tables, strict=True):
        whole = table(short.title, part, comparison)
        found = list(picked(part, whole))
        found = [*found, *asked(part, whole, found)]
        broken = {name: count for name in whole.encoders if (count := _certificates(part, name)[0])}
        if not found and not broken:
            continue
        # More effective dimensions, or embeddings spread more evenly, are no evidence of robustness or fitness for the
        # task: rows of the space describe and take no badge.
        contests = [None if each.kind.group == "Space" else each.contest for each in found]
        ranks = jointly_ranked(list(filter(None, contests)))
        rows = tuple(
            first_row(each, whole, ranks[case(contest)] if contest else {})
            for each, contest in zip(found, contests, strict=True)
        )
        results = [result for group in part for result in group.results]
        check_one_event(rows, tuple(broken))
        red = ""
        if broken:
            who = text.listed(broken)
            red = f"Violated certificates: attacks succeed inside {sum(broken.values()):,} of {who}. Trust no proof of them."
        leader, verdict = _verdict(whole, rows)
        screens.append(
            FirstScreen(
                title=short.title,
                encoders=tuple(name for name in whole.encoders if name not in whole.baselines),
                baselines=whole.baselines,
                collapsed=whole.collapsed,
                rows=rows,
                verdict=verdict,
                amber=_amber(whole, rows, results, failures),
                red=red,
                checks=_checks(part, whole),
                notes=len(alerts(part)),
                exact=replace(whole, sections=tuple(_exact(each, row) for each in found for row in each.rows)),
                leader=leader,
            )
        )
    return tuple(screens)


def _certificates(part: Sequence[Group], name: str) -> tuple[int, int]:
    estimates = [
        e for group in part for label, result in group.items() if label == name
        for e in result.estimates if e.unit == "certificates"
    ]  # fmt: skip
    return int(sum(e.value for e in estimates)), sum(e.n for e in estimates)


def _word(count: int) -> str:
    return WORDS[count] if count < len(WORDS) else f"{count:,}"


def _exact(found: Picked, row: Row) -> Section:
    """Return a row by itself, without marks: those of the screen hold for the whole table together."""
    cells = tuple(cell and replace(cell, mark="") for cell in row.cells)
    return Section(found.kind.evaluation, True, row.like, (replace(row, cells=cells, span=1),))


def _verdict(whole: Table, rows: Sequence[FirstRow]) -> tuple[str, tuple[str, ...]]:
    ranked = whole.ranked
    robust = [row for row in rows if row.kind.group in ROBUSTNESS]
    compared = [row for row in robust if len(row.ranks) > 1]
    if len(ranked) < 2 or not robust:
        own = list[str]()  # the first rows in words
        for name in ranked[:3]:
            said = [
                f"{row.title[0].lower()}{row.title[1:]}: {cell.said}"
                for row in robust or rows for cell in row.cells if cell.encoder == name and cell.values
            ]  # fmt: skip
            own += [f"{name}: {'; '.join(said[:2])}."] if said else []
        return "", tuple(own) or ("No encoder to judge.",)
    among = f"the {_word(len(ranked))} encoders"
    if not compared:
        return "", (f"Nothing tells {among} apart: no row could be compared.",)
    wins = {
        name: sum(row.ranks.get(name) == 1 and list(row.ranks.values()).count(1) == 1 for row in compared)
        for name in ranked
    }
    behind = {name: sum(row.ranks.get(name, 1) > 1 for row in compared) for name in ranked}
    most = max(wins.values())
    if not most and not any(behind.values()):
        where = "the one row compared" if len(compared) == 1 else f"any of {_word(len(compared))} rows"
        return "", (f"No significant difference between {among} on {where}.",)
    leaders = [name for name in ranked if wins[name] == most and most and not behind[name]]
    if len(leaders) != 1:
        each = text.listed(
            [f"{name} is best on {wins[name]}" for name in ranked if wins[name]] or ["none is best on any"]
        )
        return "", (f"No encoder leads throughout: {each} of {len(compared)} robustness rows.",)
    name = leaders[0]
    rest = [f"“{row.title}”" for row in compared if list(row.ranks.values()).count(1) > 1]
    tied = "" if not rest else f", tied on {text.listed(rest) if len(rest) < 3 else f'the other {_word(len(rest))}'}"
    rows_compared = "the one robustness row" if len(compared) == 1 else f"{most} of {len(compared)} robustness rows"
    first = f"{name} is the most robust of {among}: best on {rows_compared}{tied}."
    return name, (first, *_lead(rows, name, ranked))


def _lead(rows: Sequence[FirstRow], name: str, ranked: Sequence[str]) -> list[str]:
    """Return the leader's numbers in the first row of a radius and the first of a proof, with the next best."""
    sentences = []
    for evaluation, said in (
        ("attack-radius", "Half of its images match another image after a change of {} (next best: {})."),
        (
            "certified-attack-radius",
            "Up to a change of {}, half of its images provably stay closest to their own original (next best: {}).",
        ),
        (
            "certified-breakaway",
            "At {where}, {} of its images provably stay closest to their own original (next best: {}).",
        ),
    ):
        row = next((row for row in rows if row.kind.evaluation == evaluation), None)
        numbers = {c.encoder: c.values[0] for c in row.cells if c.values and c.encoder in ranked} if row else {}
        others = [value for other, value in numbers.items() if other != name and not isnan(value)]
        # An encoder whose radius lies beyond the search may be the better one, so infinite ones count.
        if row and others and isfinite(numbers.get(name, nan)) and numbers[name] > max(others):
            form = "{:.0%}" if row.kind.form == "percent" else "{:.3g}"
            times, behind = text.in_print(row.key.ball) if row.kind.form != "percent" else (1.0, "")
            own, other = (f"{form.format(times * value)}{behind}" for value in (numbers[name], max(others)))
            sentences.append(said.replace("{where}", _epsilon(row)).format(own, other))
    return sentences


def _epsilon(row: FirstRow) -> str:
    return next((part for part in row.under.split(" · ") if part.startswith("ε")), "")


def _amber(whole: Table, rows: Sequence[FirstRow], results: Sequence[Result], failures: Sequence[Failure]) -> str:
    """Return the one cause that changes a decision, the gravest first."""
    if whole.collapsed:
        return f"Collapsed: {text.listed(whole.collapsed)} gives all images one embedding. Its numbers mean nothing."
    known = {name for result in results for name in (result.encoder.name, result.encoder.source)}
    if absent := sorted({failure.encoder for failure in failures} - known):
        return f"No result for {text.listed(absent)}: see the reasons below."
    if ended := sum(result.planned is not None for result in results):
        counted = text.counted(ended, "result")
        return f"Partial run: {counted} of fewer images than planned. Run the same command again to continue."
    if failures:
        return f"{text.counted(len(failures), 'result')} missing: see the reasons below."
    for name in whole.baselines:
        beaten = [row.title for row in rows if whole.ranked and _beats(row, name, whole.ranked)]
        if beaten:
            return f"The baseline {name} is above every encoder in: {'; '.join(beaten)}."
    if unsure := dict.fromkeys(warning for result in results for warning in result.encoder.warnings):
        return next(iter(unsure))
    counts = sorted(row.fewest for row in rows if row.kind.group in ROBUSTNESS)
    if counts and counts[0] < FEW:
        span = f"{counts[0]}–{counts[-1]}" if counts[-1] > counts[0] else f"{counts[0]}"
        return f"Small run: {span} images per row. Rerun with --suite standard before you decide."
    return ""


def _beats(row: FirstRow, name: str, ranked: Sequence[str]) -> bool:
    values = {cell.encoder: cell.values[0] for cell in row.cells if cell.values and isfinite(cell.values[0])}
    if name not in values or not set(ranked) <= values.keys() or row.kind.group not in ROBUSTNESS:
        return False
    sign = -1 if row.kind.evaluation == "impersonation" else 1
    return all(sign * values[name] > sign * values[other] for other in ranked)


def _checks(part: Sequence[Group], whole: Table) -> str:
    tried = [_certificates(part, name) for name in whole.encoders]
    violated, count = sum(v for v, _ in tried), sum(n for _, n in tried)
    parts = []
    if count:
        parts.append(
            f"{count:,} certificates were attacked, {violated:,} failed."
            if violated
            else f"all {count:,} certificates were attacked, none failed."
        )
    checked = {n: r for group in part if group.first.evaluation == "masking" for n, r in group.items()}
    if checked:
        bad = [name for name, result in checked.items() if any(v.status == "refuted" for v in result.findings.verdicts)]
        unsure = [
            f"{name} ({round(worst.value * worst.n):,} of {text.counted(worst.n, 'image')} fails)"
            for name, result in checked.items()
            if name not in bad
            and (failed := [e for e in result.estimates if e.value > 0])
            and (worst := max(failed, key=lambda e: e.value))
        ]
        usable = f"no, of {text.listed(bad)}" if bad else "yes"
        parts.append(
            f"Gradients usable for attacks: {usable}"
            + (f"; not certain for {text.listed(unsure)}, where attacks may find too little." if unsure else ".")
        )
    return " ".join(parts)


WHOLE = 18
"""Lines of nine rows of two bounds."""


def lines(screen: FirstScreen, most: int = 6) -> list[str]:
    """Return the screen as lines for a terminal: ``most`` lines of numbers, what signs mean, the verdict and the amber line.

    A proved and an attacked bound stand on two lines, so that the columns stay narrow.
    """
    names = list(screen.encoders)[:8]
    rows = _told(screen.rows, most - bool(screen.red))
    heads = [name if len(name) < 20 else f"{name[:18]}…" for name in names]
    grid = [["", *heads], *(line for row in rows for line in _lines(row, names))]
    widths = [max(len(line[k]) for line in grid) for k in range(len(heads) + 1)]
    printed = [
        "  ".join([line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True))]).rstrip()
        for line in grid
    ]
    shown = [cell for row in rows for cell in row.cells if cell.encoder in names]
    signs = (
        ("≤ ≥: found by attacks", any(cell.said.startswith(("≤", "≥")) for cell in shown)),
        ("* better than all others (95%)", any(cell.best for cell in shown)),
    )
    if said := " · ".join(sign for sign, used in signs if used):
        printed.append(said.rjust(sum(widths) + 2 * len(heads)))
    return [*printed, "", *screen.verdict[:2], *filter(None, (screen.red, screen.amber))]


def _told(rows: Sequence[FirstRow], most: int) -> list[FirstRow]:
    """Return the first row of each heading, then the others, as many as ``most`` lines hold, in the order of the page."""
    firsts = {row.kind.group: row for row in reversed(rows)}
    chosen = list[FirstRow]()
    for row in sorted(rows, key=lambda row: row not in firsts.values()):
        if sum(len(each.bounds) for each in (*chosen, row)) <= most:
            chosen.append(row)
    return sorted(chosen, key=rows.index)


def _lines(row: FirstRow, names: Sequence[str]) -> list[list[str]]:
    """Return one line of the terminal, or one per bound: its head and the cell of each encoder."""
    cells = {cell.encoder: cell for cell in row.cells}
    epsilon, found = _epsilon(row).removeprefix("ε = "), []
    if row.kind.form == "radius":
        where = "" if row.key.ball == "linf" else f" ({epsilon})"
    else:
        where = f" at {epsilon}" if epsilon else ""
    head = f"{row.kind.short}{where}{': ' if row.bounds[0] else ''}"
    for place, word in enumerate(row.bounds):
        said = [
            dict(cells[n].parts).get(word, dict(cells[n].parts).get("", "–")) + "*" * (cells[n].best and not place)
            for n in names
        ]
        found.append([f"{' ' * len(head) if place else head}{word}", *said])
    return found
