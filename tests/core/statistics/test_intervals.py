"""Intervals against independent formulas and by simulation."""

from __future__ import annotations

from functools import partial
from math import isnan
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from holdfast.core.statistics.intervals import (
    bounded_interval,
    jackknife,
    median_interval,
    share_interval,
    skewed_interval,
)
from tests.core.statistics.series import COMMON_AND_SMALL, RARE_AND_LARGE, law_of_shares

NOISE = np.random.default_rng(0).normal(size=100)


def mean_of(values: np.ndarray, rows: list[int]) -> float:
    return float(values[rows].mean())


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


@pytest.mark.parametrize("sign", [1, -1])
def test_the_skewed_ends_are_those_of_halls_cubic_where_they_are_the_outer_ones(sign: int):
    """Hall 1992: ``g(T) = T + a T^2 / 3 + a^2 T^3 / 27 + a / 6`` is Student's, with ``a = skewness / sqrt(n)``.

    The end on the side of the long tail solves ``g(T) = -t``; the other end is Student's own.
    """
    values = sign * np.random.default_rng(1).exponential(size=30) ** 1.5
    n, a = len(values), float(scipy_stats.skew(values)) / np.sqrt(len(values))
    t = scipy_stats.t.ppf(0.975, n - 1)
    roots = np.roots([a**2 / 27, a / 3, 1, a / 6 + sign * t])
    (outer,) = roots[abs(roots.imag) < 1e-9].real
    error = values.std(ddof=1) / np.sqrt(n)
    ends = sorted((values.mean() - outer * error, values.mean() - sign * t * error))
    assert abs(outer) > 1.2 * t, "vacuous: nearly Student's"
    assert skewed_interval(values) == pytest.approx(tuple(ends))


def test_the_jackknife_removes_the_bias_of_a_plug_in_variance():
    """Leaving out one at a time turns ``sum (x - mean)^2 / n`` into that over ``n - 1``, exactly (Efron and Stein 1981)."""
    values = np.random.default_rng(3).normal(size=9)
    low, high = jackknife(lambda rows: float(values[rows].var()), 9, groups=9)
    assert (low + high) / 2 == pytest.approx(values.var(ddof=1))


@pytest.mark.parametrize(("n", "groups"), [(25, 10), (7, 10), (30, 4)])
def test_the_jackknife_leaves_out_every_sample_once_in_groups_of_one_size(n: int, groups: int):
    used: list[list[int]] = []

    def statistic(rows: list[int]) -> float:
        used.append(rows)
        return float(len(rows))

    jackknife(statistic, n, groups)
    left_out = [set(range(n)) - set(rows) for rows in used if len(rows) < n]
    assert sorted(row for rows in left_out for row in rows) == list(range(n))
    assert max(map(len, left_out)) - min(map(len, left_out)) <= 1
