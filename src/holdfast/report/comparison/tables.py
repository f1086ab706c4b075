"""The tables of the report and the paired differences in them; every format prints these."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import isfinite, isnan

from holdfast.core.records import Claim, Estimate, grouped
from holdfast.core.statistics.summaries import is_share
from holdfast.report import text
from holdfast.report.comparison.comparable import Group, difference, tabled
from holdfast.report.comparison.compare import Comparison, Contest, Pair, distinct_estimates

USUAL = 0.95
"""The confidence of an interval that states none."""


@dataclass(frozen=True)
class Cell:
    """One number as it is printed."""

    estimate: Estimate
    mark: str
    """``best``, ``tied`` (for best) or nothing."""
    track: tuple[float, float, float] | None
    """Positions of low, value and high between the row's ends, in percent."""

    @property
    def value(self) -> str:
        """Return the value in print, or the word undefined."""
        return text.value(self.estimate, self.estimate.value)

    @property
    def interval(self) -> str:
        """Return the interval in print, with its confidence where that is not the usual one."""
        return interval(self.estimate)

    @property
    def defined(self) -> bool:
        """Return whether there is a value."""
        return not isnan(self.estimate.value)

    @property
    def says_nothing(self) -> bool:
        """Whether the bound of a fraction is trivial."""
        e = self.estimate
        trivial = {Claim.UPPER: 1.0, Claim.LOWER: 0.0}.get(e.claim)
        # An attack that found nothing says so much; a certificate that reaches nothing does not.
        proof = (e.better, e.claim) in (("lower", Claim.UPPER), ("higher", Claim.LOWER))
        return proof and is_share(e.unit) and e.value == trivial

    @property
    def note(self) -> str:
        """Return the method of the number in one line."""
        e = self.estimate
        kind = "" if "no interval" in e.method else f"{e.confidence:.0%} interval: "
        how = f"{kind}{e.method}; n = {e.n:,}" if self.defined else "undefined"
        return f"{how}; {e.reason}" if e.reason else how


@dataclass(frozen=True)
class Row:
    """One quantity under one condition for every encoder."""

    first: str
    rest: str
    cells: tuple[Cell | None, ...]
    """None where the encoder was not measured."""
    span: int = 1
    """Number of rows that share ``first``; 0 except in the first of them."""
    contest: Contest | None = None
    """Who beats whom in this row."""
    written: str = ""
    """The ball as settings, gates and flags write it."""

    @property
    def like(self) -> Estimate:
        """Return the first of its numbers, which states quantity and conditions of all."""
        return next(cell.estimate for cell in self.cells if cell)

    @property
    def where(self) -> str:
        """Return the condition on one line; empty for all images."""
        return " · ".join(filter(None, (self.first, self.rest)))

    def defined(self, table: Table, among: Collection[str] | None = None) -> dict[str, Cell]:
        """Return the defined numbers of the encoders of ``table``, or of those ``among`` them."""
        chosen, cells = table.encoders if among is None else among, zip(table.encoders, self.cells, strict=True)
        return {name: cell for name, cell in cells if cell and cell.defined and name in chosen}

    def missing(self, table: Table) -> tuple[str, ...]:
        """Return which of the encoders that ``table`` ranks have no number here."""
        return tuple(name for name in table.ranked if name not in self.defined(table))

    def firsts(self, encoders: Sequence[str]) -> tuple[str, ...]:
        """Return which of the table's ``encoders`` hold the first place, alone or tied."""
        return tuple(name for name, cell in zip(encoders, self.cells, strict=True) if cell and cell.mark)


@dataclass(frozen=True)
class Section:
    """The rows of one quantity: numbers of one claim, unit and direction."""

    evaluation: str
    robustness: bool
    like: Estimate
    rows: tuple[Row, ...]

    @property
    def title(self) -> str:
        """Return the quantity in words."""
        return text.name_of(self.like)


@dataclass(frozen=True)
class Table:
    """Sections over the same encoders."""

    title: str
    encoders: tuple[str, ...]
    baselines: tuple[str, ...]
    collapsed: tuple[str, ...]
    sections: tuple[Section, ...]

    @property
    def ranked(self) -> tuple[str, ...]:
        """Return the encoders that are there to be chosen among: no baselines, none that has collapsed."""
        return tuple(name for name in self.encoders if name not in (*self.baselines, *self.collapsed))

    @property
    def notes(self) -> tuple[str, ...]:
        """Return why values are undefined or samples were left out, each reason once."""
        reasons: dict[tuple[str, str], dict[str, None]] = {}
        for section in self.sections:
            for row in section.rows:
                for name, cell in zip(self.encoders, row.cells, strict=True):
                    if cell and (cell.estimate.reason or not cell.defined):
                        reason = cell.estimate.reason or "undefined, and no reason was recorded"
                        reasons.setdefault((section.title, reason), {})[name] = None
            for name, reason in self._less_in_a_larger_ball(section):
                reasons.setdefault((section.title, reason), {})[name] = None
        titles = grouped(((reason, tuple(names)), title) for (title, reason), names in reasons.items())
        return tuple(
            f"{text.listed(which)}, {text.among(list(names), self.encoders)}: {reason}"
            for (reason, names), which in titles.items()
        )

    def _less_in_a_larger_ball(self, section: Section) -> Iterator[tuple[str, str]]:
        """Yield each encoder with a sentence where an attack found less in a ball that contains a smaller one.

        The larger ball then looks safer than the smaller, although what was found in the smaller lies in it too.
        """
        sign = {("lower", Claim.LOWER): 1, ("higher", Claim.UPPER): -1}.get((section.like.better, section.like.claim))
        by_attack: dict[tuple[str, str], list[tuple[float, Row]]] = {}
        for row in section.rows if sign else ():
            if ":" in row.written:
                norm, radius = text.norm_and_radius(row.written)
                by_attack.setdefault((norm, row.rest), []).append((radius, row))
        for (_, attack), rows in by_attack.items():
            for (_, small), (_, large) in pairwise(sorted(rows, key=lambda each: each[0])):
                for name, before, after in zip(self.encoders, small.cells, large.cells, strict=True):
                    if (
                        before and after and sign
                        and sign * after.estimate.value < sign * before.estimate.value and before.value != after.value
                    ):  # fmt: skip
                        yield name, f"{attack} found less at {large.first} than at {small.first}, which holds there too"


def interval(estimate: Estimate) -> str:
    """Return the interval of ``estimate``, with its confidence unless that is the 95% which readers expect."""
    ends = text.interval(estimate)
    return f"{ends} ({estimate.confidence:.0%})" if ends.startswith("[") and estimate.confidence != USUAL else ends


def summary(groups: Sequence[Group], comparison: Comparison) -> tuple[Table, ...]:
    """Return the headline numbers: one table per set of images, and one more for each further protocol on it."""
    main: dict[str, dict[str, Group]] = {}
    tables = []
    for part in tabled(groups):
        first, images = part[0].first, part[0].first.images
        groups_of_main = main.get(images.fingerprint)
        if groups_of_main is not None:
            title = f"{first.title}, with {difference(first, groups_of_main[first.evaluation].first)}"
        else:
            main[images.fingerprint] = {group.first.evaluation: group for group in part}
            title = f"On {text.counted(images.count, 'image')} of {images.name}"
            if len({g.first.images.fingerprint for g in groups if g.first.images.name == images.name}) > 1:
                title += f" ({images.fingerprint[:6]})"
        tables.append(table(title, part, comparison, headline=True))
    return tuple(tables)


def table(title: str, groups: Sequence[Group], comparison: Comparison, headline: bool = False) -> Table:
    """Return the table of ``groups``, which share their images and differ in evaluation: all numbers or the headline."""
    encoders = tuple(name for name in comparison.encoders if any(name in group.encoders for group in groups))
    sections = [part for group in groups for part in _sections(group, encoders, comparison, headline)]
    baseline_names, collapsed = (
        tuple(name for name in encoders if name in some) for some in (comparison.baselines, comparison.collapsed)
    )
    return Table(title, encoders, baseline_names, collapsed, tuple(sections))


def _sections(group: Group, encoders: Sequence[str], comparison: Comparison, headline: bool) -> list[Section]:
    quantities = [like for like in distinct_estimates(group) if like.quantity in group.first.headline or not headline]
    parts = grouped(((like.quantity, like.claim), like) for like in quantities)
    return [
        Section(group.first.evaluation, group.first.robustness, likes[0], _rows(group, likes, encoders, comparison))
        for likes in parts.values()
    ]


def _rows(group: Group, likes: Sequence[Estimate], encoders: Sequence[str], comparison: Comparison) -> tuple[Row, ...]:
    """Return one row per estimate: by ball, then the attacks on one divergence side by side."""
    rest = grouped((text.conditions(like.conditions, ("ball", "attack")), like) for like in likes)
    blocks = grouped((like.conditions.get("ball", ""), like) for like in likes)
    order = {id(like): place for place, like in enumerate(like for same in rest.values() for like in same)}
    rows = []
    for ball, block in blocks.items():
        for place, like in enumerate(sorted(block, key=lambda like: order[id(like)])):
            contest = comparison.contest(group.key, like)
            cells = _cells(group, like, encoders, contest)
            under = text.conditions(like.conditions, ("ball",), like.aim)
            rows.append(Row(text.ball(ball), under, cells, 0 if place else len(block), contest, ball))
    return tuple(rows)


def _cells(group: Group, like: Estimate, encoders: Sequence[str], contest: Contest | None) -> tuple[Cell | None, ...]:
    estimates = group.row(like)
    best = contest.best if contest and len(contest.ranks) > 1 else ()
    finite = [value for e in estimates.values() for value in (e.low, e.value, e.high) if isfinite(value)]
    ends = (min(finite), max(finite)) if finite else (0.0, 0.0)
    return tuple(
        Cell(estimate, ("best" if len(best) == 1 else "tied") if name in best else "", _track(estimate, ends))
        if (estimate := estimates.get(name))
        else None
        for name in encoders
    )


def _track(estimate: Estimate, ends: tuple[float, float]) -> tuple[float, float, float] | None:
    points = (estimate.low, estimate.value, estimate.high)
    if ends[0] == ends[1] or not all(map(isfinite, points)):
        return None
    low, value, high = (round(100 * (point - ends[0]) / (ends[1] - ends[0]), 1) for point in points)
    return low, value, high


def pairs(table: Table) -> tuple[tuple[str, str], ...]:
    """Return every two encoders of ``table`` that are compared somewhere in it."""
    contests = [row.contest for section in table.sections for row in section.rows if row.contest]
    return tuple(dict.fromkeys((pair.a, pair.b) for contest in contests for pair in contest.pairs))


def pairs_in_table(table: Table) -> tuple[tuple[str, str], ...]:
    """Return the pairs that stand in the table itself: the only one of two encoders; others get a table of their own."""
    return pairs(table) if len(table.encoders) == 2 else ()


def table_of_differences(table: Table) -> Table:
    """Return ``table`` with those of its rows alone whose differences get a table of their own."""
    sections = () if pairs_in_table(table) else table.sections
    compared = (replace(s, rows=tuple(row for row in s.rows if row.contest and row.contest.pairs)) for s in sections)
    return replace(table, sections=tuple(section for section in compared if section.rows))


def head(names: tuple[str, str]) -> str:
    """Return the heading of the differences of two encoders."""
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
    norm = text.norm_of(row.like)
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
