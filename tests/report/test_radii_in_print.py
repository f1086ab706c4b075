"""Radii of l_inf balls are shown in grey levels to people, wherever a report has them, and stay as they are in its files."""

from __future__ import annotations

import json
from math import inf

import numpy as np
import pytest

from holdfast.cli.terminal import show_result
from holdfast.core.records import Claim, Findings, Result
from holdfast.core.statistics.quantiles import radius_findings
from holdfast.core.statistics.summaries import summarise
from holdfast.measure.observation import radius_curve
from holdfast.report.contents import Contents
from holdfast.report.figures.plots import plates
from holdfast.report.files import report
from holdfast.report.page.page import render
from holdfast.report.printed import csv, latex, markdown
from holdfast.report.text import ball, norm_of, value
from tests.report.synthetic import breakaway, ids, result, series

LEVELS = {"a": 0.2, "b": 0.1}


def attacked(encoder: str, ball: str = "linf:0.5", beyond: int = 0) -> Result:
    radii = np.linspace(0.5, 1.5, 61) * LEVELS[encoder] / 255
    radii[len(radii) - beyond :] = inf
    case = {"ball": ball, "attack": "adaptive", "divergence": "l2"}
    norm = ball.partition(":")[0]
    found = series("attack_radius", case, radii, f"{norm} distance", Claim.UPPER, "smallest radius")
    return result("attack-radius", encoder, radius_findings(ids(61), [found], norm, ()), ("attack_radius",))


def test_every_form_for_people_says_grey_levels(capsys: pytest.CaptureFixture[str]) -> None:
    results = [attacked("a"), attacked("b")]
    contents = Contents(results, ())
    (row,) = contents.first_screens[0].rows
    assert row.cells[0].said == "≤ 0.2/255"
    assert "[0.1" in row.cells[0].detail
    page = render(contents)
    assert page.count('<span class="value">0.200/255</span>') == 2, "comparisons, all numbers"
    assert '<span class="value">0.100/255</span> <span class="interval">[0.' in page, "the difference of a and b, and b"
    show_result(results[0])
    for text in (
        page,
        markdown(contents.tables, contents.first_screens),
        latex(contents.tables),
        capsys.readouterr().out,
    ):
        assert "e-4" not in text
        assert "255" in text


def test_files_for_programs_keep_the_pixels_unit() -> None:
    contents = Contents([attacked("a"), attacked("b")], ())
    median = contents.results[0].estimates[0].value
    assert repr(median) in csv(contents.groups, contents.comparison)
    stored = json.loads(report(contents).model_dump_json())
    assert (
        stored["first_screens"][0]["rows"][0]["cells"][0]["estimates"][0]["value"] == median == pytest.approx(0.2 / 255)
    )


def test_other_norms_and_other_numbers_are_plain() -> None:
    (row,) = Contents([attacked("a", "l2:5.0")], ()).first_screens[0].rows
    assert "255" not in row.cells[0].said + row.under
    codes = series(
        "attacked_tau", {"ball": "linf:0.05", "divergence": "linf"}, np.ones(4), "linf distance", Claim.LOWER, ""
    )
    assert norm_of(codes) == "", "a distance of codes, not of pixels"
    assert value(summarise(codes, "mean", "lower"), 0.5) == "0.500"


@pytest.mark.parametrize(("ball", "words"), [("linf:8/255", "> 8/255"), ("l2:5.0", "> 5")])
def test_what_lies_beyond_the_search_has_the_unit_of_the_others(ball: str, words: str) -> None:
    (row,) = Contents([attacked("a", ball, beyond=40)], ()).first_screens[0].rows
    assert row.cells[0].said == words


def test_axes_are_in_grey_levels_where_curves_are_over_a_radius() -> None:
    estimates = attacked("a").estimates[:2]
    curve = radius_curve("risk", {"ball": "linf"}, [(0.1, estimates[0]), (0.2, estimates[1])])
    (group,) = Contents([result("made-up", "a", Findings(ids=("x",), curves=(curve,)), ())], ()).groups
    (plate,) = plates(group, ["a"])
    assert plate.title == "Risk by ℓ∞ radius"
    assert ">ℓ∞ radius in 1/255</text>" in plate.panels[0].svg
    assert ">50</text>" in plate.panels[0].svg
    (group,) = Contents([attacked("a")], ()).groups
    assert ">attack radius (ℓ∞ distance in 1/255)</text>" in plates(group, ["a"])[-1].panels[0].svg


def test_a_chosen_radius_has_the_unit_of_the_others_and_its_written_form_in_the_tooltip() -> None:
    results = [breakaway(name) for name in ("digits-random", "digits-robust")]
    contents = Contents(results, ())
    assert {like.conditions.get("ball") for like in results[0].estimates} >= {"linf:0.05", "linf:0.1"}
    page = render(contents)
    for text in (page, markdown(contents.tables, contents.first_screens), latex(contents.tables)):
        assert "12.75/255" in text
        assert "≤ 0.05" not in text
    assert 'title="linf:0.05">ℓ∞ ≤ 12.75/255' in page


def test_a_written_fraction_and_another_norm_stay() -> None:
    assert [ball(text) for text in ("linf:8/255", "linf:0.0035294", "l2:0.25")] == [
        "ℓ∞ ≤ 8/255",
        "ℓ∞ ≤ 0.9/255",
        "ℓ2 ≤ 0.25",
    ]
