"""Count of better encoders over one table, for all forms of the report.

A condition counts only if it is one of robustness, not of the health or use of the embedding space, and if every encoder
to choose among has a number there: one that was not measured might have been the best.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from holdfast.core.records import Record
from holdfast.report import text
from holdfast.report.comparison.compare import Contest
from holdfast.report.comparison.tables import Table


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
    """Return the sentences on missing numbers."""
    return tuple(map(gap_sentence, tallied.gaps))


def gap_sentence(gap: Gap) -> str:
    """Return a sentence on the missing numbers of some encoders."""
    who, quantities = text.listed(list(gap.encoders)), ", ".join(map(text.words, gap.quantities))
    where = f"{text.counted(gap.conditions, 'condition')} ({quantities})"
    return f"{who} {text.have(gap.encoders)} no number in {where}, so no encoder is ranked there"


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
            # Where no encoder has a number there is nothing to rank.
            if 0 < len(who := row.missing(table)) < len(table.ranked):
                quantities_of.setdefault(who, []).append(section.like.quantity)
    for who, quantities in quantities_of.items():
        yield Gap(encoders=who, conditions=len(quantities), quantities=tuple(dict.fromkeys(quantities)))
