"""What the report tells a reader to do follows from the numbers."""

from __future__ import annotations

import shlex
from math import nan

import numpy as np
import pytest

from holdfast.bounds.bound_findings import CONTRADICTIONS
from holdfast.core.records import Claim, Failure, Findings, Result, Warned
from holdfast.core.statistics.summaries import summarise
from holdfast.report.comparison.comparable import groups
from holdfast.report.comparison.compare import compare
from holdfast.report.comparison.tables import summary
from holdfast.report.gate import check, parse
from holdfast.report.overview.advice import advice
from holdfast.report.overview.alerts import ENOUGH, Alert, alerts, missing_sentences
from holdfast.report.overview.study import study
from holdfast.report.printed import markdown
from holdfast.report.text import number
from tests.facts import says
from tests.report.synthetic import breakaway, displacement, everything, ids, impersonation, result, series, warned


@pytest.fixture(autouse=True)
def some_evidence(monkeypatch):
    """The universal quantile has some evidence here, whatever the study finds of it next."""
    known = study()
    pinned = known.model_copy(
        update={
            "measures": tuple(
                one.model_copy(update={"advice": "some"}) if one.quantity == "universal_quantile" else one
                for one in known.measures
            )
        }
    )
    for module in ("holdfast.report.overview.advice", __name__):
        monkeypatch.setattr(f"{module}.study", lambda: pinned)


def told(results, failures=(), runs=()) -> str:
    found = groups(results)
    (table, *_) = summary(found, compare(results))
    return "\n".join(advice(table, found, failures, runs))


def test_the_best_encoder_is_named_with_its_count():
    results, failures = everything()
    said = told(results, failures)
    assert {"digits-robust", "1", "study;", "8"} <= set(
        next(s for s in said.splitlines() if says(s, "most robust")).split()
    )
    assert says(said, "digits-random", "4 conditions", "relative quantile")
    assert said.startswith("timm:vit_tiny was asked for and has no result, so nothing here speaks of it: pixels must")
    assert says(said, "1 result", "1 reason")
    assert "Settle the notes" not in said, "the leader has none of its own"


def test_warnings_of_the_leader_alone_hold_the_advice_back():
    weak, strong = displacement("digits-random"), displacement("digits-robust")
    assert says(told([weak, warned(strong, "Masked.")]), "Settle", "digits-robust")
    assert "Settle" not in told([warned(weak, "Copies."), warned(strong, "Copies.")])


def based(result):
    encoder = result.encoder.model_copy(update={"source": "baseline:pixels?shape=1x8x8"})
    return result.model_copy(update={"encoder": encoder})


def test_a_baseline_is_never_recommended_and_said_to_be_better():
    real = [displacement("digits-random"), displacement("digits-contrastive")]
    pixels = based(displacement("digits-robust"))
    said = told([*real, pixels])
    assert says(said, "digits-contrastive is the", "most robust")
    assert says(said, "digits-robust", "universal quantile", "8 of 8")
    assert "encoder=digits-contrastive<=" in gate_of(said)
    weak = told([displacement("digits-robust"), based(displacement("digits-random"))])
    assert "The baseline" not in weak
    assert "better than digits-random at" in told([displacement("digits-random"), pixels])


def test_equal_encoders_are_not_ranked_by_chance():
    first = breakaway("one")
    second = first.model_copy(update={"encoder": first.encoder.model_copy(update={"name": "two"})})
    said = told([first, second])
    assert says(said, "all 16 conditions")


def at(result, ball_values):
    """Return ``result`` with the same harm in all numbers of a ball."""

    def value(estimate):
        harm = ball_values[estimate.conditions["ball"]]
        return harm if estimate.better == "lower" else 1 - harm

    changed = tuple(
        e.model_copy(update={"value": value(e), "low": value(e), "high": value(e)}) if "ball" in e.conditions else e
        for e in result.estimates
    )
    return result.model_copy(update={"findings": result.findings.model_copy(update={"estimates": changed})})


@pytest.mark.parametrize(
    ("harms", "advised"),
    [
        (
            (1.0, 1.0),
            "breakaway risk and nearest neighbour accuracy",
        ),
        ((0.999, 0.995), "smaller radius there, as `--ball linf:0.0125`."),
        (
            (0.0, 0.0),
            "larger radius there, as `--ball linf:0.4`.",
        ),
        ((0.4, 0.6), "; use more of them."),
        ((0.4, 1.0), "; use more of them."),
    ],
)
def test_where_all_are_at_one_end_another_radius_is_advised(harms, advised):
    first = at(breakaway("one"), dict(zip(("linf:0.05", "linf:0.1"), harms, strict=True)))
    second = first.model_copy(update={"encoder": first.encoder.model_copy(update={"name": "two"})})
    said = told([first, second])
    assert says(said, "all 16 conditions")
    assert advised in said
    assert (says(said, "use more of")) == ("use more" in advised)


def test_no_winner_is_made_of_what_the_others_were_not_measured_in():
    def named(result, name):
        return result.model_copy(update={"encoder": result.encoder.model_copy(update={"name": name})})

    # One and two are equal, and three was measured in eight conditions of twenty-four alone.
    equal = [named(make("digits-robust"), name) for make in (breakaway, displacement) for name in ("one", "two")]
    said = told([*equal, named(displacement("digits-robust"), "three")])
    assert says(said, "all 8 conditions")
    assert "question" not in said
    missing = "three has no number in 16 conditions (breakaway risk, nearest neighbour accuracy)"
    assert f"{missing}, so no encoder is ranked there" in said


def test_what_is_not_robustness_makes_nobody_the_most_robust():
    def of_space(encoder):
        return result("geometry", encoder, breakaway(encoder).findings, ("breakaway_risk",), robustness=False)

    names = ("digits-random", "digits-robust")
    alone = told([of_space(name) for name in names])
    assert "most robust" not in alone
    assert "conditions of robustness" not in alone
    counted = told([displacement(name) for name in names])
    assert says(counted, "most robust"), "vacuous fixture"
    both = told([make(name) for make in (displacement, of_space) for name in names])
    (choice,) = (line for line in counted.splitlines() if "is the most robust" in line)
    assert choice in both.splitlines(), "the count is the same with rows of the space beside it"


def renamed(evaluation, one, name):
    encoder = one.encoder.model_copy(update={"name": name, "fingerprint": f"{evaluation} {name}"})
    return one.model_copy(update={"evaluation": evaluation, "encoder": encoder})


def weak_and_strong(evaluation, weak, strong):
    return [
        renamed(evaluation, displacement(like), name)
        for like, name in (("digits-random", weak), ("digits-robust", strong))
    ]


def test_numbers_without_evidence_prefer_nobody():
    other = weak_and_strong("common-perturbations", "a", "b")
    said = told(other)
    assert says(said, "b is best", "1 of 1", "8 conditions")
    assert says(said, "no reason", "Measure ")
    assert study().best[0] in said.partition(" Measure ")[2]
    assert "most robust" not in said
    unseen = told(weak_and_strong("impersonation", "a", "b"))
    assert says(unseen, "no reason", "Measure ")
    labelled = told(weak_and_strong("robust-accuracy", "a", "b"))
    assert says(labelled, "b is the most"), "what is measured with labels needs no foresight"


def test_numbers_with_evidence_decide_against_any_number_of_others():
    names = {"displacement": "ab", "common-perturbations": "ba", "spade": "ba", "clever": "ba"}
    results = [
        one.model_copy(update={"encoder": one.encoder.model_copy(update={"fingerprint": one.encoder.name})})
        for evaluation, order in names.items()
        for one in weak_and_strong(evaluation, *order)
    ]
    said = told(results)
    assert says(said, "b is the most", "1 of 1")
    assert says(said, "all numbers", "a would come")


def test_numbers_with_some_evidence_decide_only_where_none_with_more_does():
    some = "displacement"
    assert study().advice(some, "universal_quantile") == "some"
    alone = told(weak_and_strong(some, "b", "a"))
    assert says(alone, "a is the most")
    assert says(alone, "some evidence only")
    results = [
        one.model_copy(update={"encoder": one.encoder.model_copy(update={"fingerprint": one.encoder.name})})
        for one in (*weak_and_strong(some, "b", "a"), *weak_and_strong(study().reference, "a", "b"))
    ]
    assert says(told(results), "b is the most")
    assert says(told(results), "numbers with evidence")


def test_nobody_is_told_to_guard_a_useless_encoder():
    weak = breakaway("digits-random")
    assert "gate it" in told([weak])
    zero = {"value": 0.0, "low": 0.0, "high": 0.0126}
    estimates = tuple(
        e.model_copy(update=zero) if e.quantity == "nearest_neighbour_accuracy" else e for e in weak.estimates
    )
    useless = weak.model_copy(update={"findings": weak.findings.model_copy(update={"estimates": estimates})})
    assert "gate it" not in told([useless])
    assert "gate it" not in told([warned(weak, "COLLAPSED: all images have one code.")])
    assert "gate it" not in told([of(weak, to={"value": 0.99, "low": 0.98, "high": 1.0})]), "a gate that never shuts"


def test_the_gate_guards_who_is_advised():
    """By more conditions, but without evidence, a is ahead; the advice and so the gate are about b."""
    names = {"common-perturbations": "ba", "displacement": "ab"}
    results = [
        one.model_copy(update={"encoder": one.encoder.model_copy(update={"fingerprint": one.encoder.name})})
        for evaluation, order in names.items()
        for one in weak_and_strong(evaluation, *order)
    ]
    said = told(results)
    assert says(said, "b is the most")
    assert ",encoder=b<=" in gate_of(said)
    assert "gate it" not in told(weak_and_strong("common-perturbations", "a", "b")), "nobody is advised"


def test_conditions_of_one_question_are_one_vote():
    """Better in seven of eight conditions of one question and worse in the last is best on none."""
    weak, strong = weak_and_strong("displacement", "a", "b")
    last = weak.series[-1].conditions

    def swapped(one, other):
        parts = tuple(
            next(s for s in other.series if (s.quantity, s.conditions) == (part.quantity, last))
            if part.conditions == last
            else part
            for part in one.series
        )
        estimates = tuple(
            next(e for e in other.estimates if (e.quantity, e.conditions) == (part.quantity, last))
            if part.conditions == last
            else part
            for part in one.estimates
        )
        return one.model_copy(
            update={"findings": one.findings.model_copy(update={"series": parts, "estimates": estimates})}
        )

    said = told([swapped(weak, strong), swapped(strong, weak)])
    assert says(said, "8 of 8", "conditions", "robustness")
    assert "most robust" not in said
    assert "gate it" not in said


def test_the_stronger_attack_is_named():
    said = told([breakaway("digits-random"), breakaway("digits-robust")])
    assert says(said, "stronger attack: adaptive")


def gate_of(said: str) -> str:
    *command, gate = shlex.split(said.split("`")[1])
    assert command[:2] == ["holdfast", "check"]
    assert command[-1] == "--require"
    return gate


def test_the_suggested_gate_holds_for_the_encoder_it_was_made_from_alone():
    results = [displacement("digits-random"), displacement("digits-robust")]
    gate = gate_of(told(results))
    assert "@linf:25.5/255,encoder=digits-robust<=" in gate
    (answer,) = check(parse(gate), results)
    assert (answer.encoder, answer.passed) == ("digits-robust", True)
    highest = max(
        e.high for e in results[1].estimates if e.quantity == "universal_quantile" and "0.1" in e.conditions["ball"]
    )
    assert highest <= float(gate.rpartition("=")[2]) <= 1.1 * highest, "a loose bound"


def test_the_suggested_gate_names_the_run_as_a_shell_needs_it():
    results = [breakaway("digits robust")]
    command = shlex.split(told(results, runs=["runs/my photos"]).split("`")[1])
    assert command[2] == "runs/my photos"
    assert check(parse(command[-1]), results)[0].encoder == "digits robust"
    assert "holdfast check RUN " in told(results)


def test_no_gate_is_suggested_that_cannot_be_spelled():
    assert "gate it" not in told([breakaway("a,b")])
    assert "gate it" in told([breakaway("ab")]), "vacuous fixture"


def of(result, **conditions):
    """Return ``result`` with other values at the estimates of breakaway risk under ``conditions``."""
    changed = conditions.pop("to")
    estimates = tuple(
        e.model_copy(update=changed)
        if e.quantity == "breakaway_risk" and conditions.items() <= e.conditions.items()
        else e
        for e in result.estimates
    )
    return result.model_copy(update={"findings": result.findings.model_copy(update={"estimates": estimates})})


def test_the_winner_is_told_its_own_worst_number():
    weak, robust = breakaway("digits-random"), breakaway("digits-robust")
    bad = of(robust, ball="linf:0.1", attack="adaptive", divergence="l2", to={"value": 0.91, "low": 0.9, "high": 0.92})
    said = told([weak, bad])
    assert "breakaway risk is 0.910 [0.900, 0.920] (ℓ∞ ≤ 25.5/255 · adaptive · ℓ2); 0" in said
    accuracy = min(e.value for e in weak.estimates if e.better == "higher")
    assert f"nearest neighbour accuracy is {number(accuracy)} [" in told([weak])
    assert "1 would be perfect" in told([weak])


def test_attacks_with_other_goals_are_not_called_stronger():
    def named(result, **names):
        estimates = tuple(
            e.model_copy(update={"conditions": {**e.conditions, "attack": names[e.conditions["attack"][0]]}})
            if "attack" in e.conditions
            else e
            for e in result.estimates
        )
        return result.model_copy(update={"findings": result.findings.model_copy(update={"estimates": estimates})})

    one = breakaway("digits-random")
    assert says(told([one]), "stronger attack"), "vacuous fixture"
    assert "Judge by" not in told([named(one, u="u-pgd", a="adaptive at retrieval")])
    assert "Judge by" in told([named(one, u="u-pgd at retrieval", a="adaptive at retrieval")])


def test_shares_are_told_apart_by_their_difference():
    case = {"ball": "linf:0.05", "divergence": "l2"}
    one = of(breakaway("digits-robust"), attack="u-pgd", **case, to={"value": 0.0, "low": 0.0, "high": 1e-9})
    one = of(one, attack="adaptive", **case, to={"value": 0.9, "low": 0.89, "high": 0.91})
    assert says(told([one]), "breakaway risk", "digits-robust", "u-pgd", "to 0.900")
    level = of(breakaway("digits-robust"), to={"value": 0.1, "low": 0.05, "high": 0.2})
    level = level.model_copy(update={"headline": ("breakaway_risk",)})
    assert "Judge by" not in told([level])
    higher = of(level, attack="adaptive", to={"value": 0.19, "low": 0.12, "high": 0.3})
    assert "Judge by" not in told([higher]), "intervals that overlap may be one number"
    apart = of(level, attack="adaptive", to={"value": 0.3, "low": 0.21, "high": 0.4})
    assert "from 0.100 (under u-pgd) to 0.300" in told([apart])


def test_few_samples_are_said_and_make_no_gate():
    few, enough = breakaway("digits-robust", 49), breakaway("digits-robust", 50)
    (alert,) = alerts(groups([few]))
    assert says(alert.warning, "1 evaluation ", "49 samples")
    assert "gate it" not in told([few])
    assert alerts(groups([enough])) == ()
    assert "gate it" in told([enough])


def test_few_samples_are_one_warning_for_each_cause():
    """The cause is the budget, the images or the settings; each has its own way out."""
    hurried = [breakaway("a", 4, planned=300), breakaway("b", 12, planned=300), impersonation("a", 20)]
    hurried[2] = hurried[2].model_copy(update={"planned": 120})
    copies, ended, few = alerts(groups(hurried))
    assert copies.kind == "duplicates"
    assert ended.warning.startswith("PARTIAL: the run ended after 4 to 20 of 120 to 300 samples, a random choice.")
    assert ended.encoders == few.encoders == ("a", "b")
    assert len(ended.evaluations) == 2
    assert says(few.warning, " evaluations ", "4 to 20 samples")
    assert says(few.warning, "--budget", "command")
    assert "50" not in few.warning
    one = breakaway("a", 4)
    small, large = (one.model_copy(update={"images": one.images.model_copy(update={"count": n})}) for n in (10, 100))
    (images,), (settings,) = alerts(groups([small])), alerts(groups([large]))
    assert says(images.warning, "50 images", "--images", "--limit")
    assert "--suite standard" in settings.warning


def test_many_evaluations_are_named_in_short():
    assert Alert(("a",), ("one", "two", "three", "four"), "").where == "one, two, three and four"
    assert Alert(("a",), ("one", "two", "three", "four", "five"), "").where == "one, two, three and 2 others"


def test_a_run_that_ended_before_a_cell_did_not_break_it():
    spent = Failure(evaluation="overlap", encoder="a", images="x", error="BudgetSpentError", reason="no time")
    stopped = spent.model_copy(update={"error": "Unfinished", "reason": "stopped before it"})
    assert missing_sentences([spent]) == ("not measured: overlap of a: no time",)
    assert missing_sentences([stopped]) == ("not measured: overlap of a: stopped before it",)


def test_unread_images_are_counted_and_named():
    one = breakaway("digits-robust")
    skipped = tuple(f"{k}.png: truncated" for k in range(5))
    (alert,) = alerts(groups([one.model_copy(update={"images": one.images.model_copy(update={"skipped": skipped})})]))
    assert alert.warning.startswith("5 images could not be read and were skipped: 0.png: truncated; 1.png")
    assert alert.warning.endswith("and 2 more.")


def test_a_spent_budget_is_no_failure_to_mend():
    failed = Failure(evaluation="overlap", encoder="a", images="x", error="HoldfastError", reason="it broke")
    spent = failed.model_copy(update={"error": "BudgetSpentError"})
    one = breakaway("digits-robust")
    said = told([one], [spent])
    assert "1 result not measured" in said
    assert "mend" not in said
    assert says(told([one], [failed]), "1 result", "1 reason")


def test_a_run_that_ended_early_has_one_advice():
    """From 4 of 30 images nothing else follows, whatever the 4 say."""
    ended = [breakaway(name, 4, planned=30) for name in ("digits-robust", "digits-random")]
    said = told([*ended, displacement("digits-robust"), displacement("digits-random")])
    assert "2 results partial" in said
    assert says(said, "same command")
    assert "\n" not in said
    assert not any(word in said for word in ("radius", "best", "gate", "stronger"))


def test_advice_rests_on_enough_samples():
    for count, enough in ((ENOUGH - 1, False), (ENOUGH, True)):
        said = told([breakaway(name, count) for name in ("digits-robust", "digits-random")])
        assert (f"rests on {ENOUGH} samples" in said) == (not enough)
        assert ("Weakest result" in said) == enough
        assert ("more images" in said) == (not enough)


def test_another_radius_is_advised_only_where_the_intervals_are_at_the_end_too():
    first = at(breakaway("one"), {"linf:0.05": 0.0, "linf:0.1": 0.0})
    for high, advised in ((0.09, True), (0.6, False)):
        wide = tuple(
            e.model_copy(update={"high": high} if e.better == "lower" else {"low": 1 - high}) for e in first.estimates
        )
        one = first.model_copy(update={"findings": first.findings.model_copy(update={"estimates": wide})})
        two = one.model_copy(update={"encoder": one.encoder.model_copy(update={"name": "two"})})
        said = told([one, two])
        assert ("larger radius" in said) == advised
        assert (says(said, "use more of")) != advised


def test_proofs_are_advised_only_of_networks_that_can_be_bounded():
    other = weak_and_strong("common-perturbations", "a", "b")
    assert "certified-radius" in study().best
    assert "certified-radius" not in told(other)
    bounded = [one.model_copy(update={"questions": (*one.questions, CONTRADICTIONS)}) for one in other]
    assert "certified-radius" in told(bounded)


def test_what_is_undefined_beside_robustness_is_no_advice():
    """And who is not ranked somewhere comes after who leads."""
    some = displacement("digits-robust"), displacement("digits-random")
    beside = [
        impersonation(name).model_copy(update={"evaluation": "geometry", "robustness": False})
        for name in ("digits-robust", "digits-random")
    ]
    assert "relative quantile" not in told([*some, *beside])
    said = told([*some, *(one.model_copy(update={"robustness": True}) for one in beside)])
    assert said.index("most robust") < said.index("relative quantile")


def test_rows_keep_attacks_on_one_divergence_together():
    results = [breakaway("a"), breakaway("b")]
    (table,) = summary(groups(results), compare(results))
    rows = [(row.first, row.rest) for row in table.sections[0].rows]
    assert rows[:4] == [
        ("ℓ∞ ≤ 12.75/255", f"{attack} · {d}") for d in ("ℓ2", "cosine") for attack in ("u-pgd", "adaptive")
    ]
    assert [row.span for row in table.sections[0].rows] == [4, 0, 0, 0] * 2


def test_what_is_proved_is_told_beside_what_attacks_found():
    def certified(name, value):
        one = breakaway(name)
        proof = {
            "quantity": "certified_radius",
            "claim": Claim.LOWER,
            "better": "higher",
            "conditions": {"ball": "linf"},
        }
        radius = one.estimates[0].model_copy(update={**proof, "value": value, "low": value / 2, "high": value})
        findings = one.findings.model_copy(update={"estimates": (*one.estimates, radius)})
        return one.model_copy(update={"findings": findings, "headline": (*one.headline, "certified_radius")})

    assert "Proved" not in told([breakaway("a")])
    proved = "Proved, whatever the attack: certified radius of a is 0.0400 [0.0200, 0.0400] (ℓ∞)"
    assert f"{proved}." in told([certified("a", 0.04)])
    assert f"{proved}, the most of these encoders." in told([certified("a", 0.04), certified("b", 0.03)])


def test_an_interval_of_another_confidence_has_it_behind_it():
    one = breakaway("digits-robust")
    shown = {}
    for confidence in (0.95, 0.68, 0.5, 1.0):
        (table,) = summary(groups([found := of(one, to={"confidence": confidence})]), compare([found]))
        cell = table.sections[0].rows[0].cells[0]
        assert cell is not None
        shown[confidence] = cell.interval.partition("]")[2]
        assert markdown([table]).count("(68%)") == (8 if confidence == 0.68 else 0)
    assert shown == {0.95: "", 0.68: " (68%)", 0.5: " (50%)", 1.0: " (100%)"}


def test_a_cell_of_equal_values_says_why_it_has_no_interval():
    """Equal radii tell nothing of other images, and without a largest radius nothing bounds these either."""
    radii = series("radius", {}, np.full(64, 0.5), "l2 radius", Claim.UPPER, "attack radius")
    findings = Findings(ids=ids(64), series=(radii,), estimates=(summarise(radii, "mean", "higher"),))
    found = [result("made-up", "a", findings, ("radius",))]
    (table,) = summary(groups(found), compare(found))
    cell = table.sections[0].rows[0].cells[0]
    assert cell is not None
    assert (cell.interval, cell.track) == ("no interval", None)
    assert cell.note == "all values equal: no interval; n = 64"


def test_what_has_no_interval_promises_none():
    one = of(breakaway("a"), to={"low": nan, "high": nan, "method": "no interval: infinite", "confidence": 0.68})
    (table,) = summary(groups([one]), compare([one]))
    cell = table.sections[0].rows[0].cells[0]
    assert cell is not None
    assert cell.note == "no interval: infinite; n = 300"
    assert "68%" not in cell.interval


def test_a_larger_ball_in_which_an_attack_found_less_is_told():
    """It contains the smaller one, so that it is no safer."""
    less = at(breakaway("one"), {"linf:0.05": 0.4, "linf:0.1": 0.2})
    (told_of,) = {note for note in summary(groups([less]), compare([less]))[0].notes if "adaptive · cosine" in note}
    assert says(told_of, "breakaway risk", "nearest neighbour accuracy", "12.75/255", "25.5/255")
    more = at(less, {"linf:0.05": 0.2, "linf:0.1": 0.4})
    assert summary(groups([more]), compare([more]))[0].notes == ()


def test_one_reason_of_one_encoder_is_one_sentence():
    failed = Failure(evaluation="overlap", encoder="a", images="x", error="E", reason="it broke")
    others = [failed.model_copy(update=changed) for changed in ({"evaluation": "spade"}, {"encoder": "b"})]
    assert missing_sentences([failed, *others]) == ("failed: overlap and spade of a; overlap of b: it broke",)
    both = [failed, failed.model_copy(update={"encoder": "b"}), failed.model_copy(update={"reason": "too large"})]
    assert missing_sentences(both) == ("failed: overlap of a and b: it broke", "failed: overlap of a: too large")


def test_counts_of_one_cause_are_added_up_over_encoders():
    one, two = (warned(breakaway(name), f"{count} of 30 fits failed.") for name, count in (("a", 1), ("b", 2)))
    (note,) = alerts(groups([one, two]))
    assert note.warning.startswith("3 of 60 ")
    assert note.encoders == ("a", "b")
    same = [warned(breakaway(name), "2 of 597 images are dark.") for name in "ab"]
    (note,) = alerts(groups(same))
    assert note.warning.startswith("2 of 597 "), "one fact of the same images"


def test_copies_are_one_note_whatever_the_sentence():
    one = warned(breakaway("a"), Warned("3 images are copies.", "duplicates"))
    two = warned(displacement("a"), Warned("Each of 3 copies is counted once.", "duplicates"))
    (note,) = alerts(groups([one, two]))
    assert note.kind == "duplicates"
    assert len(note.evaluations) == 2
    again = Result.model_validate_json(one.model_dump_json())
    assert alerts(groups([again]))[0].kind == "duplicates", "stored results keep the cause"
