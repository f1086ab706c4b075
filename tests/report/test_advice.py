"""What the report tells a reader to do follows from the numbers."""

from __future__ import annotations

import shlex

import pytest

from holdfast.report.advice import advice
from holdfast.report.compare import compare
from holdfast.report.gate import check, parse
from holdfast.report.protocol import groups
from holdfast.report.standings import standings
from holdfast.report.tables import summary
from tests.report.synthetic import breakaway, everything


def told(results, failures=(), runs=()) -> str:
    found = groups(results)
    (table, *_) = summary(found, compare(results))
    return "\n".join(advice(table, found, failures, runs))


def warned(result, *warnings):
    return result.model_copy(update={"findings": result.findings.model_copy(update={"warnings": warnings})})


def test_the_best_encoder_is_named_with_its_count():
    results, failures = everything()
    said = told(results, failures)
    assert "digits-robust holds fastest: it is best or tied for best in 48 of the 48 headline rows" in said
    assert "1 cell could not be computed" in said
    assert "Settle the warnings" not in said, "the leader has none of its own"


def test_warnings_of_the_leader_alone_hold_the_advice_back():
    weak, strong = breakaway("digits-random"), breakaway("digits-robust")
    assert "Settle the warnings about digits-robust" in told([weak, warned(strong, "Masked.")])
    assert "Settle" not in told([warned(weak, "Copies."), warned(strong, "Copies.")])


def based(result):
    encoder = result.encoder.model_copy(update={"source": "baseline:pixels?shape=1x8x8"})
    return result.model_copy(update={"encoder": encoder})


def test_a_baseline_is_never_recommended_and_said_to_be_better():
    real = [breakaway("digits-random"), breakaway("digits-contrastive")]
    pixels = based(breakaway("digits-robust"))
    said = told([*real, pixels])
    assert "Of these encoders digits-contrastive holds fastest" in said
    assert "The baseline digits-robust is better than all of them at breakaway risk (8 of 8 rows)" in said
    assert "encoder=digits-contrastive<=" in gate_of(said)
    (table,) = summary(groups([*real, pixels]), compare([*real, pixels]))
    assert all(standing.leaders == ("digits-contrastive",) for standing in standings(table))
    weak = told([breakaway("digits-robust"), based(breakaway("digits-random"))])
    assert "The baseline" not in weak
    assert "better than digits-random at" in told([breakaway("digits-random"), pixels])


def test_equal_encoders_are_not_ranked_by_chance():
    first = breakaway("one")
    second = first.model_copy(update={"encoder": first.encoder.model_copy(update={"name": "two"})})
    said = told([first, second])
    assert "tied in every headline row" in said
    (table,) = summary(groups([first, second]), compare([first, second]))
    assert not any(standing.telling for standing in standings(table))


def test_the_stronger_attack_is_named():
    said = told([breakaway("digits-random"), breakaway("digits-robust")])
    assert "Judge by the stronger attack: adaptive takes" in said


def gate_of(said: str) -> str:
    *command, gate = shlex.split(said.split("`")[1])
    assert command[:2] == ["holdfast", "check"]
    assert command[-1] == "--require"
    return gate


def test_the_suggested_gate_holds_for_the_encoder_it_was_made_from_alone():
    results = [breakaway("digits-random"), breakaway("digits-robust")]
    gate = gate_of(told(results))
    assert "@linf:0.1,encoder=digits-robust<=" in gate
    (answer,) = check(parse(gate), results)
    assert (answer.encoder, answer.passed) == ("digits-robust", True)
    (before, _, bound) = gate.rpartition("=")
    assert not check(parse(f"{before}={float(bound) / 2}"), results)[0].passed, "a loose bound"


def test_the_suggested_gate_names_the_run_as_a_shell_needs_it():
    results = [breakaway("digits-random"), breakaway("digits robust")]
    command = shlex.split(told(results, runs=["runs/my photos"]).split("`")[1])
    assert command[2] == "runs/my photos"
    assert check(parse(command[-1]), results)[0].encoder in ("digits robust", "digits-random")
    assert "holdfast check RUN " in told(results)


def test_no_gate_is_suggested_that_cannot_be_spelled():
    assert "gate it" not in told([breakaway("a,b"), breakaway("a<b")])


def test_the_worst_number_of_the_leader_is_the_worst():
    results = [breakaway("digits-random"), breakaway("digits-robust")]
    (table,) = summary(groups(results), compare(results))
    risk, accuracy = standings(table)
    assert risk.leaders == accuracy.leaders == ("digits-robust",)
    assert risk.worst is not None
    worst = max(e.value for e in results[1].estimates if e.quantity == "breakaway_risk")
    assert risk.worst[1].estimate.value == pytest.approx(worst)


def test_an_interval_for_what_was_not_seen_does_not_set_the_scale_of_its_row():
    weak, robust = breakaway("digits-random"), breakaway("digits-robust")
    zeros = {"value": 0.0, "low": 0.0, "high": 0.9, "method": "all values equal: Wilson"}
    estimates = tuple(e.model_copy(update=zeros) if e.better == "lower" else e for e in robust.estimates)
    robust = robust.model_copy(update={"findings": robust.findings.model_copy(update={"estimates": estimates})})
    (table,) = summary(groups([weak, robust]), compare([weak, robust]))
    seen, unseen = table.sections[0].rows[0].cells
    assert seen is not None
    assert unseen is not None
    assert seen.track is not None
    assert seen.track[2] == 100
    assert (unseen.track, unseen.cut, seen.cut) == ((0, 0, 100), (False, True), (False, False))
    assert "bound for what was not seen" in unseen.note
    assert "not seen" not in seen.note


def test_rows_keep_attacks_on_one_divergence_together():
    results = [breakaway("a"), breakaway("b")]
    (table,) = summary(groups(results), compare(results))
    rows = [(row.first, row.rest) for row in table.sections[0].rows]
    assert rows[:4] == [("ℓ∞ ≤ 0.05", f"{attack} · {d}") for d in ("ℓ2", "cosine") for attack in ("u-pgd", "adaptive")]
    assert [row.span for row in table.sections[0].rows] == [4, 0, 0, 0] * 2
