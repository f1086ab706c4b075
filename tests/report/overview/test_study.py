"""What a study found of the numbers, as reports quote it: no more than it says, and in its order."""

from __future__ import annotations

from math import nan

from holdfast.report.contents import Contents
from holdfast.report.overview.study import Evidence, Undefended, study
from holdfast.report.page.page import render
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


def test_a_number_is_confirmed_only_by_encoders_kept_apart():
    again = {"encoders": 48, "tau": 0.5, "low": 0.2, "high": 0.7, "held": True}
    assert made(again=again).verdict == "confirmed"
    assert made(advice="none", again={**again, "held": False}).verdict == "not confirmed"
    assert made(advice="none", again={**again, "held": None}).verdict == made(advice="none").verdict
    assert "confirmed" not in made().verdict
    assert made(tau=-0.05, low=-0.5).words == "−0.05 [−0.50, 0.94]"
    unknown = made(advice="not judged", tau=nan, low=nan, high=nan)
    assert "nan" not in unknown.words


def test_the_attack_radius_is_found_where_the_study_took_it():
    assert study().of("attack-radius", "attack_radius") is study().of("breakaway", "attack_radius")
    assert study().of("attack-radius", "risk") is None


def test_what_is_said_of_a_number_was_found_of_exactly_this_one():
    (only,) = (one for one in study().measures if one.evaluation == "overlap")
    assert study().of("overlap", only.quantity) is only
    assert study().of("overlap", "overlap_risk") is None
    assert study().of("geometry", "rankme") != study().of("geometry", "uniformity")
    assert study().of("geometry", "effective_rank") is None
    assert study().of("impersonation", "impersonation_rate") is None


def test_what_held_among_undefended_encoders_is_said_with_its_caveat():
    assert {"overlap", "24"} <= set(Undefended(encoders=24, names=("overlap",)).sentence.replace(",", "").split())
    assert "no number" in Undefended(encoders=24, names=()).sentence
    unseen = study().model_copy(update={"undefended": None})
    assert len(unseen.sentences) == len(study().sentences) - 1


def test_what_is_known_without_any_measure_is_said():
    radius, *others = study().baselines
    assert [radius.name, *(one.name for one in others)] == ["training radius", "clean accuracy", "median distance"]
    (said,) = (sentence for sentence in study().sentences if radius.name in sentence)
    assert all(one.name in said and f"{one.tau:.2f}" in said for one in study().baselines)


def test_the_page_has_a_row_for_each_measured_number_of_the_study():
    results, failures = everything()
    page = render(Contents(results, failures))
    table = page[page.index('id="study"') :].partition("</table>")[0]
    measured = {(r.evaluation, e.quantity) for r in results for e in r.estimates}
    studied = [one for one in study().measures if (one.evaluation, one.quantity) in measured]
    assert studied
    assert table.count('<th scope="row">') == len(studied)
    assert all(one.words in table and one.verdict in table for one in studied)
    assert "docs/" not in page, "a page that opens alone names no file of the sources"
