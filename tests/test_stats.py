"""Intervals against independent formulas and by simulation, and the words that go with them."""

from __future__ import annotations

from functools import partial
from math import inf, isnan, nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from holdfast.errors import HoldfastError
from holdfast.result import Claim, Estimate, Series
from holdfast.stats import Better, bootstrap, jackknife, median_interval, paired, summarise, wilson

NOISE = np.random.default_rng(0).normal(size=100)


def series(values, reasons: dict[int, str] | None = None) -> Series:
    return Series(
        quantity="risk",
        conditions={"ball": "linf:0.1"},
        values=tuple(map(float, values)),
        unit="share",
        claim=Claim.LOWER,
        of="worst-case risk",
        reasons=reasons or {},
    )


def mean_of(values: np.ndarray, rows: list[int]) -> float:
    return float(values[rows].mean())


def interval(estimate: Estimate) -> tuple[float, float, float]:
    return estimate.low, estimate.value, estimate.high


@given(n=st.integers(1, 2000), share=st.floats(0, 1), confidence=st.sampled_from([0.5, 0.9, 0.95, 0.999]))
def test_wilson_is_wilson(n: int, share: float, confidence: float):
    successes = round(share * n)
    expected = scipy_stats.binomtest(successes, n).proportion_ci(confidence, method="wilson")
    assert wilson(successes, n, confidence) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_wilson_never_leaves_the_unit_interval_and_includes_the_share():
    for n in (1, 3, 7, 1024, 10**6):
        for successes in {0, 1, n // 3, n - 1, n}:
            low, high = wilson(successes, n)
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


def test_the_bootstrap_agrees_with_another_implementation():
    values = scipy_stats.gamma(2).rvs(size=80, random_state=1)
    theirs = scipy_stats.bootstrap((values,), np.mean, method="BCa", n_resamples=5000, rng=np.random.default_rng(0))
    low, high = bootstrap(values)
    expected = theirs.confidence_interval
    assert (expected.low, expected.high) == pytest.approx((low, high), abs=0.1 * (high - low))


@pytest.mark.parametrize(("nonzero", "n", "least"), [(0.07, 300, 0.88), (0.5, 100, 0.92)])
def test_the_bootstrap_covers_the_mean_of_skewed_shares(nonzero: float, n: int, least: float):
    """The law of breakaway shares: most images are never passed, a few by many others."""
    rng, share = np.random.default_rng(0), scipy_stats.beta(0.5, 20)
    hits = []
    for _ in range(300):
        values = share.rvs(size=n, random_state=rng) * (rng.random(n) < nonzero)
        low, high = bootstrap(values) if values.any() else (0, 1)
        hits.append(low <= nonzero * share.mean() <= high)
    assert np.mean(hits) >= least


def test_the_bootstrap_moves_and_scales_with_its_values_and_repeats_itself():
    values = np.random.default_rng(0).normal(size=40)
    low, high = bootstrap(values)
    assert bootstrap(values) == (low, high)
    assert bootstrap(3 * values + 5) == pytest.approx((3 * low + 5, 3 * high + 5))


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


def test_a_share_has_wilsons_interval():
    estimate = summarise(series([1, 0, 0, 1, 0]), "share", "lower", "risk_rate")
    assert interval(estimate) == pytest.approx((wilson(2, 5)[0], 0.4, wilson(2, 5)[1]))
    assert (estimate.quantity, estimate.series, estimate.method, estimate.n) == ("risk_rate", "risk", "Wilson", 5)
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
    estimate = summarise(series([value] * 30), "mean", "lower")
    bound = wilson(0, 30)[1]
    assert estimate.value == value
    assert estimate.low == pytest.approx(value - value * bound)
    assert estimate.high == pytest.approx(value + (1 - value) * bound)
    assert (estimate.low < value, estimate.high > value) == {
        "above": (False, True),
        "below": (True, False),
        "both": (True, True),
    }[unseen]
    assert estimate.method == "all values equal: Wilson"


@pytest.mark.parametrize("value", [0.1, 3.0, 5.0])
def test_equal_values_stay_within_what_they_can_be(value: float):
    estimate = summarise(series([value] * 30), "mean", "lower", most=5.0)
    bound = wilson(0, 30)[1]
    assert estimate.value == value
    assert (estimate.low, estimate.high) == pytest.approx((value * (1 - bound), value + (5 - value) * bound))
    assert estimate.high <= 5


def test_a_mean_of_one_sample_has_no_interval():
    estimate = summarise(series([7.5]), "mean", "lower")
    assert estimate.value == 7.5
    assert isnan(estimate.low)
    assert isnan(estimate.high)


def test_a_median_of_too_few_samples_says_so():
    few, enough = (summarise(series(range(n)), "median", "lower") for n in (5, 6))
    assert interval(few) == (0, 2, 4)
    assert few.method == "range of all 5, too few for 95%"
    assert interval(enough) == (0, 2.5, 5)
    assert enough.method == "order statistics"


def test_infinite_values_stay_infinite():
    estimate = summarise(series([1, 2, 3, 4, 5, 6, inf, inf, inf]), "median", "lower")
    assert interval(estimate) == (2, 5, inf)


def differ(a, b, statistic: str = "mean", better: Better = "lower"):
    return paired(series(a), series(b), statistic, better)


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
    assert differ(ours, theirs).outcome == "tied"
    theirs[:6] = 1
    assert differ(ours, theirs).outcome == "a is better"


@pytest.mark.parametrize("n", [8, 20])
def test_few_samples_are_not_told_apart_by_luck(n: int):
    draws = np.random.default_rng(1).normal(size=(600, 2, n))
    assert np.mean([differ(a, b).outcome != "tied" for a, b in draws]) <= 0.075


def test_equal_encoders_are_told_apart_about_as_rarely_as_promised():
    """And so the bootstrap covers. Percentile intervals are known to be a little short at n = 50."""
    draws = np.random.default_rng(0).exponential(size=(1000, 2, 50))
    wrong = [differ(a, b).outcome != "tied" for a, b in draws]
    assert 0.03 <= np.mean(wrong) <= 0.09
