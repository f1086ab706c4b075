"""Rows of the first screen that results ask for themselves, under the same guard as the others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from holdfast.bounds.bound_findings import CONTRADICTIONS
from holdfast.core.records import Claim, Findings, Question, Result
from holdfast.core.statistics.summaries import summarise
from holdfast.report.comparison.comparable import groups
from holdfast.report.contents import Contents
from holdfast.report.files import Report, report
from holdfast.report.overview.first_rows import GROUPS, KINDS
from holdfast.report.overview.first_screen import FirstScreen
from holdfast.report.overview.tally import MOST, heading_of, questions
from holdfast.report.page.page import render
from holdfast.run.catalog import evaluations
from tests.report.overview.test_first_screen import kept
from tests.report.synthetic import breakaway, displacement, everything, ids, result, series


def screen(*results: Result) -> FirstScreen:
    return Contents(results, ()).first_screens[0]


def own(encoder: str, question: Question, name: str = "neighbours-kept", level: float = 0.5) -> Result:
    values = (np.arange(100) < 100 * level).astype(float)
    found = series("kept", {"ball": "linf:0.05", "attack": "guess"}, values, "share of samples", Claim.UPPER, "kept")
    findings = Findings(ids=ids(100), series=(found,), estimates=(summarise(found, "share", "higher"),))
    return result(name, encoder, findings, ("kept",), questions=(question,))


ASKING = Question(text="Is it kept?", quantities=("kept",), meaning="neighbours that stay", first_screen=True)


def test_a_measure_of_another_package_adds_its_row():
    results = [kept(name, {"linf:0.05": (0.5, 0.6)}) for name in "ab"] + [own(name, ASKING) for name in "ab"]
    rows = screen(*results).rows
    assert [row.kind.evaluation for row in rows] == ["certified-breakaway", "neighbours-kept"]
    assert rows[1].title.lower() == ASKING.meaning
    assert [cell.said for cell in rows[1].cells] == ["≤ 50%"] * 2
    assert rows[1].kind.group == "Attacked"
    silent = ASKING.model_copy(update={"first_screen": False})
    assert len(screen(*results[:2], *(own(name, silent) for name in "ab")).rows) == 1


def test_without_a_row_of_the_library_every_question_is_one():
    rows = screen(breakaway("a"), displacement("a")).rows
    assert [row.kind.evaluation for row in rows] == ["breakaway", "displacement"]


def test_there_are_never_more_rows_than_fit():
    many = [
        own("a", ASKING.model_copy(update={"meaning": f"kind {k}", "text": str(k)}), name=f"kind-{k}")
        for k in range(12)
    ]
    assert len(screen(*many).rows) == MOST == 9


def test_a_question_under_the_title_of_a_row_is_told_apart():
    title = next(kind.title for kind in KINDS if kind.evaluation == "certified-breakaway")
    asking = ASKING.model_copy(update={"meaning": title})
    titles = [row.title for row in screen(kept("a", {"linf:0.05": (0.5, 0.6)}), own("a", asking)).rows]
    assert titles[0] == title
    assert len(set(titles)) == 2


def test_the_strongest_attack_is_shown_at_the_radius_where_encoders_differ_most():
    (row,) = screen(breakaway("digits-random"), breakaway("digits-robust")).rows
    shown = {cell.encoder: cell.estimates[0] for cell in row.cells}
    for name, estimate in shown.items():
        same = [
            e.value for e in breakaway(name).estimates
            if e.quantity == estimate.quantity
            and all(e.conditions[key] == estimate.conditions[key] for key in ("ball", "divergence"))
        ]  # fmt: skip
        assert len(same) > 1, "vacuous fixture"
        assert estimate.value == min(same)


@pytest.mark.parametrize("share", [0.2, 0.4])
def test_violated_certificates_are_red_even_where_no_row_is(share: float):
    broken = kept("a", {"linf:0.05": (share, 0.5)}, count=3)
    alone = broken.model_copy(
        update={"questions": (), "evaluation": "certified-overlap"}
    )  # which has no row of the library
    shown = screen(alone)
    assert shown.rows == ()
    assert "3" in shown.red
    assert shown.red in render(Contents([alone], ()))


def test_every_evaluation_has_a_heading():
    for name, kind in evaluations().items():
        one = result(name, "a", Findings(ids=()), kind.headline, heading=kind.heading)
        assert bool(one.heading) == (heading_of(one) not in GROUPS)


QUESTIONS = json.loads(Path(__file__).with_name("questions.json").read_text())
"""In their order; without an evaluation the question of all certificates."""


def test_the_evaluations_answer_the_known_questions():
    certified = [name for name, kind in evaluations().items() if CONTRADICTIONS in kind.questions]
    results = [result(name, "a", Findings(ids=()), kind.headline) for name, kind in evaluations().items()]
    found = questions(groups(results))
    assert [(question.text, list(question.quantities)) for question in found] == [
        (question["text"], question["quantities"]) for question in QUESTIONS
    ]
    named = [q["evaluation"] or certified for q in QUESTIONS]
    assert list(found.values()) == [[name] if isinstance(name, str) else name for name in named]
    assert len(certified) == 8


def test_every_question_has_a_place_of_its_own():
    found = {question for kind in evaluations().values() for question in kind.questions}
    assert len({question.text for question in found}) == len({question.place for question in found}) == len(found)


def test_report_json_has_the_screen():
    results, failures = everything()
    contents = Contents(results, failures)
    again = Report.model_validate_json(report(contents).model_dump_json())
    (shown,), (first,) = again.first_screens, contents.first_screens
    assert [row.title for row in shown.rows] == [row.title for row in first.rows]
    assert (shown.leader, shown.verdict, shown.encoders) == (first.leader, first.verdict, first.encoders)
    for row, own in zip(shown.rows, first.rows, strict=True):
        values = [estimate.value for cell in own.cells for estimate in cell.estimates]
        assert [e.value for cell in row.cells for e in cell.estimates] == pytest.approx(values, nan_ok=True)


def test_the_page_says_each_number_of_the_screen_once_with_its_interval():
    results = [kept("a", {"linf:0.05": (0.88, 0.92)}), kept("b", {"linf:0.05": (0.24, 0.36)})]
    first = screen(*results)
    quantities = [section.like.quantity for section in first.exact.sections]
    assert quantities == ["certified_nearest_neighbour_accuracy", "attacked_nearest_neighbour_accuracy"]
    marks = {cell.mark for section in first.exact.sections for row in section.rows for cell in row.cells if cell}
    assert marks == {""}, "one comparison at a time must not contradict those of the whole table"


@pytest.mark.parametrize(
    ("better", "claim", "level", "nothing"),
    [("lower", Claim.UPPER, 1.0, True), ("higher", Claim.LOWER, 0.0, True), ("lower", Claim.LOWER, 0.0, False),
     ("higher", Claim.LOWER, 1.0, False)],
)  # fmt: skip
def test_a_certificate_that_reaches_nothing_says_so(
    better: Literal["lower", "higher"], claim: Claim, level: float, nothing: bool
):
    found = series("kept", {}, np.full(100, level), "share of samples", claim, "kept")
    findings = Findings(ids=ids(100), series=(found,), estimates=(summarise(found, "share", better),))
    contents = Contents([result("made-up", "a", findings, ("kept",))], ())
    (section,) = contents.tables[0].sections
    (cell,) = section.rows[0].cells
    assert cell
    assert cell.says_nothing == nothing
    assert ("certifies nothing" in render(contents)) == nothing


def test_verdicts_are_one_trio():
    page = render(Contents(*everything()))
    assert '<span class="status proved">certified</span>' in page
    assert '<span class="status refuted">falsified</span>' in page
