"""Intervals of images in groups: those of single images where each is its own group, and right about groups where not."""

from __future__ import annotations

from math import isnan

import numpy as np
import pytest

from holdfast.core.records import Claim, Findings, Series
from holdfast.core.statistics.groups import group_mean_interval, group_median_interval, numbered, widening, with_groups
from holdfast.core.statistics.intervals import bounded_interval, skewed_interval
from holdfast.core.statistics.summaries import summarise

RNG = np.random.default_rng(5)
VALUES = RNG.random(40)


def test_single_images_have_the_intervals_they_had():
    alone = np.arange(40)
    assert group_mean_interval(VALUES, alone, None) == pytest.approx(skewed_interval(VALUES))
    assert group_mean_interval(VALUES, alone, (0.0, 1.0)) == pytest.approx(
        bounded_interval(VALUES, (0.0, 1.0)), abs=5e-3
    )


@pytest.mark.parametrize("limits", [None, (0.0, 1.0)])
def test_an_image_copied_ten_times_is_one_image(limits):
    copies, groups = np.repeat(VALUES, 10), np.repeat(np.arange(40), 10)
    assert group_mean_interval(copies, groups, limits) == pytest.approx(
        group_mean_interval(VALUES, np.arange(40), limits), abs=1e-9
    )
    naive = group_mean_interval(copies, np.arange(400), limits)
    low, high = group_mean_interval(copies, groups, limits)
    assert high - low > 2.5 * (naive[1] - naive[0])


def test_neither_order_nor_names_of_groups_matter():
    groups, order = RNG.integers(0, 9, 40), RNG.permutation(40)
    renamed = numbered(np.array([f"slide {9 - group}" for group in groups]))
    for limits in (None, (0.0, 1.0)):
        expected = group_mean_interval(VALUES, numbered(groups), limits)
        assert group_mean_interval(VALUES[order], numbered(groups[order]), limits) == pytest.approx(expected, rel=1e-12)
        assert group_mean_interval(VALUES, renamed, limits) == pytest.approx(expected, rel=1e-12)
    assert group_median_interval(VALUES, renamed) == group_median_interval(VALUES, numbered(groups))


def test_one_group_decides_nothing():
    assert all(map(isnan, group_mean_interval(VALUES, np.zeros(40, dtype=int), (0.0, 1.0))))
    assert all(map(isnan, group_median_interval(VALUES, np.zeros(40, dtype=int))))


def drawn(rng: np.random.Generator, groups: int, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Return values of a population of mean and median 0 (or share .2) in groups of 1 to 15 that are nearly alike inside."""
    index = np.repeat(np.arange(groups), rng.integers(1, 16, groups))
    if kind == "share":
        chance = rng.beta(0.4, 1.6, groups)[index]
        return (rng.random(len(index)) < chance).astype(float), index
    return rng.normal(size=groups)[index] + 0.3 * rng.normal(size=len(index)), index


INTERVALS = {
    "mean": (lambda values, index: group_mean_interval(values, index, None), 0.0),
    "median": (group_median_interval, 0.0),
    "share": (lambda values, index: group_mean_interval(values, index, (0.0, 1.0)), 0.2),
}


@pytest.mark.slow
@pytest.mark.parametrize("groups", [12, 40])
@pytest.mark.parametrize("kind", INTERVALS)
def test_the_truth_is_covered_where_images_depend_on_each_other(kind, groups):
    rng, draws = np.random.default_rng(groups), 200
    interval, truth = INTERVALS[kind]
    covered = lost = 0
    for _ in range(draws):
        values, index = drawn(rng, groups, kind)
        low, high = interval(values, index)
        covered += low <= truth <= high
        low, high = interval(values, np.arange(len(values)))
        lost += not low <= truth <= high
    assert covered >= 0.9 * draws
    assert lost > 0.2 * draws, "vacuous: images are as good as independent"


def test_findings_say_which_intervals_cannot_allow_for_groups():
    series = Series(quantity="q", values=tuple(VALUES), unit="share", claim=Claim.ESTIMATE, of="q")
    whole = summarise(series, "mean", "lower").model_copy(update={"series": None, "statistic": "whole"})
    alone = Findings(
        ids=tuple(map(str, range(40))), series=(series,), estimates=(summarise(series, "mean", "lower"), whole)
    )
    assert with_groups(alone) is alone
    elsewhere = whole.model_copy(update={"quantity": "another"})
    groups = tuple("abcdefgh" * 5)
    several = alone.model_copy(update={"groups": groups, "estimates": (*alone.estimates, elsewhere)})
    ours, more, other = with_groups(several).estimates
    assert ours.method.endswith("over 8 groups of images")
    assert ours.value == alone.estimates[0].value
    factor = max(widening(VALUES, numbered(np.array(groups))), 1.0)
    assert more.value - more.low >= factor * (whole.value - whole.low) - 1e-12
    assert "for 8 groups of images (design effect)" in more.method
    assert (other.low, other.high) == (whole.low, whole.high)
    for one in with_groups(alone.model_copy(update={"groups": ("a",) * 40})).estimates:
        assert isnan(one.low + one.high)
        assert one.method == "no interval: 1 group of images"
    assert other.method.endswith("as if images were independent, not in groups")


@pytest.mark.parametrize(("unit", "limits"), [("share of others", (-0.0125, 0.9875)), ("index in [0, 1]", None)])
def test_a_number_in_the_unit_interval_stays_there_though_influences_on_it_do_not(unit, limits):
    values = np.full(40, -0.0125)
    values[0] = 0.9875  # as of one image that breaks away from half of the others, and that half of them pass
    series = Series(quantity="q", values=tuple(values), unit=unit, claim=Claim.LOWER, of="q", limits=limits)
    alone = Findings(ids=tuple(map(str, range(40))), series=(series,), estimates=(summarise(series, "mean", "lower"),))
    (several,) = with_groups(alone.model_copy(update={"groups": tuple("abcdefgh" * 5)})).estimates
    assert group_mean_interval(values, numbered(np.arange(40) % 8), limits)[0] < 0, "vacuous fixture"
    assert several.low == 0 < several.high <= 1
    (one,) = with_groups(alone.model_copy(update={"groups": ("a",) * 40})).estimates
    assert isnan(one.low + one.high)
    assert one.method == "no interval: 1 group of images"


@pytest.mark.parametrize("copies", [4, 25])
def test_copies_lengthen_an_interval_as_much_as_they_add_nothing(copies):
    groups = np.repeat(np.arange(40), copies)
    assert widening(np.repeat(VALUES, copies), groups) == pytest.approx(copies**0.5, rel=0.06)
    assert widening(VALUES, np.arange(40)) == pytest.approx(1, rel=0.02)
