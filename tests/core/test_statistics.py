"""Intervals against independent formulas and by simulation, and the words that go with them."""

from __future__ import annotations

from functools import partial
from math import inf, isnan, nan
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from holdfast.core.errors import HoldfastError
from holdfast.core.records import Claim, Estimate, Series
from holdfast.core.statistics import (
    Better,
    bounded_interval,
    jackknife,
    median_interval,
    paired,
    share_interval,
    skewed_interval,
    summarise,
)

NOISE = np.random.default_rng(0).normal(size=100)


def series(values, reasons: dict[int, str] | None = None, unit: str = "share") -> Series:
    return Series(
        quantity="risk",
        conditions={"ball": "linf:0.1"},
        values=tuple(map(float, values)),
        unit=unit,
        claim=Claim.LOWER,
        of="worst-case risk",
        reasons=reasons or {},
    )


def mean_of(values: np.ndarray, rows: list[int]) -> float:
    return float(values[rows].mean())


def interval(estimate: Estimate) -> tuple[float, float, float]:
    return estimate.low, estimate.value, estimate.high


@given(n=st.integers(1, 2000), share=st.floats(0, 1), confidence=st.sampled_from([0.5, 0.9, 0.95, 0.999]))
def test_at_each_end_of_a_share_half_of_what_was_seen_counts(n: int, share: float, confidence: float):
    seen, tail = round(share * n), (1 - confidence) / 2
    low, high = share_interval(seen, n, confidence)
    half_seen = [scipy_stats.binom.pmf(seen, n, end) / 2 for end in (low, high)]
    above, below = scipy_stats.binom.sf(seen, n, low), scipy_stats.binom.cdf(seen - 1, n, high)
    assert seen == 0 or above + half_seen[0] == pytest.approx(tail, rel=1e-6)
    assert seen == n or below + half_seen[1] == pytest.approx(tail, rel=1e-6)


@pytest.mark.parametrize("n", [50, 100, 300, 1000])
def test_the_interval_of_a_share_covers_exactly(n: int):
    """Where few fail, Wilson's covers 0.84 in places, Clopper and Pearson's more than 0.99 in a third of them."""
    ends = np.array([share_interval(seen, n) for seen in range(n + 1)])

    def coverage(share: float) -> float:
        inside = (ends[:, 0] <= share) & (share <= ends[:, 1])
        return float(scipy_stats.binom.pmf(np.arange(n + 1), n, share) @ inside)

    rare = np.array([coverage(failures / n) for failures in np.linspace(0.2, 5, 200)])
    common = np.array([coverage(share) for share in np.linspace(0.1, 0.9, 200)])
    assert 0.91 < rare.min() < rare.mean() < 0.98
    assert 0.93 < common.min() < common.max() < 0.98


def test_the_interval_of_a_share_never_leaves_the_unit_interval_and_includes_the_share():
    for n in (1, 3, 7, 1024, 10**6):
        for successes in {0, 1, n // 3, n - 1, n}:
            low, high = share_interval(successes, n)
            assert 0 <= low <= successes / n <= high <= 1
            assert low < high


@given(n=st.integers(1, 300), confidence=st.sampled_from([0.5, 0.9, 0.95, 0.99]))
def test_the_median_interval_is_the_shortest_that_covers(n: int, confidence: float):
    """Exactly: P(rank r <= median <= rank n + 1 - r) = 1 - 2 P(Binomial(n, 1/2) < r)."""
    low, high = median_interval(np.arange(1.0, n + 1), confidence)
    rank = int(low)
    assert high == n + 1 - rank

    def coverage(r: int) -> float:
        return float(1 - 2 * scipy_stats.binom.cdf(r - 1, n, 0.5))

    assert coverage(rank) >= confidence or rank == 1
    assert coverage(rank + 1) < confidence


def test_the_median_interval_of_few_samples_by_hand():
    ranks = {n: median_interval(np.random.default_rng(n).permutation(n) + 1.0) for n in (5, 6, 8, 9, 20)}
    assert ranks == {5: (1, 5), 6: (1, 6), 8: (1, 8), 9: (2, 8), 20: (6, 15)}


@pytest.mark.parametrize("n", [20, 50])
@pytest.mark.parametrize(
    "law", [scipy_stats.norm, scipy_stats.expon, scipy_stats.cauchy], ids=["norm", "expon", "cauchy"]
)
def test_the_median_interval_covers(n: int, law):
    draws = law.rvs(size=(1000, n), random_state=0)
    median = law.median()
    hits = [low <= median <= high for low, high in map(median_interval, draws)]
    assert 0.93 <= np.mean(hits) < 0.999


def law_of_shares(nonzero: float, size: Any, n: int, rng: np.random.Generator) -> np.ndarray:
    """The law of breakaway shares: most images are never passed, a few by many others."""
    return size.rvs(size=n, random_state=rng) * (rng.random(n) < nonzero)


RARE_AND_LARGE, COMMON_AND_SMALL = (0.01, scipy_stats.uniform()), (0.5, scipy_stats.beta(0.5, 49.5))
"""Two encoders of the same risk, 0.005: few images carry all of it, or many images some of it."""


@pytest.mark.parametrize("n", [60, 300, 1000])
@pytest.mark.parametrize(
    ("nonzero", "size"),
    [RARE_AND_LARGE, COMMON_AND_SMALL, (0.05, scipy_stats.beta(0.5, 20)), (1, scipy_stats.uniform())],
    ids=["rare and large", "common and small", "some", "all"],
)
def test_the_mean_of_shares_is_covered_however_few_carry_it(nonzero: float, size: Any, n: int):
    rng, truth = np.random.default_rng(0), nonzero * size.mean()
    ends = [bounded_interval(law_of_shares(nonzero, size, n, rng), (0.0, 1.0)) for _ in range(200)]
    assert np.mean([low <= truth <= high for low, high in ends]) >= 0.92


@given(n=st.integers(1, 400), share=st.floats(0.0, 1.0))
def test_bounds_of_yes_and_no_are_exact(n: int, share: float):
    """For zeros and ones they are Clopper and Pearson's, up to the draws."""
    ones = round(share * n)
    expected = scipy_stats.binomtest(ones, n).proportion_ci(0.95, method="exact")
    low, high = bounded_interval(np.repeat([1.0, 0.0], [ones, n - ones]), (0.0, 1.0))
    width = expected.high - expected.low
    assert (low, high) == pytest.approx((expected.low, expected.high), abs=0.1 * width)


def test_bounds_of_paired_yes_and_no_are_mcnemars():
    """Of ``ups + downs`` images on which two encoders differ, zero is inside exactly if the split may be chance."""
    for ups, downs in [(0, 5), (0, 7), (1, 7), (1, 10), (3, 10), (3, 13), (10, 20), (10, 25)]:
        values = np.repeat([1.0, -1.0, 0.0], [ups, downs, 300 - ups - downs])
        low, high = bounded_interval(values, (-1.0, 1.0))
        assert (low <= 0 <= high) == (scipy_stats.binomtest(ups, ups + downs).pvalue > 0.05), (ups, downs)


def test_bounds_ignore_order_and_mirror():
    values = np.random.default_rng(0).random(40)
    low, high = bounded_interval(values, (0.0, 1.0))
    assert bounded_interval(values[::-1], (0.0, 1.0)) == (low, high)
    assert bounded_interval(-values, (-1.0, 0.0)) == (-high, -low)
    assert bounded_interval(3 * values + 5, (5.0, 8.0)) == pytest.approx((3 * low + 5, 3 * high + 5), rel=1e-5)
    assert low < values.mean() < high


@pytest.mark.parametrize("law", [scipy_stats.norm, scipy_stats.expon, scipy_stats.lognorm(1)])
@pytest.mark.parametrize("n", [20, 50, 100])
def test_means_without_limits_are_covered(law, n: int):
    """Radii, say. Student's own interval covers the last of these laws in 0.87 of cases at n = 20 and 0.90 at 50."""
    draws = law.rvs(size=(500, n), random_state=0)
    assert 0.91 <= np.mean([low <= law.mean() <= high for low, high in map(skewed_interval, draws)]) <= 0.98


def test_without_skewness_the_interval_is_students():
    values = np.concatenate([NOISE, -NOISE])
    expected = scipy_stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert skewed_interval(values) == pytest.approx((expected.low, expected.high))


def test_the_interval_without_limits_moves_scales_and_ignores_order():
    values = np.random.default_rng(0).exponential(size=40)
    low, high = skewed_interval(values)
    assert skewed_interval(values[::-1]) == (low, high)
    assert skewed_interval(3 * values + 5) == pytest.approx((3 * low + 5, 3 * high + 5))
    assert skewed_interval(-values) == pytest.approx((-high, -low))


def test_the_jackknife_knows_the_variance_of_a_mean():
    """With one sample per group it is the textbook t interval, exactly."""
    values = np.random.default_rng(0).normal(size=12)
    low, high = jackknife(partial(mean_of, values), 12, groups=100)
    expected = scipy_stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert (low, high) == pytest.approx((expected.low, expected.high))


def test_the_grouped_jackknife_covers():
    hits = []
    for values in np.random.default_rng(0).exponential(size=(400, 100)):
        low, high = jackknife(partial(mean_of, values), 100)
        hits.append(low <= 1 <= high)
    assert 0.91 <= np.mean(hits) <= 0.99


def test_the_jackknife_of_one_sample_has_no_interval():
    assert all(map(isnan, jackknife(partial(mean_of, NOISE), 1)))


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


def differ(a, b, statistic: str = "mean", better: Better = "lower", unit: str = "radius"):
    return paired(series(a, unit=unit), series(b, unit=unit), statistic, better)


@pytest.mark.parametrize("statistic", ["mean", "median"])
def test_pairing_sees_through_shared_noise(statistic: str):
    shifted = NOISE + 0.05
    assert differ(NOISE, shifted, statistic).outcome == "a is better"
    assert differ(shifted, NOISE, statistic).outcome == "b is better"
    assert differ(NOISE, shifted, statistic, "higher").outcome == "b is better"
    assert differ(NOISE, shifted, statistic, "neither").outcome == "a is lower"
    assert differ(shifted, NOISE, statistic, "neither").outcome == "a is higher"
    assert differ(NOISE, np.random.default_rng(1).permutation(shifted), statistic).outcome == "tied", "vacuous fixture"


@pytest.mark.parametrize("statistic", ["mean", "median"])
def test_a_paired_difference_is_antisymmetric(statistic: str):
    other = np.random.default_rng(1).normal(0.3, 1, size=100)
    one, two = differ(NOISE, other, statistic), differ(other, NOISE, statistic)
    assert (one.value, one.low, one.high) == pytest.approx((-two.value, -two.high, -two.low))
    assert one.low < one.value < one.high


@pytest.mark.parametrize("statistic", ["mean", "median"])
def test_identical_series_are_tied_with_zero(statistic: str):
    found = differ(NOISE, NOISE, statistic)
    assert (found.value, found.low, found.high, found.outcome) == (0, 0, 0, "tied")


@pytest.mark.parametrize("statistic", ["mean", "median"])
@pytest.mark.parametrize("unit", ["radius", "share of images"])
def test_rounding_alone_tells_nothing_apart(statistic: str, unit: str):
    """One linear map computed in two ways: certificates are the same for all images, up to the same rounding."""
    values = np.full(50, 0.1)
    assert differ(values, values * (1 + 1e-7), statistic, unit=unit).outcome == "tied"
    varied = np.linspace(0.1, 0.2, 50)
    assert differ(varied, varied * (1 - 1e-15), statistic, unit=unit).value == 0
    assert differ(values, values * (1 + 1e-3), "mean").outcome == "a is better", "vacuous"


def test_only_pairs_defined_on_both_sides_count():
    a, b = NOISE.copy(), NOISE + 0.1
    a[:10], b[5:20] = nan, nan
    found, clean = differ(a, b), differ(NOISE[20:], NOISE[20:] + 0.1)
    assert found == clean
    assert found.n == 80


def test_no_common_pairs_are_tied_and_undefined():
    found = differ([1, nan], [nan, 1])
    assert isnan(found.value)
    assert (found.n, found.outcome) == (0, "tied")


def test_series_of_different_lengths_cannot_be_paired():
    with pytest.raises(ValueError, match="paired series need the same samples, got 3 and 2"):
        differ([1, 2, 3], [1, 2])


def test_a_handful_of_pairs_decides_nothing():
    """Five equal signs come about by chance once in sixteen times, six once in thirty-two."""
    assert [differ(range(n), np.arange(n) + 1.0).outcome for n in (1, 2, 5, 6)] == ["tied"] * 3 + ["a is better"]


@pytest.mark.filterwarnings("ignore:invalid value")
def test_infinite_values_cannot_be_ranked():
    assert differ([*NOISE, inf], [*NOISE, inf]).outcome == "tied"


def test_four_images_of_a_thousand_decide_nothing():
    """Two yes-or-no series that differ on four images, all one way: chance does that one time in eight."""
    ours, theirs = np.zeros(1000), np.zeros(1000)
    theirs[:4] = 1
    assert differ(ours, theirs, unit="yes or no").outcome == "tied"
    theirs[:7] = 1
    assert differ(ours, theirs, unit="yes or no").outcome == "a is better"


def test_what_few_images_carry_decides_nothing():
    """Three images of 300 carry all the risk of one encoder; another image like them could carry the other's."""
    ours, theirs = np.zeros(300), np.zeros(300)
    theirs[:3] = 0.9
    assert differ(ours, theirs, unit="share").outcome == "tied"
    theirs[:30] = 0.9
    assert differ(ours, theirs, unit="share").outcome == "a is better"


@pytest.mark.parametrize("n", [100, 300])
def test_equal_risks_of_different_shapes_are_told_apart_as_rarely_as_promised(n: int):
    """One encoder fails rarely and badly, the other often and a little. The risks are equal, the samples hardly ever."""
    rng, wrong = np.random.default_rng(0), []
    for _ in range(200):
        ours, theirs = (law_of_shares(p, size, n, rng) for p, size in (RARE_AND_LARGE, COMMON_AND_SMALL))
        wrong.append(differ(ours, theirs, unit="share").outcome != "tied")
    assert np.mean(wrong) <= 0.05 + 3 * (0.05 * 0.95 / 200) ** 0.5


@pytest.mark.parametrize("statistic", ["mean", "median"])
@pytest.mark.parametrize("unit", ["share", "radius"])
def test_differences_ignore_the_order_of_the_samples(statistic: str, unit: str):
    left, right = np.random.default_rng(0).random((2, 50)).round(1)
    turned = np.random.default_rng(1).permutation(50)
    found, again = (differ(left[o], right[o], statistic, unit=unit) for o in (np.arange(50), turned))
    assert found == again
    assert found.low < found.high


@pytest.mark.parametrize("n", [8, 20])
def test_few_samples_are_not_told_apart_by_luck(n: int):
    draws = np.random.default_rng(1).normal(size=(600, 2, n))
    assert np.mean([differ(a, b).outcome != "tied" for a, b in draws]) <= 0.075


def test_equal_encoders_are_told_apart_about_as_rarely_as_promised():
    """And so the bootstrap covers. Percentile intervals are known to be a little short at n = 50."""
    draws = np.random.default_rng(0).exponential(size=(1000, 2, 50))
    wrong = [differ(a, b).outcome != "tied" for a, b in draws]
    assert 0.03 <= np.mean(wrong) <= 0.09
