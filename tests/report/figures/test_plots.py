"""Drawings: true to the records, small, and part of the page."""

from __future__ import annotations

import re
from math import inf, nan

import numpy as np
import pytest

from holdfast.core.records import Claim, Curve, Findings
from holdfast.report.comparison.comparable import groups
from holdfast.report.figures import plots as charts
from holdfast.report.figures.plots import DOTS, POINTS, plates
from holdfast.report.figures.svg import LEVELS, Line, _frame, draw
from tests.facts import says
from tests.report.synthetic import breakaway, result, series

CASE = {"ball": "linf:0.05", "attack": "u-pgd", "divergence": "l2"}


def line(values) -> Line:
    values = np.asarray(values, dtype=float)
    return Line(values, np.linspace(0, 1, len(values)), 0)


def group_of(values):
    own = series("risk", CASE, np.asarray(values, dtype=float), "", Claim.LOWER, "risk")
    (group,) = groups([result("made-up", "a", Findings(ids=("x",) * len(values), series=(own,)), ())])
    return group


def test_colours_and_text_belong_to_the_page():
    svg = draw([line([0, 1, 2])], "x & <y>", "", alt='a "plot"')
    assert "var(--e0)" in svg
    assert "currentColor" in svg
    assert "x &amp; &lt;y&gt;" in svg
    assert 'aria-label="a &quot;plot&quot;"' in svg
    assert not re.search(r"font-family|metadata|http|#0102|#fe00", svg)


def test_labels_keep_their_digits():
    assert ">0.005<" in draw([line([0.001, 0.012])], "x", "", alt="x")


@pytest.mark.parametrize("top", [1.0, 0.1, 0.012, 1e-7, 12_345.0])
def test_the_widest_label_of_the_vertical_axis_has_room(top):
    # Text stays text, so its end is where the drawing says and its width is that of its digits.
    svg = draw([Line(np.array([0.0, 1.0]), np.array([0.0, top]), 0)], "x", "y", alt="x")
    (end,) = re.findall(r'text-anchor:end">(.*?)</g>', svg)
    labels = re.findall(r'x="([\d.]+)"[^>]*>([^<]+)<', end)
    assert labels
    assert all(float(x) >= 0.6 * 10.5 * len(said) for x, said in labels)


@pytest.mark.parametrize(
    ("values", "ticks"),
    [([1e-6, 1.0], [">1e-6<", ">1<"]), ([0.0, 1e-6, 1.0], [">0<", ">1e-6<", ">1<"]), ([-1.0, 1e-6, 5], [">0<"])],
)
def test_wide_ranges_get_readable_ticks(values, ticks):
    svg = draw([line(values)], "x", "", alt="x")
    assert all(tick in svg for tick in ticks)


def test_a_cloud_has_a_drawing_for_each_encoder_and_colouring():
    points = tuple(float(k) for k in range(3 * DOTS))
    cloud = Curve(
        quantity="embedding",
        x_label="first",
        y_label="second",
        x=points,
        y=points[::-1],
        colours={"score": points, "label": tuple(k % 3 for k in points)},
    )
    made = [result("made-up", name, Findings(ids=("x",), curves=(cloud,)), ()) for name in ("one", "two")]
    (group,) = groups(made)
    (plate,) = plates(group, group.encoders)
    assert [panel.title for panel in plate.panels] == [
        f"encoder {name} · by {colouring}" for name in ("one", "two") for colouring in ("score", "label")
    ]
    by_score, by_label = (re.findall(r"stroke:(#\w{6})", panel.svg) for panel in plate.panels[:2])
    assert [panel.svg.count("h0") for panel in plate.panels[:2]] == [DOTS, DOTS]
    assert 32 < len(set(by_score)) <= LEVELS + 1
    assert len(set(by_label)) == 3
    # The brightest stay, on top.
    assert by_score[-1] == "#fde725"
    files = charts.drawings([group], {group.key: (plate,)}, group.encoders)
    assert len(files) == 4
    assert not any("var(--e" in svg or 'stroke-width="2"' in svg for svg in files.values())


def test_marks_are_whole_numbers_and_say_nothing_twice():
    """A page of four encoders has thousands: a point behind a decimal and a repeated style are a tenth of it."""
    for panel in plates(group_of(np.linspace(1, 2, 500)), ["a"])[0].panels:
        marks = re.findall(r"<path [^>]*>", panel.svg)
        assert len(marks) > 1
        assert not any(re.search(r'd="[^"]*\.|fill:none|stroke-width:14', mark) for mark in marks)
        assert "scale(.1)" in panel.svg


def test_long_series_are_thinned_to_both_ends():
    svg = plates(group_of(np.linspace(1, 2, 50_000)), ["a"])[0].panels[0].svg
    assert len(svg) < 40 * POINTS + 10_000


def test_rounded_steps_of_a_path_add_up_to_its_end():
    svg = draw([Line(np.linspace(0, 1, 400), np.linspace(0, 1, 400) ** 2, 0)], "x", "", alt="x")
    (path,) = re.findall(r'<path d="M([^"]*)" style="stroke:var\(--e0\)', svg)
    ends = np.zeros(2)
    for command, numbers in re.findall(r"([lhv]?)([^lhv]+)", path):
        found = [float(number) for number in re.findall(r"-?[\d.]+", numbers)]
        straight = {"h": np.array([1.0, 0.0]), "v": np.array([0.0, 1.0])}
        ends += straight[command] * sum(found) if command in straight else np.reshape(found, (-1, 2)).sum(axis=0)
    frame = _frame([Line(np.linspace(0, 1, 2), np.linspace(0, 1, 2), 0)], "", False)
    assert ends / 10 == pytest.approx([frame.x(np.ones(1))[0], frame.y(np.ones(1))[0]], abs=0.06)


def test_shares_and_missing_series_are_not_drawn():
    assert plates(group_of([0, 1, 1, 0]), ["a"]) == ()
    assert plates(group_of([nan, nan]), ["a"]) == ()
    assert len(plates(group_of([0, 0.5, inf, nan]), ["a"])) == 1


def test_one_of_many_on_a_ladder_is_not_drawn():
    def drawn(**case):
        own = series("risk", case, np.array([0.1, 0.2]), "", Claim.LOWER, "risk")
        (group,) = groups([result("made-up", "a", Findings(ids=("x", "y"), series=(own,)), ())])
        return len(plates(group, ["a"]))

    assert (drawn(edit="jpeg"), drawn(edit="jpeg", rung="30"), drawn(corruption="fog-c")) == (1, 0, 0)


def test_certified_is_drawn_against_attacked_radius_from_the_stored_series():
    values = {"certified_radius": [0.1, 0.2, nan, 0.3], "attacked_radius": [0.15, 0.2, 0.4, inf]}
    found = tuple(series(name, {}, np.array(v), "linf distance", Claim.LOWER, "radius") for name, v in values.items())
    results = [result("made-up", name, Findings(ids=("x",) * 4, series=found), ()) for name in ("a", "b")]
    (group,) = groups(results)
    tightness = plates(group, ["a", "b"])[0]
    assert says(tightness.title, "Certified radius", "attacked radius")
    (panel,) = tightness.panels
    # A dot for each image that has both radii, and no line through them.
    for colour in ("--e0", "--e1"):
        (dots,) = re.findall(rf'<path style="stroke:var\({colour}\)[^"]*" d="([^"]*)"', panel.svg)
        assert len(re.findall("[Mm]", dots)) == dots.count("h0") == 2
    assert len(plates(groups([results[0]])[0], ["a"])) == 3


def test_attacks_share_a_panel_and_differ_in_dash():
    (group,) = groups([breakaway("digits-random"), breakaway("digits-robust")])
    curve, spread = plates(group, group.encoders)
    assert len(curve.panels) == 1
    assert len(spread.panels) == 4
    assert dict(spread.dashes) == {"u-pgd": "dashed", "adaptive": "solid"}


def curved(*encoders: str, **settings):
    curve = Curve(quantity="height", x_label="x", y_label="height", x=(0.0, 1.0), y=(1.0, 0.5), **settings)
    return groups([result("made-up", name, Findings(ids=("x",), curves=(curve,)), ()) for name in encoders])[0]


def test_what_the_data_allow_is_drawn_once_in_ink():
    (plain,), (plate,) = (plates(curved("a", "b", **own), ["a", "b"]) for own in ({}, {"reference": (2.0, 1.0)}))
    drawn = 'style="stroke:currentColor"'
    assert plate.panels[0].svg.count(drawn) == 1 + plain.panels[0].svg.count(drawn)
    assert "reference" in plate.caption
    assert "reference" not in plain.caption


def test_areas_with_a_meaning_are_shaded():
    (plain,), (plate,) = (plates(curved("a", reference=(2.0, 1.0), shaded=own), ["a"]) for own in (False, True))
    assert "fill:var(--e0);fill-opacity" in plate.panels[0].svg
    assert "fill:var(--e0);fill-opacity" not in plain.panels[0].svg
    assert "shaded area" in plate.caption
