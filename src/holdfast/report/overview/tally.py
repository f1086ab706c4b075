"""Count of better encoders over one table, for all forms of the report.

A condition counts only if it is about robustness, not about the embedding space itself, and if every encoder to choose among
has a number: a missing encoder could be the best.

Also here: first-screen rows for the questions that results define themselves, including those of other packages. A
question is a row if it asks to be one, or if nothing else of its results is on the first screen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.core.records import Question, Record, Result, grouped
from holdfast.core.statistics.summaries import is_share
from holdfast.report import text
from holdfast.report.comparison.comparable import Group
from holdfast.report.comparison.tables import Row, Section, Table
from holdfast.report.overview.first_rows import Form, Kind, Picked, candidates, most_telling


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

    @property
    def sentence(self) -> str:
        """Return a sentence on the missing numbers of these encoders, without its full stop."""
        who, quantities = text.listed(self.encoders), ", ".join(map(text.words, self.quantities))
        where = f"{text.counted(self.conditions, 'condition')} ({quantities})"
        return f"{who} {text.have(self.encoders)} no number in {where}, so no encoder is ranked there"


class Tally(Record):
    """The outcome of all comparisons in one table."""

    table: str
    conditions: int
    """Conditions that count: robustness, with a better direction and paired comparisons."""
    telling: int
    """Conditions in which not all encoders are tied."""
    questions: int
    """The evaluations that these conditions are views of: conditions of one attack the same images, so they are no votes."""
    telling_questions: int
    """Questions with a telling condition."""
    firsts: dict[str, int]
    """At how many telling questions each encoder is best or tied for best in every telling condition."""
    meetings: tuple[Meeting, ...]
    gaps: tuple[Gap, ...]
    """Why other conditions do not count."""

    @property
    def leaders(self) -> tuple[str, ...]:
        """Return who is best or tied for best at the most questions; none where no encoder is so throughout a question."""
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
    outcomes = grouped(((pair.a, pair.b), pair.difference.outcome) for contest in contests for pair in contest.pairs)
    return Tally(
        table=table.title,
        conditions=len(several),
        telling=len(telling),
        questions=len({contest.evaluation for contest in several}),
        telling_questions=len(best_at),
        firsts={name: sum(name in best for best in best_at.values()) for name in table.ranked},
        meetings=tuple(
            Meeting(
                a=a,
                b=b,
                a_better=all_.count("a is better"),
                b_better=all_.count("b is better"),
                tied=all_.count("tied"),
            )
            for (a, b), all_ in outcomes.items()
        ),
        gaps=tuple(_gaps(table)),
    )


def _gaps(table: Table) -> Iterator[Gap]:
    if len(table.ranked) < 2:
        return
    missing = (
        (who, section.like.quantity)
        for section in table.sections
        for row in (section.rows if section.like.better != "neither" else ())
        # Where no encoder has a number there is nothing to rank.
        if 0 < len(who := row.missing(table)) < len(table.ranked)
    )
    for who, quantities in grouped(missing).items():
        yield Gap(encoders=who, conditions=len(quantities), quantities=tuple(dict.fromkeys(quantities)))


OTHERS = "Other measures"
"""The heading of evaluations that have a page of their own: drift, thresholds, parity."""
MOST = 9
"""Rows of a first screen."""
PROOFS = (
    *("certified-", "linear-radius", "instance-accuracy", "margin-distribution"),
    *("smoothed-", "center-", "feature-", "randomized-"),
)
"""Prefixes of the names of evaluations that prove."""
EVERYDAY = ("common-", "corruption-error")
LABELLED = ("probe-", "robust-accuracy", "grad-cam")


def heading_of(result: Result) -> str:
    """Return the heading under which the numbers and notes of an evaluation stand."""
    if result.heading:
        return OTHERS
    for under, prefixes in (("Proved and attacked", PROOFS), ("Everyday changes", EVERYDAY), ("Labels", LABELLED)):
        if result.evaluation.startswith(prefixes):
            return under
    attacked = any("attack" in estimate.conditions for estimate in result.estimates)
    # Checks of the attacks stand beside them.
    return "Attacked" if attacked or any(question.check for question in result.questions) else "Space"


def questions(part: Sequence[Group]) -> dict[Question, list[str]]:
    """Return each question that results name with the evaluations that answer it, in the order of their places."""
    evaluations = grouped(
        (question, group.first.evaluation)
        for group in part
        for question in dict.fromkeys(question for result in group.results for question in result.questions)
    )
    return dict(sorted(evaluations.items(), key=lambda item: item[0].place))


def asked(part: Sequence[Group], whole: Table, shown: Sequence[Picked]) -> Iterator[Picked]:
    """Yield rows for questions: those that ask for one, or all where nothing is ``shown`` yet."""
    groups = {group.first.evaluation: group for group in part}
    titles = {each.kind.title for each in shown}
    left = MOST - len(shown)
    for question, evaluations in questions(part).items():
        if question.check or not left or (shown and not question.first_screen):
            continue
        if found := _row_of(question, evaluations, whole):
            section, row = found
            form: Form = "percent" if is_share(section.like.unit) else "plain"
            form = "radius" if text.norm_of(section.like) else form
            title = f"{question.meaning[:1].upper()}{question.meaning[1:]}"
            if title in titles:  # of another event, which the guard would refuse
                title = f"{title} ({groups[section.evaluation].first.title})"
            titles.add(title)
            kind = Kind(
                heading_of(groups[section.evaluation].first), title, question.meaning, section.evaluation,
                (section.like.quantity,), form, question.meaning, counts=question.counts,
            )  # fmt: skip
            yield Picked(kind, (row,), groups[section.evaluation])
            left -= 1


def _row_of(question: Question, evaluations: Sequence[str], whole: Table) -> tuple[Section, Row] | None:
    """Return the row that answers a question: of its first quantity that was measured."""
    sections = [
        section
        for quantity in question.quantities
        for section in whole.sections
        if section.like.quantity == quantity and section.evaluation in evaluations
    ]
    sections = [each for each in sections if each.like.quantity == sections[0].like.quantity]
    defined = [row for each in sections for row in each.rows if any(cell and cell.defined for cell in row.cells)]
    if not defined:
        return None
    if question.select == "first":
        row = defined[0]
    else:
        row = most_telling([(one,) for one in candidates(defined, whole)], whole)[0]
    return next((each, row) for each in sections if any(row is one for one in each.rows))
