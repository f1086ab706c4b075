"""Numbers of one value per sample, and the words that go with them."""

from __future__ import annotations

from math import inf, isnan, nan

import numpy as np
import pytest

from holdfast.core.errors import HoldfastError
from holdfast.core.intervals import share_interval
from holdfast.core.records import Claim, Estimate
from holdfast.core.statistics import summarise
from tests.core.series import series


def interval(estimate: Estimate) -> tuple[float, float, float]:
    return estimate.low, estimate.value, estimate.high


def test_a_share_has_the_mid_p_interval():
    estimate = summarise(series([1, 0, 0, 1, 0]), "share", "lower", "risk_rate")
    assert interval(estimate) == pytest.approx((share_interval(2, 5)[0], 0.4, share_interval(2, 5)[1]))
    assert (estimate.quantity, estimate.series, estimate.method, estimate.n) == ("risk_rate", "risk", "mid-P", 5)
    assert estimate.statistic == "mean"


@pytest.mark.parametrize("values", [[0.5, 1, 0], [2, 0], [-1, 1], [inf, 0]])
def test_a_share_is_of_zeros_and_ones(values: list[float]):
    with pytest.raises(HoldfastError, match="share of samples needs values 0 and 1, got"):
        summarise(series(values), "share", "lower")


def test_an_estimate_carries_everything_its_series_says():
    estimate = summarise(series([1, 2, 4]), "mean", "higher", confidence=0.9)
    assert (estimate.unit, estimate.claim, estimate.of) == ("share", Claim.LOWER, "worst-case risk")
    assert (estimate.conditions, estimate.better, estimate.confidence) == ({"ball": "linf:0.1"}, "higher", 0.9)
    assert estimate.quantity == estimate.series == "risk"
    assert estimate.reason is None


@pytest.mark.parametrize("statistic", ["mean", "median", "share"])
def test_undefined_values_are_left_out_and_counted(statistic):
    values = [0, 1, 1, 0, 1, 1, 0, 1]
    whole = summarise(series(values), statistic, "lower")
    holed = summarise(series([nan, *values, nan], {0: "two images are equal", 9: "no"}), statistic, "lower")
    assert interval(holed) == interval(whole)
    assert (holed.n, holed.method) == (8, whole.method)
    assert holed.reason == "2 of 10 samples undefined: two images are equal"


@pytest.mark.parametrize("statistic", ["mean", "median", "share"])
def test_nothing_defined_is_undefined(statistic):
    estimate = summarise(series([nan, nan], {0: "all codes are equal"}), statistic, "lower")
    assert all(map(isnan, interval(estimate)))
    assert (estimate.n, estimate.method) == (0, "undefined")
    assert estimate.reason == "2 of 2 samples undefined: all codes are equal"


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
    assert estimate.method == "Gaffke's bounds for values in [0, 1], 2000 draws"


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
