"""Rows of the first screen for the questions that results name themselves, those of other packages among them.

A question is a row if it asks to be one, or if nothing else of its results is on the first screen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.core.records import Estimate, Question, Result
from holdfast.core.statistics.summaries import is_share
from holdfast.report import text
from holdfast.report.comparison.comparable import Group
from holdfast.report.comparison.tables import Row, Section, Table
from holdfast.report.overview.first_rows import Form, Kind, Picked, candidates, most_telling

OTHERS = "Other measures"
"""The heading of evaluations that have a page of their own: drift, thresholds, parity."""
MOST = 9
"""Rows of a first screen."""
PROOFS = (
    "certified-",
    "linear-radius",
    "instance-accuracy",
    "margin-distribution",
    "smoothed-",
    "center-",
    "feature-",
    "randomized-",
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
    evaluations: dict[Question, list[str]] = {}
    for group in part:
        for question in dict.fromkeys(question for result in group.results for question in result.questions):
            evaluations.setdefault(question, []).append(group.first.evaluation)
    return dict(sorted(evaluations.items(), key=lambda item: item[0].place))


def asked(part: Sequence[Group], whole: Table, shown: Sequence[Picked]) -> Iterator[Picked]:
    """Yield rows for questions: those that ask for one, or all where nothing is ``shown`` yet."""
    groups = {group.first.evaluation: group for group in part}
    titles = {each.kind.title for each in shown}
    left = MOST - len(shown)
    for question, evaluations in questions(part).items():
        if question.check or not left or (shown and not question.first_screen):
            continue
        if found := _row(question, evaluations, whole):
            section, row = found
            title = f"{question.meaning[:1].upper()}{question.meaning[1:]}"
            if title in titles:  # of another event, which the guard would refuse
                title = f"{title} ({groups[section.evaluation].first.title})"
            titles.add(title)
            kind = Kind(
                heading_of(groups[section.evaluation].first), title, question.meaning, section.evaluation,
                (section.like.quantity,), _form(section.like), question.meaning, counts=question.counts,
            )  # fmt: skip
            yield Picked(kind, (row,), groups[section.evaluation])
            left -= 1


def _row(question: Question, evaluations: Sequence[str], whole: Table) -> tuple[Section, Row] | None:
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


def _form(like: Estimate) -> Form:
    if text.norm_of(like):
        return "radius"
    return "percent" if is_share(like.unit) else "plain"
