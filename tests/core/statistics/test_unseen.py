"""Intervals of paired differences: exact where theory knows them, and as wary of what was not seen as what was seen asks."""

from __future__ import annotations

from math import exp

import numpy as np
import pytest
from scipy import stats as scipy_stats

from holdfast.core.statistics.groups import difference_interval, group_difference_interval, reach
from tests.core.statistics.series import COMMON_AND_SMALL, RARE_AND_LARGE, law_of_shares

LIMITS = (-1.0, 1.0)


@pytest.mark.parametrize(("ones", "n"), [(0, 30), (1, 30), (4, 30), (3, 300), (150, 300)])
def test_yes_or_no_has_the_ends_of_a_beta_law(ones: int, n: int):
    """A share under weights Dirichlet(1, ..., 1, 1/2) is Beta: one more image counts half, above as one and below as -1."""
    values = np.repeat([1.0, 0.0], [ones, n - ones])
    low, high = difference_interval(values, LIMITS)
    expected = scipy_stats.beta.ppf(0.975, ones + 0.5, n - ones)
    assert high == pytest.approx(expected, rel=0.1)
    rng = np.random.default_rng(0)
    up, down = rng.gamma(max(ones, 1e-9), size=10**5), rng.gamma(0.5, size=10**5)
    below = np.quantile((up - down) / (up + down + rng.gamma(n - ones, size=10**5)), 0.025)
    assert low == pytest.approx(below, rel=0.15, abs=0.1 * (high - low))


def test_ends_are_those_of_a_slow_obvious_program():
    values = np.random.default_rng(1).normal(0.02, 0.1, size=25)
    total, largest = sum(map(abs, values)), max(map(abs, values))
    farthest = largest + (1 - largest) * exp(-total / 2)
    rng, lows, highs = np.random.default_rng(2), [], []
    for _ in range(20_000):
        weights = [rng.exponential() for _ in values] + [rng.gamma(0.5)]
        seen = sum(weight * value for weight, value in zip(weights, values, strict=False))
        lows.append((seen - weights[-1] * farthest) / sum(weights))
        highs.append((seen + weights[-1] * farthest) / sum(weights))
    expected = np.quantile(lows, 0.025), np.quantile(highs, 0.975)
    assert difference_interval(values, LIMITS) == pytest.approx(expected, abs=0.05 * (expected[1] - expected[0]))


def test_ends_ignore_order_and_turn_with_the_encoders():
    values = np.random.default_rng(0).normal(size=60).clip(-1, 1) * 0.3 + 0.02
    low, high = difference_interval(values, (-1.0, 0.9))
    assert difference_interval(values[::-1], (-1.0, 0.9)) == (low, high)
    assert difference_interval(-values, (-0.9, 1.0)) == (-high, -low)
    assert low < values.mean() < high


def test_the_more_has_moved_the_less_far_goes_one_more_image():
    ends = [reach(np.full(n, 0.02), LIMITS)[1] for n in (1, 30, 100, 300)]
    assert ends == sorted(ends, reverse=True)
    assert ends[0] > 0.98
    assert ends[-1] == pytest.approx(0.02 + 0.98 * exp(-3))
    assert reach(np.zeros(9), (-0.5, 2.0)) == (-0.5, 2.0), "nothing moved: all that is possible"


@pytest.mark.parametrize("n", [30, 100, 300])
def test_rarely_and_badly_is_not_told_from_often_and_a_little(n: int):
    """Of most samples of 30, none shows the images that carry one of two equal risks: Student's interval errs in half."""
    rng, wrong, student = np.random.default_rng(0), [], []
    for _ in range(300):
        values = np.subtract(*(law_of_shares(p, size, n, rng) for p, size in (RARE_AND_LARGE, COMMON_AND_SMALL)))
        low, high = difference_interval(values, LIMITS)
        wrong.append(not low <= 0 <= high)
        student.append(abs(values.mean()) > 2 * values.std() / n**0.5)
    assert np.mean(wrong) <= 0.05 + 3 * (0.05 * 0.95 / 300) ** 0.5
    assert np.mean(student) > np.mean(wrong), "vacuous"


def test_small_risks_of_most_images_are_told_apart():
    """Risks of .0155 and .00045: nearly all images are worse, and none of 300 by much."""
    rng, told = np.random.default_rng(0), []
    for _ in range(100):
        low, _ = difference_interval(0.0155 * rng.standard_exponential(300) - 0.0009 * rng.random(300), LIMITS)
        told.append(low > 0)
    assert np.mean(told) >= 0.95


def test_groups_of_one_image_are_images_and_groups_of_many_count_once():
    values = np.random.default_rng(3).normal(0.05, 0.2, size=40)
    alone = difference_interval(values, LIMITS)
    draws = 0.05 * (alone[1] - alone[0])
    assert group_difference_interval(values, np.arange(40), LIMITS) == pytest.approx(alone, abs=draws)
    repeated = group_difference_interval(np.repeat(values, 5), np.repeat(np.arange(40), 5), LIMITS)
    assert repeated == pytest.approx(alone, abs=draws)
    assert np.isnan(group_difference_interval(values, np.zeros(40, int), LIMITS)).all(), "one group tells nothing"
