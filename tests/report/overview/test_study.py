"""What a study found of the numbers, as reports quote it: no more than it says, and in its order."""

from __future__ import annotations

from math import nan

import pytest

from holdfast.report.contents import Contents
from holdfast.report.overview.study import Evidence, Undefended, study
from holdfast.report.page.page import render
from holdfast.report.printed import markdown
from holdfast.run.catalog import evaluations
from tests.report.synthetic import everything

BESIDE = {"attack_radius", "divergence_radius", "synbench_score"}
"""Numbers that the study takes from values of images or under one condition, beside the main ones of an evaluation."""


def test_the_study_speaks_of_what_the_library_measures():
    found = evaluations()
    for one in study().measures:
        assert one.quantity in {*found[one.evaluation].headline, *BESIDE}
    assert study().reference in found


def made(**changes) -> Evidence:
    told = {
        "evaluation": "displacement", "quantity": "universal_quantile", "advice": "use", "tau": 0.8, "low": 0.57,
        "high": 0.94, "encoders": 29, "won": (),
    }  # fmt: skip
    return Evidence.model_validate({**told, **changes})


def test_a_sentence_says_what_was_found_and_who_won_by_the_number():
    learned = study().learned_nothing
    assert made().sentence == (
        "In a study of 29 small encoders this number ranked them much as robust probes did (tau 0.80 [0.57, 0.94]); "
        f"none of {learned} encoders that learned nothing won by it."
    )
    lazy = made(advice="none", tau=-0.05, low=-0.5, won=("mnist pixels",))
    said = lazy.sentence
    assert "this number gave no evidence of how robust probes on them are (tau −0.05 [−0.50, 0.94])" in said
    assert said.endswith(f"; 1 of {learned} encoders that learned nothing won by it.")
    assert (made().badge, lazy.badge) == ("evidence: tau 0.80", "no evidence: tau −0.05")
    unknown = made(advice="not judged", tau=nan, low=nan, high=nan)
    assert "nan" not in unknown.sentence + unknown.badge
    assert unknown.badge == "not judged"


def test_what_encoders_kept_apart_said_is_part_of_the_sentence():
    again = {"encoders": 48, "tau": 0.5, "low": 0.2, "high": 0.7, "held": True}
    assert (
        "; among 48 encoders kept apart until then this held (tau 0.50 [0.20, 0.70]); none of"
        in made(again=again).sentence
    )
    lost = made(advice="none", again={**again, "held": False}).sentence
    assert "ranked them somewhat as robust probes did, with doubts (tau 0.80" in lost
    assert "this did not hold" in lost
    assert "then tau was 0.50 [0.20, 0.70]" in made(advice="none", again={**again, "held": None}).sentence


def test_what_is_said_of_a_number_was_found_of_exactly_this_one():
    (only,) = (one for one in study().measures if one.evaluation == "overlap")
    assert study().of("overlap", only.quantity) is only
    assert study().of("overlap", "overlap_risk") is None
    assert study().of("geometry", "rankme") != study().of("geometry", "uniformity")
    assert study().of("geometry", "effective_rank") is None
    assert study().of("impersonation", "impersonation_rate") is None


@pytest.fixture(scope="module")
def card():
    results, _ = everything()
    (first, *_) = Contents(results, ()).scorecards
    return first


def test_rows_stand_in_the_order_of_the_study(card):
    places = [line.place for line in card.lines]
    assert places == sorted(places)
    assert len(set(places)) > 1, "vacuous fixture"
    told = [line for line in card.lines if line.study]
    for advice in ("use", "some"):
        useful = [line.study.tau for line in told if line.study.advice == advice]
        assert useful == sorted(useful, reverse=True)
    backed = [line.study.advice in ("use", "some") for line in told]
    assert backed == sorted(backed, reverse=True), "those with evidence stand first"
    line = card.lines[0].model_copy(update={"study": None, "evaluation": study().reference})
    assert line.place < min(places), "what all others were compared with"


def test_the_order_that_is_told_is_that_of_the_rows(card):
    line = card.lines[0].model_copy(update={"study": None, "leads": False, "evaluation": "another"})
    rows = {
        "attack radius": line.model_copy(update={"leads": True}),
        "robust accuracy, if": line.model_copy(update={"evaluation": study().reference}),
        "that predicted it": line.model_copy(update={"study": made(advice="use", tau=0.1)}),
        "with doubts": line.model_copy(update={"study": made(advice="some", tau=0.9)}),
        "not studied": line,
        "without evidence": line.model_copy(update={"study": made(advice="none", tau=0.9)}),
    }
    told = [study().order.index(words) for words in rows]
    assert told == sorted(told)
    places = [row.place for row in rows.values()]
    assert places == sorted(set(places))


def test_what_held_among_undefended_encoders_is_said_with_its_caveat():
    assert (
        "that were not trained against attacks, overlap predicted it, by intervals not corrected"
        in Undefended(encoders=24, names=("overlap",)).sentence
    )
    assert Undefended(encoders=24, names=()).sentence.endswith("no number predicted it.")
    unseen = study().model_copy(update={"undefended": None})
    assert "not trained" not in unseen.order
    assert "The clean accuracy has tau 0." in study().order
    assert "there." not in unseen.order


def test_what_is_known_without_any_measure_is_said():
    radius, *others = study().baselines
    assert [radius.name, *(one.name for one in others)] == ["training radius", "clean accuracy", "median distance"]
    better = [one.quantity for one in study().measures if one.tau > radius.tau]
    said = f"{len(better)} measure" if better else "none of the measures"
    assert f"{said}" in study().order
    assert f"training radius (tau {radius.tau:.2f}" in study().order


def test_page_and_markdown_quote_each_sentence_once(card):
    results, failures = everything()
    page = render(Contents(results, failures))
    assert card.studied, "vacuous fixture"
    printed = markdown((), [card]).replace("\\", "")
    for sentence in card.studied:
        assert sentence in printed
        assert f"<li>{sentence}</li>" in page
    assert card.order in printed
    assert card.order in page
    assert page.count('class="badge') == len(card.studied)
