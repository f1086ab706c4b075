"""The scorecard: one number per encoder and row, which encoder is best, and how often."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import inf, isfinite, isnan
from typing import Literal

from pydantic import Field

from holdfast.core.records import Claim, Conditions, Estimate, Number, Question, Record, Result
from holdfast.report import text
from holdfast.report.comparison.comparable import Group, tabled
from holdfast.report.comparison.compare import Case, Comparison, Contest, case, jointly_ranked
from holdfast.report.comparison.tables import Cell, Row, Section, Table, table
from holdfast.report.overview.alerts import alerts
from holdfast.report.overview.study import Evidence, study

# The scorecard: plain questions, one number per encoder, and who answers best. Every form of the report prints it.
#
# An attack is judged by its worst case: of all conditions the one in which the encoders fare worst. All encoders are
# compared in that same condition, on the same images, and places hold at 95% for the whole scorecard together. The
# results themselves name the questions. Rows stand in the order of the study that says which numbers foresee robust
# later use.

Standing = Literal[
    "best", "tied", "behind", "worst", "not comparable", "held", "no violation found", "refuted", "unknown", "baseline",
    "collapsed", "undefined", "not measured", ""
]  # fmt: skip
"""What is said of an encoder: its place among the others, or the answer to a check; nothing where it is alone."""
SAID = {Claim.LOWER: "at least", Claim.UPPER: "at most", Claim.ESTIMATE: "about"}


class Answer(Record):
    """One cell: an encoder's number, what it claims, how sure it is, and the encoder's standing."""

    encoder: str
    evaluation: str
    """The section that explains the number."""
    quantity: str = ""
    """Which number it is, as the results call it; empty where none was measured."""
    conditions: Conditions = Field(default_factory=dict)
    """Under which conditions it was taken; of a sum, those of its largest part."""
    failing: str = ""
    """The quantity in words, where a question has several checks and the encoder fails this one."""
    said: str
    """The claim in words: at least, at most, about; empty for a count and where there is no number."""
    value: Number
    low: Number
    high: Number
    norm: str = ""
    """The norm of the change of pixels that it is the radius of; empty for other numbers."""
    beyond: str = ""
    """What an infinite number is printed as: more than the widest radius searched."""
    n: int
    counts: str = ""
    """What ``n`` counts, where that is not images."""
    planned: int | None = None
    """How many samples were planned, where a run ended before all were looked at."""
    confidence: float
    standing: Standing
    warnings: tuple[str, ...]

    @property
    def number(self) -> str:
        """Return the value in print."""
        return self._print(self.value)

    @property
    def interval(self) -> str:
        """Return the interval in print; empty where there is none."""
        nothing = isnan(self.low + self.high) or self.low == inf
        return "" if nothing else f"[{self._print(self.low)}, {self._print(self.high)}]"

    def _print(self, number: float) -> str:
        return self.beyond if number == inf and self.beyond else text.radius(self.norm, number)

    @property
    def sure(self) -> str:
        """Return in words from how many samples the number comes, and what its interval is if not the usual one."""
        share = f"{self.confidence:.0%} interval" if self.interval and self.confidence != 0.95 else ""
        missing = "" if self.interval or isnan(self.value) or not self.said or self.low == inf else "no interval"
        partial = "" if self.planned is None else f"partial: {self.planned:,} samples were planned"
        return ", ".join(filter(None, (self.failing, f"n = {self.n:,} {self.counts}".strip(), partial, share, missing)))

    @property
    def warned(self) -> str:
        """Return how many warnings concern the number."""
        return text.counted(len(self.warnings), "warning") if self.warnings else ""

    def __str__(self) -> str:
        """Return the cell on one line, for tables of text."""
        if self.standing == "not measured":
            return self.standing
        shown = "" if isnan(self.value) else f"{self.said} {self.number} {self.interval}".strip()
        words = ", ".join(filter(None, (shown, self.standing)))
        return f"{words} ({', '.join(filter(None, (self.sure, self.warned)))})"


class Line(Record):
    """One question with the answers of all encoders."""

    question: str
    meaning: str
    evaluation: str
    quantity: str
    """The number that all answers are; empty where each is the worst of several checks and names its own."""
    conditions: Conditions
    aim: str = ""
    """What the attack goes for, in words, where the conditions name that in short."""
    better: Literal["lower", "higher", "neither"]
    study: Evidence | None = None
    """Whether numbers like this one foresaw how robust probes are; None where that was not looked at."""
    leads: bool = False
    """Whether it stands first whatever the study says."""
    answers: tuple[Answer, ...]

    @property
    def under(self) -> str:
        """Return the better direction, what the number is, and under which condition it was taken."""
        condition = f" ({text.conditions(self.conditions, aim=self.aim)})" if self.conditions else ""
        return f"{text.ARROWS[self.better]} {self.meaning}{condition}".strip()

    @property
    def place(self) -> tuple[int, float]:
        """Return what sorts lines: those that lead, what the study compared all others with, then what it says."""
        if self.leads:
            return -1, 0.0
        return self.study.place if self.study else (0 if self.evaluation == study().reference else 3, 0.0)

    @property
    def badge(self) -> str:
        """Return in two or three words what the study says of the number; empty where that is nothing."""
        return self.study.badge if self.study else ""


class Scorecard(Record):
    """The questions that the results on one set of images answer."""

    title: str
    encoders: tuple[str, ...]
    lines: tuple[Line, ...]

    @property
    def order(self) -> str:
        """Return why the lines stand in their order."""
        return study().order

    @property
    def studied(self) -> tuple[str, ...]:
        """Return what the study says of each number that it looked at."""
        return tuple(f"{line.question} {line.study.sentence}" for line in self.lines if line.study)


def scorecards(groups: Sequence[Group], comparison: Comparison, tables: Sequence[Table]) -> tuple[Scorecard, ...]:
    """Return a scorecard per table of the summary ``tables``, without those that answer no question."""
    cards = []
    for part, short in zip(tabled(groups), tables, strict=True):
        whole = table(short.title, part, comparison)
        by_question = questions(part)
        shown = {question: row for question, names in by_question.items() if (row := _shown(question, names, whole))}
        ranks = jointly_ranked([row.contest for _, row in shown.values() if row.contest])
        lines = [
            line
            for question, names in by_question.items()
            if (line := _line(question, names, whole, part, shown, ranks))
        ]
        if lines:
            lines.sort(key=lambda line: line.place)
            cards.append(Scorecard(title=short.title, encoders=whole.encoders, lines=tuple(lines)))
    return tuple(cards)


def questions(part: Sequence[Group]) -> dict[Question, list[str]]:
    """Return each question that results name with the evaluations whose numbers answer it, in the order of their places."""
    evaluations: dict[Question, list[str]] = {}
    for group in part:
        for question in dict.fromkeys(question for result in group.results for question in result.questions):
            evaluations.setdefault(question, []).append(group.first.evaluation)
    return dict(sorted(evaluations.items(), key=lambda item: item[0].place))


def _sections(question: Question, evaluations: Sequence[str], whole: Table) -> list[Section]:
    sections = [
        section
        for section in whole.sections
        if section.like.quantity in question.quantities and section.evaluation in evaluations
    ]
    defined = any(cell and cell.defined for section in sections for row in section.rows for cell in row.cells)
    return sections if defined else []


Shown = Mapping[Question, tuple[Section, Row]]
Ranks = Mapping[Case, Mapping[str, int]]


def _shown(question: Question, evaluations: Sequence[str], whole: Table) -> tuple[Section, Row] | None:
    """Return the row that answers a question, with its section; none for a check, which has no place among others."""
    sections = _sections(question, evaluations, whole)
    if not sections or question.check:
        return None
    section = min(sections, key=lambda section: question.quantities.index(section.like.quantity))
    if question.select == "best":
        return _tightest([each for each in sections if each.like.quantity == section.like.quantity], whole)
    return section, section.rows[0] if question.select == "first" else max(
        reversed(section.rows), key=lambda row: _harm(row, whole)
    )


def _tightest(sections: Sequence[Section], whole: Table) -> tuple[Section, Row]:
    """Return the row of the ball recorded first in which the encoders have the best numbers, by whichever evaluation."""

    def ball(row: Row) -> object:
        return next(cell.estimate.conditions.get("ball") for cell in row.cells if cell)

    def rank(candidate: tuple[Section, Row]) -> tuple[int, float]:
        count, harm = _harm(candidate[1], whole)
        return count, -harm

    first = ball(sections[0].rows[0])
    return max(((section, row) for section in sections for row in section.rows if ball(row) == first), key=rank)


def _line(
    question: Question, evaluations: Sequence[str], whole: Table, part: Sequence[Group], shown: Shown, ranks: Ranks
) -> Line | None:
    groups = {group.first.evaluation: group for group in part}
    if question not in shown:
        sections = _sections(question, evaluations, whole)
        return _checked(question, sections, whole, groups) if sections else None
    section, row = shown[question]
    joint = ranks[case(row.contest)] if row.contest else {}
    answers = [
        _answer(
            name, section.evaluation, cell.estimate if cell else None, _place(name, cell, joint, whole), group, question
        )
        for group in (groups[section.evaluation],)
        for name, cell in zip(whole.encoders, row.cells, strict=True)
    ]
    estimate = next(cell.estimate for cell in row.cells if cell)
    return Line(
        question=question.text,
        meaning=question.meaning,
        evaluation=section.evaluation,
        quantity=section.like.quantity,
        conditions=estimate.conditions,
        aim=estimate.aim,
        better=section.like.better,
        study=study().of(section.evaluation, section.like.quantity),
        leads=question.place < 0,
        answers=tuple(answers),
    )


def _harm(row: Row, whole: Table) -> tuple[int, float]:
    """Return how badly the encoders fare in ``row``: first where all of them have a number, then by their mean."""
    cells = [cell for name, cell in zip(whole.encoders, row.cells, strict=True) if name in whole.ranked]
    values = [cell.estimate.value for cell in cells if cell and isfinite(cell.estimate.value)]
    better = next(cell.estimate.better for cell in row.cells if cell)
    sign = -1 if better == "higher" else 1
    return len(values), sign * sum(values) / max(1, len(values))


def _place(name: str, cell: Cell | None, ranks: Mapping[str, int], whole: Table) -> Standing:
    """Return where an encoder stands among the others, by ranks that hold together in the whole scorecard."""
    if cell is None:
        return "not measured"
    if name in whole.collapsed:
        return "collapsed"
    if not cell.defined:
        return "undefined"
    if name in whole.baselines:
        return "baseline"
    if len(whole.ranked) == 1:
        return ""
    if name not in ranks:
        return "not comparable"
    if ranks[name] == 1:
        return "best" if list(ranks.values()).count(1) == 1 else "tied"
    return "worst" if ranks[name] == len(ranks) else "behind"


def _checked(question: Question, sections: Sequence[Section], whole: Table, groups: Mapping[str, Group]) -> Line:
    """Return the answers to a check, from all of its numbers: counts are added up, of shares the worst is shown."""
    answers = []
    for place, name in enumerate(whole.encoders):
        estimates = [
            (section, cell.estimate)
            for section in sections
            for row in section.rows
            if (cell := row.cells[place]) and cell.defined
        ]
        if not estimates:
            answers.append(
                _answer(name, sections[0].evaluation, None, "not measured", groups[sections[0].evaluation], question)
            )
            continue
        section, worst = max(estimates, key=lambda item: (item[1].value, item[1].low, item[1].n))
        if worst.unit == "certificates":
            total, n = sum(e.value for _, e in estimates), sum(e.n for _, e in estimates)
            worst = worst.model_copy(update={"value": total, "n": n})
        results = [
            groups[e].results[groups[e].encoders.index(name)] for e in dict.fromkeys(s.evaluation for s, _ in estimates)
        ]
        standing, group = _outcome(worst, results), groups[section.evaluation]
        answers.append(_answer(name, section.evaluation, worst, standing, group, question))
    quantities = dict.fromkeys(section.like.quantity for section in sections)
    return Line(
        question=question.text,
        meaning=question.meaning,
        evaluation=sections[0].evaluation,
        quantity="" if len(quantities) > 1 else next(iter(quantities)),
        conditions={},
        better=sections[0].like.better,
        leads=question.place < 0,
        answers=tuple(answers),
    )


def _outcome(worst: Estimate, results: Sequence[Result]) -> Standing:
    """Return whether the check was passed: what was never looked at passes nothing."""
    statuses = {verdict.status for result in results for verdict in result.findings.verdicts}
    if worst.unit == "certificates":
        return "refuted" if worst.value else "held" if worst.n else "unknown"
    if "refuted" in statuses:
        return "refuted"
    return "no violation found" if not worst.value and worst.n else "unknown"


def _answer(
    name: str, evaluation: str, estimate: Estimate | None, standing: Standing, group: Group, question: Question
) -> Answer:
    own = [Group((result,), (name,)) for label, result in group.items() if label == name]
    warned = [alert.warning for alert in alerts(own)]
    planned = dict(group.items())[name].planned if estimate else None
    if estimate is None:
        nan = float("nan")
        return Answer(
            encoder=name, evaluation=evaluation, said="", value=nan, low=nan, high=nan, n=0, confidence=0.95,
            standing=standing, warnings=tuple(warned),
        )  # fmt: skip
    return Answer(
        encoder=name,
        evaluation=evaluation,
        quantity=estimate.quantity,
        conditions=estimate.conditions,
        failing=text.name_of(estimate) if question.check and estimate.value and len(question.quantities) > 1 else "",
        said="" if not isfinite(estimate.value) or estimate.unit == "certificates" else SAID[estimate.claim],
        value=estimate.value,
        low=estimate.low,
        high=estimate.high,
        norm=text.norm_of(estimate),
        beyond=text.value(estimate, inf) if inf in (estimate.value, estimate.high) else "",
        n=estimate.n,
        counts=question.counts,
        planned=planned,
        confidence=estimate.confidence,
        standing=standing,
        warnings=tuple(warned),
    )


# Who won how often: one count over one table, which every form of the report prints.
#
# A condition counts only if it is one of robustness, not of the health or use of the space, and if every encoder to
# choose among has a number there: whoever was not measured might have won it.


class Meeting(Record):
    """In how many conditions either of two encoders is better, and in how many they are tied."""

    a: str
    b: str
    a_better: int
    b_better: int
    tied: int


class Gap(Record):
    """In how many conditions encoders have no number, and of which quantities."""

    encoders: tuple[str, ...]
    conditions: int
    quantities: tuple[str, ...]


class Tally(Record):
    """The outcome of all comparisons in one table."""

    table: str
    conditions: int
    """Those that count: of robustness, with a better direction, and a comparison of every two encoders."""
    telling: int
    """Those of them in which not all encoders are tied."""
    questions: int
    """The evaluations that these conditions are views of: conditions of one attack the same images, so they are no votes."""
    telling_questions: int
    """Those of them with a telling condition."""
    firsts: dict[str, int]
    """At how many telling questions each encoder is best or tied for best in every telling condition."""
    meetings: tuple[Meeting, ...]
    gaps: tuple[Gap, ...]
    """Why other conditions do not count."""

    @property
    def leaders(self) -> tuple[str, ...]:
        """Return who is best or tied for best at the most questions; nobody where none is so throughout any question."""
        most = max(self.firsts.values(), default=0)
        return tuple(name for name, count in self.firsts.items() if count == most and most)


def tally(table: Table) -> Tally:
    """Return the outcome of all comparisons in ``table``."""
    rows = [row for part in table.sections if part.robustness for row in part.rows]
    contests = [row.contest for row in rows if row.contest and row.contest.ranks]
    several = [contest for contest in contests if len(contest.ranks) > 1]
    telling = [contest for contest in several if len(contest.best) < len(contest.ranks)]
    best_at = {
        question: set.intersection(*(set(contest.best) for contest in telling if contest.evaluation == question))
        for question in dict.fromkeys(contest.evaluation for contest in telling)
    }
    return Tally(
        table=table.title,
        conditions=len(several),
        telling=len(telling),
        questions=len({contest.evaluation for contest in several}),
        telling_questions=len(best_at),
        firsts={name: sum(name in best for best in best_at.values()) for name in table.ranked},
        meetings=tuple(_meetings(contests)),
        gaps=tuple(_gaps(table)),
    )


def sentences(tallied: Tally) -> tuple[str, ...]:
    """Return the tally in words."""
    return (*map(_meeting_sentence, tallied.meetings), *map(gap_sentence, tallied.gaps))


def gap_sentence(gap: Gap) -> str:
    """Return what is missing of some encoders, in words."""
    who, quantities = text.listed(list(gap.encoders)), ", ".join(map(text.words, gap.quantities))
    where = f"{text.counted(gap.conditions, 'condition')} ({quantities})"
    return f"{who} {text.have(gap.encoders)} no number in {where}, so nobody is ranked there"


def _meetings(contests: list[Contest]) -> Iterator[Meeting]:
    outcomes: dict[tuple[str, str], Counter[str]] = {}
    for contest in contests:
        for pair in contest.pairs:
            outcomes.setdefault((pair.a, pair.b), Counter())[pair.difference.outcome] += 1
    for (a, b), counted in outcomes.items():
        yield Meeting(a=a, b=b, a_better=counted["a is better"], b_better=counted["b is better"], tied=counted["tied"])


def _gaps(table: Table) -> Iterator[Gap]:
    if len(table.ranked) < 2:
        return
    quantities_of: dict[tuple[str, ...], list[str]] = {}
    for section in table.sections:
        for row in section.rows if section.like.better != "neither" else ():
            # Where nobody has a number there is nothing to be ranked.
            if 0 < len(who := row.missing(table)) < len(table.ranked):
                quantities_of.setdefault(who, []).append(section.like.quantity)
    for who, quantities in quantities_of.items():
        yield Gap(encoders=who, conditions=len(quantities), quantities=tuple(dict.fromkeys(quantities)))


def _meeting_sentence(meeting: Meeting) -> str:
    a, b = meeting.a, meeting.b
    counts = {f"{a} is better": meeting.a_better, f"{b} is better": meeting.b_better, "tied": meeting.tied}
    total = sum(counts.values())
    outcomes = ", ".join(f"{outcome} in {count}" for outcome, count in counts.items() if count)
    return f"{a} and {b}: {outcomes} of {text.counted(total, 'condition')} of robustness"
