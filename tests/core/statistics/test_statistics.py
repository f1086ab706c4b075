"""Numbers of one value per sample, and the words that go with them."""

from __future__ import annotations

from math import hypot, inf, isnan, nan

import numpy as np
import pytest
from scipy import stats as scipy_stats

from holdfast.core.errors import HoldfastError
from holdfast.core.records import Claim, Estimate
from holdfast.core.statistics.intervals import share_interval
from holdfast.core.statistics.summaries import Scale, chained_median, over_references, over_scale, summarise
from tests.core.statistics.series import series
from tests.facts import says


def interval(estimate: Estimate) -> tuple[float, float, float]:
    return estimate.low, estimate.value, estimate.high


def test_a_share_has_the_mid_p_interval():
    estimate = summarise(series([1, 0, 0, 1, 0]), "share", "lower", "risk_rate")
    assert interval(estimate) == pytest.approx((share_interval(2, 5)[0], 0.4, share_interval(2, 5)[1]))
    assert (estimate.quantity, estimate.series, estimate.method, estimate.n) == ("risk_rate", "risk", "mid-P", 5)
    assert estimate.statistic == "mean"


@pytest.mark.parametrize("values", [[0.5, 1, 0], [2, 0], [-1, 1], [inf, 0]])
def test_a_share_is_of_zeros_and_ones(values: list[float]):
    with pytest.raises(HoldfastError, match=r"samples.*0 and 1"):
        summarise(series(values), "share", "lower")


def test_an_estimate_carries_everything_its_series_says():
    estimate = summarise(series([1, 2, 4]), "mean", "higher")
    assert (estimate.unit, estimate.claim, estimate.of) == ("share", Claim.LOWER, "worst-case risk")
    assert (estimate.conditions, estimate.better, estimate.confidence) == ({"ball": "linf:0.1"}, "higher", 0.95)
    assert estimate.quantity == estimate.series == "risk"
    assert estimate.reason is None


@pytest.mark.parametrize("statistic", ["mean", "median", "share"])
def test_undefined_values_are_left_out_and_counted(statistic):
    values = [0, 1, 1, 0, 1, 1, 0, 1]
    whole = summarise(series(values), statistic, "lower")
    holed = summarise(series([nan, *values, nan], {0: "two images are equal", 9: "no"}), statistic, "lower")
    assert interval(holed) == interval(whole)
    assert (holed.n, holed.method) == (8, whole.method)
    assert says(holed.reason, "2 of 10", "equal")


@pytest.mark.parametrize("statistic", ["mean", "median", "share"])
def test_nothing_defined_is_undefined(statistic):
    estimate = summarise(series([nan, nan], {0: "all codes are equal"}), statistic, "lower")
    assert all(map(isnan, interval(estimate)))
    assert (estimate.n, estimate.method) == (0, "undefined")
    assert says(estimate.reason, "2 of 2", "codes")


@pytest.mark.parametrize(("value", "unseen"), [(0.0, "above"), (1.0, "below"), (0.25, "both")])
def test_equal_values_do_not_mean_certainty(value: float, unseen: str):
    """One more image, at the limit, has up to a share of 1 - 0.025^(1/30) of the population with 30 seen."""
    estimate = summarise(series([value] * 30), "mean", "lower")
    bound = 1 - 0.025 ** (1 / 30)
    assert estimate.value == value
    assert estimate.low == pytest.approx(value - value * bound, rel=0.03)
    assert estimate.high == pytest.approx(value + (1 - value) * bound, rel=0.1)
    assert (estimate.low < value, estimate.high > value) == {
        "above": (False, True),
        "below": (True, False),
        "both": (True, True),
    }[unseen]
    assert says(estimate.method, "Gaffke", "[0, 1]", "2000")


@pytest.mark.parametrize("value", [0.1, 3.0, 5.0])
def test_equal_values_stay_within_what_they_can_be(value: float):
    estimate = summarise(series([value] * 30), "mean", "lower", most=5.0)
    bound = 1 - 0.025 ** (1 / 30)
    assert estimate.value == pytest.approx(value)
    assert (estimate.low, estimate.high) == pytest.approx((value * (1 - bound), value + (5 - value) * bound), rel=0.1)
    assert estimate.high <= 5


def test_values_may_say_themselves_what_limits_them():
    influence = series([0.0] * 30).model_copy(update={"limits": (-1.0, 2.0)})
    estimate = summarise(influence, "mean", "lower")
    assert estimate.low < 0 < estimate.high
    assert estimate.high == pytest.approx(-2 * estimate.low)


@pytest.mark.parametrize(
    ("values", "reason"), [([7.5], "one sample"), ([7.5] * 3, "all values equal"), ([1, 2, inf], "infinite values")]
)
def test_some_means_have_no_interval(values: list[float], reason: str):
    estimate = summarise(series(values, unit="radius"), "mean", "lower")
    assert estimate.value == np.mean(values)
    assert isnan(estimate.low)
    assert isnan(estimate.high)
    assert estimate.method == f"{reason}: no interval"


def test_a_median_of_too_few_samples_says_so():
    few, enough = (summarise(series(range(n)), "median", "lower") for n in (5, 6))
    assert interval(few) == (0, 2, 4)
    assert few.method == "range of all 5, too few for 95%"
    assert interval(enough) == (0, 2.5, 5)
    assert enough.method == "order statistics"


def test_infinite_values_stay_infinite():
    estimate = summarise(series([1, 2, 3, 4, 5, 6, inf, inf, inf]), "median", "lower")
    assert interval(estimate) == (2, 5, inf)


def whole(value: float, low: float, high: float) -> Estimate:
    """An estimate with this interval."""
    return summarise(series([0.0, 1.0]), "mean", "lower").model_copy(update={"value": value, "low": low, "high": high})


def test_chance_in_the_references_adds_in_squares_end_by_end():
    """With equal shares s of n references the mean over pairs lies in [s - 2sb, s + 2(1-s)b], b = 1 - 0.025^(1/n).

    An image not drawn may have any share, and takes part in pairs twice; by hand from Zou and Donner's formula.
    """
    share, n = 0.2, 40
    unseen = 1 - 0.025 ** (1 / n)
    # Values within [-share, 2 - share], of which each is the share itself.
    below, above = 2 * share * unseen, 2 * (1 - share) * unseen
    found = over_references(whole(0.5, 0.47, 0.58), np.full(n, share))
    assert found.value == 0.5
    assert found.low == pytest.approx(0.5 - hypot(0.03, below), abs=0.003)
    assert found.high == pytest.approx(0.5 + hypot(0.08, above), abs=0.015)
    assert (found.series, found.statistic) == (None, "whole")
    certain = over_references(whole(0.02, 0.01, 0.03), np.full(n, share))
    assert certain.low == 0, "a share is not below 0"
    assert over_references(whole(0.98, 0.97, 0.99), np.full(n, share)).high == 1, "nor above 1"


def test_an_interval_over_references_covers_whichever_images_they_are():
    """Normal codes and one displacement: P(|x - x'| <= c) is known, and only the references are left to chance."""
    rng, hits, ignorant, reach = np.random.default_rng(0), [], [], 0.5
    truth = 2 * scipy_stats.norm.cdf(reach / np.sqrt(2)) - 1
    for _ in range(200):
        codes = rng.normal(size=60)
        near = (np.abs(codes[:, None] - codes) <= reach).sum(1) / 59 - 1 / 59
        value = float(near.mean())
        found = over_references(whole(value, value, value), near)
        hits.append(found.low <= truth <= found.high)
        single = scipy_stats.t.interval(0.95, 59, value, near.std(ddof=1) / np.sqrt(60))
        ignorant.append(single[0] <= truth <= single[1])
    assert np.mean(hits) >= 0.92
    assert np.mean(ignorant) < 0.9, "vacuous: pairs hide no chance"


def test_without_references_or_samples_an_interval_stays_as_it_is():
    estimate, undefined = whole(0.5, 0.4, 0.6), summarise(series([nan]), "median", "lower")
    assert over_references(estimate, np.zeros(0)) == estimate
    assert over_references(undefined, np.full(5, 0.5)) is undefined


def test_the_largest_scale_makes_the_smallest_share():
    """By hand: 0.4 of 2, which may be 1.6 or 3, is 0.8 in all: 0.8 / 3 below and 0.8 / 1.6 above."""
    found = over_scale(whole(0.4, 0.3, 0.5), Scale(2.0, 1.6, 3.0, 9))
    assert found.low == pytest.approx(0.4 - hypot(0.1, 0.4 - 0.8 / 3))
    assert found.high == pytest.approx(0.4 + hypot(0.1, 0.8 / 1.6 - 0.4))
    assert over_scale(whole(0.4, 0.3, 0.5), Scale(2.0, 0.0, 3.0, 9)).high == inf, "a scale that may be zero"
    assert over_scale(whole(0.1, 0.0, 0.5), Scale(2.0, 1.0, 90.0, 9)).low == 0, "no share is below 0"
    assert over_scale(whole(inf, 0.3, inf), Scale(2.0, 1.6, 3.0, 9)).high == inf


@pytest.mark.parametrize(("order", "counted"), [("alternating", 40), ("in two halves", 20), ("in pairs", 40)])
def test_distances_of_a_ring_count_by_how_much_neighbours_agree(order: str, counted: int):
    """By hand: neighbours on opposite sides of the median count fully; on the same, two for one at most; else in between."""
    small, large = np.linspace(1, 1.9, 20), np.linspace(2.1, 3, 20)
    ring = {
        "alternating": np.stack([small, large], 1).ravel(),
        "in two halves": np.concatenate([small, large]),
        # Of two neighbours one is on the same side and one on the other: no correlation.
        "in pairs": np.stack([small[::2], small[1::2], large[::2], large[1::2]], 1).ravel(),
    }[order]
    found = chained_median(ring)
    ends = np.quantile(ring, share_interval(counted / 2, counted))
    assert found.value == pytest.approx(2.0)
    assert (found.low, found.high) == pytest.approx(tuple(ends))
    assert found.n == 40


def test_a_distance_that_is_not_known_agrees_with_nobody():
    """One hole in the ring: 39 distances, and the two neighbours of the hole have one neighbour less to agree with."""
    ring = np.concatenate([np.linspace(1, 1.9, 20), np.linspace(2.1, 3, 19), [nan]])
    found = chained_median(ring)
    assert (found.n, found.value) == (39, 1.9)
    assert found.low < 1.9 < found.high
    assert isnan(chained_median(np.array([0.0, 0.0, 1.0])).value), "a scale of zero"
