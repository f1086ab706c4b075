"""Gates: what they parse, which values they look at, and that none opens on silence."""

from __future__ import annotations

from functools import cache
from math import inf, nan
from operator import ge, gt, le, lt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.bounds.bound_findings import CONTRADICTIONS
from holdfast.core.errors import HoldfastError
from holdfast.core.records import Claim, Failure, Result, Warned
from holdfast.core.statistics.intervals import share_interval
from holdfast.report.gate import check, parse, suggested, warning
from holdfast.report.printed import gates_markdown
from tests import facts
from tests.facts import says
from tests.report.synthetic import breakaway, everything, impersonation, warned


@pytest.fixture(scope="module")
def results() -> list[Result]:
    return everything()[0]


def test_the_worst_matching_value_counts():
    robust = breakaway("digits-robust")
    values = {
        c["attack"]: robust.estimate("breakaway_risk", **c).value
        for c in ({"ball": "linf:0.1", "attack": a, "divergence": "l2"} for a in ("u-pgd", "adaptive"))
    }
    between = sum(values.values()) / 2
    assert values["u-pgd"] < between < values["adaptive"], "vacuous fixture"
    (answer,) = check(parse(f"breakaway_risk@0.1,divergence=l2<={between}"), [robust])
    assert not answer.passed
    assert "adaptive" in answer.sentence
    (answer,) = check(parse(f"breakaway_risk@0.1,divergence=l2,attack=u-pgd<={between}"), [robust])
    assert answer.passed
    assert says(answer.sentence, "proves nothing", "stronger")


@cache
def whole() -> Result:
    return breakaway("digits-robust")


def numbered(values: list[float], **changes) -> Result:
    """A result with these breakaway risks, each in a ball of its own, the first of radius 0.01."""
    robust = whole()
    like = next(e for e in robust.estimates if e.quantity == "breakaway_risk")
    made = tuple(
        like.model_copy(
            update={
                "value": value,
                "low": value - 0.01,
                "high": value + 0.02,
                "conditions": {"ball": f"linf:0.0{place}", "attack": "adaptive:restarts=5"},
                **changes,
            }
        )
        for place, value in enumerate(values, start=1)
    )
    return robust.model_copy(update={"findings": robust.findings.model_copy(update={"estimates": made})})


@given(
    values=st.lists(st.sampled_from([0.0, 0.1, 0.2, 0.3, nan]), min_size=1, max_size=5),
    operator=st.sampled_from(["<=", "<", ">=", ">"]),
    bound=st.sampled_from([0.1, 0.2]),
)
def test_a_gate_opens_exactly_if_every_matching_number_is_defined_and_keeps_it(values, operator, bound):
    keeps = {"<=": le, "<": lt, ">=": ge, ">": gt}[operator]
    (answer,) = check(parse(f"breakaway_risk{operator}{bound}"), [numbered(values)])
    assert answer.passed == all(keeps(value, bound) for value in values)


@pytest.mark.parametrize(("n", "bound", "needed"), [(60, 0.999, 2995), (60, 0.95, 59)])
def test_a_strict_check_says_that_so_few_samples_cannot_keep_the_bound(n, bound, needed):
    """All n of n leave the mid-P interval open down to 0.05^(1/n)."""
    low = 0.05 ** (1 / n)
    low_of_needed, below = 0.05 ** (1 / needed), 0.05 ** (1 / (needed - 1))
    assert below < bound <= low_of_needed
    assert share_interval(n, n)[0] == pytest.approx(low)
    kept = numbered([1.0], unit="yes or no", low=low, high=1.0, n=n, method="mid-P", better="higher")
    (answer,) = check(parse(f"breakaway_risk>={bound}"), [kept], strict=True)
    assert answer.passed == (low >= bound)
    assert (str(needed) in answer.sentence) == (low < bound)
    lost = numbered([0.0], unit="yes or no", low=0.0, high=1 - low, n=n, method="mid-P")
    (answer,) = check(parse(f"breakaway_risk<={1 - bound}"), [lost], strict=True)
    assert answer.passed == (low >= bound)
    assert (str(needed) in answer.sentence) == (low < bound)
    (answer,) = check(parse(f"breakaway_risk<={1 - bound}"), [numbered([0.5], unit="yes or no", n=n)], strict=True)
    assert not answer.passed
    assert str(needed) not in answer.sentence, "more samples do not help this one"


def test_a_selector_is_a_whole_name_and_all_selectors_count():
    results = [numbered([0.1, 0.4])]
    assert check(parse("breakaway_risk@0.01,attack=adaptive<=0.1"), results)[0].passed
    assert not check(parse("breakaway_risk@0.02,attack=adaptive<=0.1"), results)[0].passed
    for wrong in ("@0.01,attack=adapt", "@0.01,attack=adaptive:restarts", "@0.011", "@l2:0.01", "@0.01,attack=pgd"):
        with pytest.raises(HoldfastError, match="not measured"):
            check(parse(f"breakaway_risk{wrong}<=1"), results)


@pytest.mark.parametrize(
    ("gate", "said", "silent"),
    [
        # A number from an attack is a lower bound of harm: where it keeps a bound from above, it proves nothing.
        ("breakaway_risk<=0.5", "as a lower bound it proves nothing about stronger attacks", "uncertain"),
        ("breakaway_risk>=0.05", "keeps >= 0.05", "proves nothing"),
        ("breakaway_risk<=0.05", "breaks <= 0.05", "proves nothing"),
        # Its interval is [0.19, 0.22].
        ("breakaway_risk<=0.21", "uncertain: upper end", "undefined"),
        ("breakaway_risk<=0.195", "uncertain: lower end 0.19", "proves nothing"),
    ],
)
def test_what_hides_behind_a_comparison_is_said_and_nothing_else(gate, said, silent):
    (answer,) = check(parse(gate), [numbered([0.2])])
    assert said in answer.sentence
    assert silent not in answer.sentence
    assert "partial" not in answer.sentence


def test_an_error_about_a_radius_names_the_radii_in_two_short_lines():
    with pytest.raises(HoldfastError) as refused:
        check(parse("breakaway_risk@8/255<=0.05"), [breakaway("digits-robust")])
    first, second = str(refused.value).splitlines()
    assert {"linf:12.75/255", "--ball"} <= set(second.replace(",", " ").rstrip(".").split())
    assert max(len(first), len(second)) <= 160


def test_a_gate_on_a_number_that_is_better_high_is_its_lower_end_rounded_down():
    result = numbered([0.9], claim=Claim.LOWER, better="higher")
    gate = suggested([result], "breakaway", "digits-robust", result.estimates[0])
    assert parse(gate).operator == ">="
    assert check(parse(gate), [result], strict=True)[0].passed
    assert parse(gate).bound <= result.estimates[0].low


def test_an_upper_bound_of_accuracy_proves_nothing_from_below():
    accuracy = numbered([0.9], claim=Claim.UPPER, better="higher")
    assert says(check(parse("breakaway_risk>=0.8"), [accuracy])[0].sentence, "upper bound", "proves nothing")
    assert "proves nothing" not in check(parse("breakaway_risk<=0.95"), [accuracy])[0].sentence


@pytest.mark.parametrize(("high", "bound"), [(0.0101, "0.011"), (0.05, "0.05"), (0.094, "0.094"), (0.0994, "0.1")])
def test_a_suggested_bound_is_the_end_of_the_interval_rounded_up(high, bound):
    result = numbered([0.01], high=high)
    gate = suggested([result], "breakaway", "digits-robust", result.estimates[0])
    assert gate == f"breakaway.breakaway_risk@linf:2.55/255,encoder=digits-robust<={bound}"


def test_gates_on_radii_have_the_unit_of_the_report():
    case = {"quantity": "radius", "unit": "radius", "low": 0.0643, "conditions": {"ball": "linf:0.5"}}
    radius = numbered([0.07], claim=Claim.LOWER, better="higher", **case)
    estimate = radius.estimates[0]
    gate = suggested([radius], "breakaway", "digits-robust", estimate)
    assert gate == "breakaway.radius@linf:127.5/255,encoder=digits-robust>=16/255"
    assert parse(gate).bound == 16 / 255
    (answer,) = check(parse(gate), [radius], strict=True)
    assert answer.passed
    assert says(answer.sentence, "17.9/255", ">= 16/255")
    assert "0.06" not in answer.sentence


def test_no_gate_is_suggested_that_would_never_shut():
    for high in (1.0, 0.999, nan):
        assert suggested([numbered([0.9], high=high)], "breakaway", "digits-robust", numbered([0.9]).estimates[0]) == ""


def test_a_collapsed_encoder_passes_nothing():
    robust = breakaway("digits-robust")
    gate = parse("breakaway_risk@0.1<=1")
    assert check(gate, [robust])[0].passed, "vacuous fixture"
    (answer,) = check(gate, [warned(robust, Warned("All images have one embedding.", "collapsed"))])
    assert not answer.passed
    assert "digits-robust has collapsed" in answer.sentence


def test_every_encoder_is_answered(results):
    answers = {answer.encoder: answer.passed for answer in check(parse("breakaway_risk@0.1<=0.05"), results)}
    assert answers == {
        "digits-random": False,
        "digits-supervised": False,
        "digits-contrastive": False,
        "digits-robust": True,
    }


@pytest.mark.parametrize("ball", ["0.1", "linf:0.1", "ball=linf:0.1", "1/10"])
def test_radii_match_as_numbers(ball, results):
    gate = parse(f"breakaway_risk@{ball}<=1")
    balls = {e.conditions["ball"] for r in results for e in r.estimates if gate.matches(e)}
    assert balls == {"linf:0.1"}


def test_higher_is_better_takes_the_lowest():
    contrastive = breakaway("digits-contrastive")
    lowest = min(e.value for e in contrastive.estimates if e.quantity == "nearest_neighbour_accuracy")
    assert check(parse(f"nearest_neighbour_accuracy>={lowest}"), [contrastive])[0].passed
    assert not check(parse(f"nearest_neighbour_accuracy>{lowest}"), [contrastive])[0].passed


def test_an_interval_around_the_bound_is_said():
    robust = breakaway("digits-robust")
    worst = max((e for e in robust.estimates if e.quantity == "breakaway_risk"), key=lambda e: e.value)
    (answer,) = check(parse(f"breakaway_risk<={worst.value * 1.001}"), [robust])
    assert answer.passed
    assert "upper end" in answer.sentence


def test_a_partial_result_fails_unless_it_is_allowed():
    gate, results = (
        parse("breakaway_risk<=1"),
        [breakaway("digits-robust"), breakaway("digits-random", 60, planned=300)],
    )
    whole, partial = check(gate, results)
    assert (whole.passed, partial.passed) == (True, False)
    assert "60 of 300" in partial.sentence
    assert "60 of 300" not in whole.sentence
    allowed = check(gate, results, allow_partial=True)
    assert [answer.passed for answer in allowed] == [True, True]
    assert "60 of 300" in allowed[1].sentence
    assert not check(parse("breakaway_risk<=0"), results, allow_partial=True)[1].passed


def test_a_partial_result_fails_even_where_another_number_is_worse():
    """What was not looked at may be worse than all that was."""
    whole, partial = numbered([0.3]), numbered([0.1]).model_copy(update={"planned": 3000})
    (answer,) = check(parse("breakaway_risk<=0.5"), [whole, partial])
    assert not answer.passed


@given(
    values=st.lists(
        st.tuples(st.sampled_from([0.0, 0.2, 0.4]), st.sampled_from([0.0, 0.1, nan])), min_size=1, max_size=4
    ),
    operator=st.sampled_from(["<=", "<", ">=", ">"]),
    bound=st.sampled_from([0.1, 0.2, 0.3, 0.4]),
)
def test_a_strict_gate_opens_exactly_if_every_interval_keeps_it_whole(values, operator, bound):
    keeps = {"<=": le, "<": lt, ">=": ge, ">": gt}[operator]
    whole = numbered([value for value, _ in values])
    estimates = tuple(
        each.model_copy(update={"low": value - reach, "high": value + reach})
        for each, (value, reach) in zip(whole.estimates, values, strict=True)
    )
    result = whole.model_copy(update={"findings": whole.findings.model_copy(update={"estimates": estimates})})
    (answer,) = check(parse(f"breakaway_risk{operator}{bound}"), [result], strict=True)
    assert answer.passed == all(keeps(v - r, bound) and keeps(v + r, bound) for v, r in values)
    assert not answer.passed or check(parse(f"breakaway_risk{operator}{bound}"), [result])[0].passed


@pytest.mark.parametrize("method", ["counted; no interval", "permutation test; no interval"])
def test_a_strict_gate_takes_counts_and_p_values_at_their_word(method):
    counted = numbered([0.2], low=nan, high=nan, method=method)
    assert check(parse("breakaway_risk<=0.2"), [counted], strict=True)[0].passed
    assert not check(parse("breakaway_risk<=0.1"), [counted], strict=True)[0].passed
    lost = numbered([0.2], low=nan, high=nan, method="no interval: 1 group of images")
    assert not check(parse("breakaway_risk<=0.2"), [lost], strict=True)[0].passed
    assert check(parse("breakaway_risk<=0.2"), [lost])[0].passed


@pytest.mark.parametrize("value", [inf, -inf, nan])
@pytest.mark.parametrize("gate", ["breakaway_risk<=0.5", "breakaway_risk>=0.5"])
@pytest.mark.parametrize("strict", [False, True])
def test_what_is_not_finite_passes_no_gate_in_whatever_direction(value, gate, strict):
    finite = 0.1 if "<=" in gate else 0.9
    assert check(parse(gate), [numbered([finite, finite])], strict=strict)[0].passed, "vacuous fixture"
    assert not check(parse(gate), [numbered([finite, value])], strict=strict)[0].passed


def of_evaluation(name: str, values: list[float], encoder: str = "digits-robust") -> Result:
    """These breakaway risks as the numbers of an evaluation called ``name``."""
    made = numbered(values)
    info = made.encoder.model_copy(update={"name": encoder, "fingerprint": encoder})
    headline = made.headline if name == "breakaway" else ("harm_kept",)
    return made.model_copy(update={"evaluation": name, "headline": headline, "questions": (), "encoder": info})


def test_a_quantity_of_several_evaluations_is_gated_by_its_full_name():
    """The report shows that of one, and the worst of all would be another number under the same name."""
    results = [of_evaluation("universal", [0.4]), of_evaluation("breakaway", [0.2]), of_evaluation("query-only", [0.1])]
    with pytest.raises(HoldfastError) as error:
        check(parse("breakaway_risk<=0.3"), results)
    said = str(error.value)
    assert all(result.evaluation in said for result in results), "the candidates"
    assert "breakaway.breakaway_risk" in said, "the one that the report shows"
    assert "0.2" in said, "its value"
    for name, passed in (("breakaway", True), ("universal", False), ("query-only", True)):
        (answer,) = check(parse(f"{name}.breakaway_risk@linf:0.01<=0.3"), results)
        assert answer.passed == passed
        assert f"{name}.breakaway_risk" in answer.sentence
    assert check(parse("breakaway_risk<=0.3"), results[1:2])[0].passed, "alone it is plain"


def test_an_evaluation_that_failed_is_not_answered_by_another():
    failure = Failure(evaluation="breakaway", encoder="digits-robust", images="x", error="E", reason="no memory")
    catalogue = {"breakaway_risk": ["breakaway", "query-only"]}
    other = of_evaluation("query-only", [0.1])
    with pytest.raises(HoldfastError, match=r"query-only\.breakaway_risk"):
        check(parse("breakaway_risk<=0.3"), [other], [failure], catalogue)
    (answer,) = check(parse("breakaway.breakaway_risk<=0.3"), [other], [failure], catalogue)
    assert not answer.passed
    assert "no memory" in answer.sentence
    assert check(parse("query-only.breakaway_risk<=0.3"), [other], [failure], catalogue)[0].passed


@pytest.mark.parametrize("wrong", ["brekaway.breakaway_risk<=1", "impersonation.breakaway_risk<=1"])
def test_an_evaluation_that_does_not_report_the_quantity_is_a_mistake(wrong):
    with pytest.raises(HoldfastError, match="breakaway"):
        check(parse(wrong), [numbered([0.1])])


def test_an_evaluation_that_was_not_asked_for_fails_its_gate():
    catalogue = {"breakaway_risk": ["breakaway", "transfer"]}
    (answer,) = check(parse("transfer.breakaway_risk<=1"), [numbered([0.1])], (), catalogue)
    assert not answer.passed
    assert "--only transfer" in answer.sentence


def test_contradictions_are_gated_together_as_the_scorecard_adds_them_up():
    def proofs(name: str, count: float) -> Result:
        made = numbered([count], quantity="contradictions", unit="certificates", method="counted; no interval")
        return made.model_copy(update={"evaluation": name, "questions": (CONTRADICTIONS,)})

    results = [proofs("certified-radius", 0.0), proofs("certified-overlap", 2.0)]
    assert not check(parse("contradictions<=0"), results)[0].passed
    assert check(parse("certified-radius.contradictions<=0"), results, strict=True)[0].passed


def test_undefined_fails_with_its_reason():
    (answer,) = check(parse("relative_quantile@0.1,divergence=cosine>=0"), [impersonation("digits-random")])
    assert not answer.passed
    assert "undefined" in answer.sentence
    assert says(answer.sentence, "images are equal")


def test_what_was_not_measured_fails():
    failure = Failure(evaluation="breakaway", encoder="vit", images="x", error="E", reason="does not fit into memory")
    answers = check(parse("breakaway_risk<=1"), [breakaway("digits-robust"), impersonation("digits-random")], [failure])
    assert [(answer.encoder, answer.passed) for answer in answers] == [
        ("digits-robust", True),
        ("digits-random", False),
        ("vit", False),
    ]
    assert says(answers[-1].sentence, "fit into memory")


def test_the_reason_is_that_of_the_evaluation_that_gives_the_number():
    """Whatever else failed of that encoder, before or after it."""
    told = Failure(evaluation="breakaway", encoder="vit", images="x", error="E", reason="no gradient")
    idle = told.model_copy(update={"evaluation": "overlap", "reason": "labels are missing"})
    for failures in ([told, idle], [idle, told]):
        answers = check(parse("breakaway_risk<=1"), [breakaway("digits-robust")], failures)
        assert says(answers[-1].sentence, "vit", "breakaway_risk", "no gradient")
    answers = check(parse("breakaway_risk<=1"), [breakaway("digits-robust")], [idle])
    assert answers[-1].sentence.endswith("overlap failed: labels are missing"), "the only one there is"


@pytest.mark.parametrize(
    ("gate", "said"),
    [
        ("breakway_risk<=1", "Did you mean 'breakaway_risk'"),
        ("breakaway_risk@8/255<=1", "linf:12.75/255"),
        ("breakaway_risk@0.1,divergance=l2<=1", "Did you mean 'divergence'"),
        ("breakaway_risk@l3:0.1<=1", "ball: unknown name 'l3'"),
        ("breakaway_risk@big<=1", "got 'big'"),
        ("breakaway_risk<=little", "got 'little'"),
        ("breakaway_risk=0.1", "needs the form"),
        ("breakaway_risk@encoder=digits-rboust<=1", "Did you mean 'digits-robust'"),
        ("nearest_neighbour_accuracy>=90", "is a share between 0 and 1, so >=90 says nothing"),
        ("nearest_neighbour_accuracy>=90", "for 90% write 0.9"),
        ("breakaway_risk<=5", "for 5% write 0.05"),
        ("nearest_neighbour_accuracy<=1.5", "give a bound in that range"),
        ("breakaway_risk<=-1", "give a bound in that range"),
        ("breakaway_risk<0", "give a bound in that range"),
        ("breakaway_risk>1", "give a bound in that range"),
    ],
)
def test_mistakes_are_named(gate, said, results):
    with pytest.raises(HoldfastError, match=r"gate|ball") as error:
        check(parse(gate), results)
    assert said in str(error.value)


def test_an_encoder_can_be_selected_by_name(results):
    (answer,) = check(parse("breakaway_risk@0.1, encoder=digits-robust<=0.05"), results)
    assert (answer.encoder, answer.passed) == ("digits-robust", True)
    (answer,) = check(parse("breakaway_risk@encoder=digits-random<=0.05"), results)
    assert (answer.encoder, answer.passed) == ("digits-random", False)
    spaced = breakaway("net (random weights)")
    assert len(check(parse("breakaway_risk@encoder=net (random weights)<=1"), [spaced, *results])) == 1


def test_a_selected_encoder_that_failed_keeps_its_gate_shut(results):
    failure = Failure(evaluation="evaluate", encoder="timm:vit", images="x", error="E", reason="it broke")
    for name in ("timm:vit", "vit"):
        (answer,) = check(parse(f"breakaway_risk@encoder={name}<=1"), results, [failure])
        assert (answer.encoder, answer.passed) == ("timm:vit", False)
    answers = check(parse("breakaway_risk@encoder=digits-robust<=1"), results, [failure])
    assert [answer.passed for answer in answers] == [True]


def test_a_cell_that_failed_on_other_images_keeps_the_gate_shut_for_its_encoder_alone():
    """Two runs on two sets of images; what was never measured on the second is not answered by the first."""
    cats = whole().images.model_copy(update={"name": "cats", "fingerprint": "ffff"})
    good, other = breakaway("digits-robust"), breakaway("digits-contrastive")
    failure = Failure(evaluation="breakaway", encoder="digits-robust", images="cats", error="E", reason="out of memory")
    gate = parse("breakaway_risk<=1")
    answers = {one.encoder: one for one in check(gate, [good, other], [failure])}
    assert not answers["digits-robust"].passed
    assert says(answers["digits-robust"].sentence, "breakaway_risk", "cats", "out of memory")
    assert answers["digits-contrastive"].passed
    for idle in (
        failure.model_copy(update={"evaluation": "overlap"}),  # does not give the number
        failure.model_copy(update={"images": good.images.name}),  # measured since
    ):
        assert all(answer.passed for answer in check(gate, [good, other], [idle]))
    again = good.model_copy(update={"images": cats})
    assert all(answer.passed for answer in check(gate, [good, other, again], [failure])), "measured since"
    elsewhere = parse("breakaway_risk@encoder=digits-contrastive<=1")
    assert [answer.passed for answer in check(elsewhere, [good, other], [failure])] == [True]


def test_a_gate_against_the_better_direction_is_warned_about(results):
    assert says(warning(parse("breakaway_risk>=0.1"), results), "breakaway_risk <= 0.1")
    assert says(warning(parse("nearest_neighbour_accuracy<0.9"), results), "nearest_neighbour_accuracy > 0.9")
    assert warning(parse("breakaway_risk<=0.1"), results) == ""
    assert warning(parse("nearest_neighbour_accuracy>=0.9"), results) == ""
    assert warning(parse("effective_rank>=3"), results) == ""


def test_no_results_are_no_pass():
    with facts.refused(HoldfastError, "holdfast", "evaluate"):
        check(parse("breakaway_risk<=1"), [])


def test_a_count_of_contradictions_needs_no_stronger_attack():
    robust = breakaway("digits-robust")
    proof = {"quantity": "contradictions", "value": 0.0, "low": 0.0, "high": 0.0, "unit": "certificates"}
    count = next(e for e in robust.estimates if e.quantity == "breakaway_risk").model_copy(update=proof)
    counted = robust.model_copy(update={"findings": robust.findings.model_copy(update={"estimates": (count,)})})
    (answer,) = check(parse("contradictions<=0"), [counted])
    assert answer.passed
    assert answer.sentence.endswith("keeps <= 0")


def test_answers_fit_into_a_comment_and_failures_are_never_left_out_for_those_that_passed(results):
    passing, failing = check(parse("breakaway_risk@0.1<=1"), results), check(parse("breakaway_risk@0.1<=0"), results)
    assert all(answer.passed for answer in passing)
    assert not any(answer.passed for answer in failing)
    said = gates_markdown((*passing * 300, *failing), results)
    assert 50_000 < len(said) < 65_536
    assert said.count("**FAILED**") == len(failing)
    left_out = 300 * len(passing) - said.count("| passed |")
    assert said.endswith(f"\n\n{left_out:,} more answers did not fit.\n")


def test_gates_fail_where_all_that_was_asked_for_failed():
    failure = Failure(evaluation="breakaway", encoder="vit", images="x", error="E", reason="the budget was spent")
    (answer,) = check(parse("breakaway_risk<=1"), [], [failure])
    assert not answer.passed
    assert says(answer.sentence, "vit", "breakaway_risk", "budget")
    assert "Nothing was measured." in gates_markdown([answer], [])
    with facts.refused(HoldfastError, "holdfast", "evaluate"):
        check(parse("breakaway_risk<=1"), [])
