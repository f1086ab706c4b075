"""The scorecard: the right number of each encoder, and no more said of it than is known."""

from __future__ import annotations

import json
from math import nan
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from holdfast.bounds.findings import CONTRADICTIONS
from holdfast.core.records import Claim, Estimate, Findings, Verdict
from holdfast.core.statistics import summarise
from holdfast.report.comparison.comparable import groups
from holdfast.report.contents import Contents
from holdfast.report.files import Report, report
from holdfast.report.overview.scorecard import Line, questions
from holdfast.report.printed import markdown
from holdfast.run.catalog import evaluations
from tests.report.synthetic import breakaway, displacement, everything, impersonation, result, series

Status = Literal["refuted", "no violation found", "unknown"]


def lines(*results) -> dict[str, Line]:
    return {line.question: line for card in Contents(results, ()).scorecards for line in card.lines}


def checked(evaluation: str, encoder: str, count: int, of: int, status: Status = "no violation found"):
    one = Estimate(
        quantity="contradictions", value=count, low=nan, high=nan, n=of, method="counted; no interval",
        unit="certificates", claim=Claim.LOWER, of="certificates that do not hold", better="lower",
    )  # fmt: skip
    verdict = Verdict(question="Does every certificate withstand attack?", status=status, reason="counted")
    return result(evaluation, encoder, Findings(ids=("x",) * 60, estimates=(one,), verdicts=(verdict,)), ())


def masked(encoder: str, wins: int, status: Status, n: int = 60):
    values = np.r_[np.ones(wins), np.zeros(n - wins)]
    found = [
        series(quantity, {}, own, "share of samples", Claim.ESTIMATE, "failed checks")
        for quantity, own in (("score_only_wins", values), ("zero_gradient_share", np.zeros(n)))
    ]
    verdict = Verdict(question="Do attacks with gradients find at least as much?", status=status, reason="counted")
    estimates = tuple(summarise(own, "mean", "lower") for own in found)
    return result("masking", encoder, Findings(ids=("x",) * n, estimates=estimates, verdicts=(verdict,)), ())


def test_an_attack_is_judged_by_its_worst_case_and_all_encoders_by_the_same():
    results = [breakaway("digits-random"), breakaway("digits-robust")]
    line = lines(*results)["Can an attacker make it mistake images?"]
    cases: dict[tuple[tuple[str, str], ...], list[float]] = {
        tuple(e.conditions.items()): [] for e in results[0].estimates if e.quantity == line.quantity
    }
    for one in results:
        for e in one.estimates:
            if e.quantity == line.quantity:
                cases[tuple(e.conditions.items())].append(e.value)
    assert len({tuple(values) for values in cases.values()}) > 2, "vacuous fixture"
    shown = [answer.value for answer in line.answers]
    assert sum(shown) == min(map(sum, cases.values()))
    assert cases[tuple(line.conditions.items())] == shown


@pytest.mark.parametrize("tighter", ["center-smoothing", "feature-smoothing"])
def test_of_two_certificates_of_one_quantity_the_tighter_leads(tighter: str):
    def smoothed(evaluation: str):
        found = []
        for ball, level in (("l2:0.25", 0.6), ("l2:0.1", 0.95)):
            values = np.full(20, level - 0.2 * (evaluation != tighter))
            where = {"ball": ball, "method": evaluation}
            found.append(series("certified_cosine_similarity", where, values, "cosine", Claim.LOWER, "similarity"))
        estimates = tuple(summarise(each, "median", "higher") for each in found)
        return result(evaluation, "a", Findings(ids=("x",) * 20, estimates=estimates), ("certified_cosine_similarity",))

    line = lines(smoothed("center-smoothing"), smoothed("feature-smoothing"))["What is certified once noise is added?"]
    assert line.evaluation == line.conditions["method"] == tighter
    assert [answer.value for answer in line.answers] == [0.6], "in the ball that was asked for first"


def test_each_encoder_has_its_standing_among_the_others():
    results = [breakaway(name) for name in ("digits-random", "digits-contrastive", "digits-robust")]
    line = lines(*results)["Can an attacker make it mistake images?"]
    assert [(a.encoder, a.standing) for a in line.answers] == [
        ("digits-random", "worst"),
        ("digits-contrastive", "behind"),
        ("digits-robust", "best"),
    ]
    assert all(a.said == "at most" for a in line.answers)
    alone = lines(breakaway("digits-random"))["Can an attacker make it mistake images?"]
    assert alone.answers[0].standing == ""
    equal = displacement("a"), displacement("a").model_copy(update={"encoder": breakaway("twin").encoder})
    assert {a.standing for a in lines(*equal)["How far can an attacker move it?"].answers} == {"tied"}


def test_nobody_is_worst_who_is_level_with_another():
    """Only whom all others beat is the worst; of two that share the last place, each is behind."""
    made = {"best": "digits-robust", "level": "digits-random", "twin": "digits-random"}
    results = [breakaway(like).model_copy(update={"encoder": breakaway(name).encoder}) for name, like in made.items()]
    line = lines(*results)["Can an attacker make it mistake images?"]
    assert [(a.encoder, a.standing) for a in line.answers] == [
        ("best", "best"),
        ("level", "behind"),
        ("twin", "behind"),
    ]


def test_who_was_not_measured_has_no_number_and_nobody_is_ranked():
    results = [breakaway("a"), breakaway("b"), displacement("a"), displacement("b"), displacement("c")]
    answers = lines(*results)["Can an attacker make it mistake images?"].answers
    assert [a.standing for a in answers] == ["not comparable", "not comparable", "not measured"]
    assert str(answers[2]) == "not measured"


def test_certificates_that_no_attack_entered_held_all_lists_together():
    held = lines(checked("certified-radius", "a", 0, 100), checked("certified-overlap", "a", 0, 50))
    (answer,) = held["Do the proofs withstand attack?"].answers
    assert (answer.standing, answer.value, answer.n) == ("held", 0, 150)
    broken = lines(checked("certified-radius", "a", 2, 100, "refuted"), checked("certified-overlap", "a", 0, 500))
    (answer,) = broken["Do the proofs withstand attack?"].answers
    assert (answer.standing, answer.value, answer.evaluation) == ("refuted", 2, "certified-radius")
    (answer,) = lines(checked("certified-radius", "a", 0, 0, "unknown"))["Do the proofs withstand attack?"].answers
    assert answer.standing == "unknown"


@pytest.mark.parametrize(
    ("wins", "status", "standing"),
    [(0, "no violation found", "no violation found"), (30, "refuted", "refuted"), (1, "unknown", "unknown")],
)
def test_gradients_without_a_violation_are_not_called_proved(wins, status, standing):
    (answer,) = lines(masked("a", wins, status))["Can the gradients be trusted?"].answers
    assert (answer.standing, answer.value) == (standing, wins / 60)


def test_a_line_of_several_checks_says_which_one_failed():
    """The share that only the score attack wins must not stand under the name of another check."""
    line = lines(masked("a", 3, "unknown"), masked("b", 0, "no violation found"))["Can the gradients be trusted?"]
    assert line.quantity == ""
    failed, clean = line.answers
    assert (failed.quantity, failed.value) == ("score_only_wins", 3 / 60)
    assert "score only wins" in str(failed)
    assert clean.value == 0
    assert clean.failing == ""


def test_the_objective_of_an_attack_stays_in_the_label():
    """Numbers that differ in nothing else would be two values of one label."""
    found = []
    for aim, level in (("", 0.2), (" at retrieval", 0.6)):
        case = {"ball": "linf:0.1", "attack": f"adaptive{aim}", "divergence": "l2"}
        values = np.r_[np.ones(12), np.zeros(48)] if level == 0.2 else np.r_[np.ones(36), np.zeros(24)]
        accuracy = series("nearest_neighbour_accuracy", case, values, "share of samples", Claim.UPPER, "accuracy")
        found.append(summarise(accuracy, "share", "higher"))
    found[1] = found[1].model_copy(update={"aim": "another nearest neighbour"})
    one = result("breakaway", "a", Findings(ids=("x",) * 60, estimates=tuple(found)), ("nearest_neighbour_accuracy",))
    (line,) = lines(one).values()
    assert line.answers[0].value == 0.2
    assert "objective" not in line.under
    (line,) = lines(one.model_copy(update={"findings": Findings(ids=("x",) * 60, estimates=tuple(found[1:]))})).values()
    assert line.answers[0].value == 0.6
    assert "another nearest neighbour" in line.under


def test_a_question_that_nobody_answers_is_not_asked():
    assert set(lines(breakaway("a"))) == {"Can an attacker make it mistake images?"}
    assert Contents([result("own", "a", Findings(ids=()), ())], ()).scorecards == ()


def test_warnings_travel_with_the_number():
    few = impersonation("a", n=20)
    rate = series("impersonation_rate", {}, np.zeros(20), "share of samples", Claim.LOWER, "rate")
    few = few.model_copy(
        update={"findings": few.findings.model_copy(update={"estimates": (summarise(rate, "mean", "lower"),)})}
    )
    (answer,) = lines(few)["Can one image be passed off as another?"].answers
    assert any("copies" in warning for warning in answer.warnings)
    assert any("20 samples" in warning for warning in answer.warnings)
    assert "2 warnings" in str(answer)


def test_the_same_cells_stand_in_json_and_markdown():
    results, failures = everything()
    found = Contents(results, failures).scorecards
    again = Report.model_validate_json(report(Contents(results, failures)).model_dump_json())
    assert again.scorecards == found
    printed = markdown((), found).replace("\\", "")
    cells = [str(answer) for card in found for line in card.lines for answer in line.answers]
    assert len(cells) > 7
    assert all(cell in printed for cell in cells)


QUESTIONS = json.loads(Path(__file__).with_name("questions.json").read_text())
"""In the order of the scorecard; without an evaluation the question of all certificates."""


def test_the_evaluations_ask_the_questions_of_the_scorecard():
    certified = [name for name, kind in evaluations().items() if CONTRADICTIONS in kind.questions]
    results = [result(name, "a", Findings(ids=()), kind.headline) for name, kind in evaluations().items()]
    asked = questions(groups(results))
    assert [question.model_dump(mode="json", exclude={"place"}) for question in asked] == [
        {key: value for key, value in question.items() if key != "evaluation"} for question in QUESTIONS
    ]
    named = [q["evaluation"] or certified for q in QUESTIONS]
    assert list(asked.values()) == [[name] if isinstance(name, str) else name for name in named]
    assert len(certified) == 7


def test_every_question_has_a_place_of_its_own():
    asked = {question for kind in evaluations().values() for question in kind.questions}
    assert len({question.text for question in asked}) == len({question.place for question in asked}) == len(asked)


def test_results_that_name_no_question_have_no_scorecard():
    """Those that were stored before results named their questions."""
    old = breakaway("a").model_copy(update={"questions": ()})
    assert Contents([old], ()).scorecards == ()
    assert list(lines(old, breakaway("b"))) == ["Can an attacker make it mistake images?"]
