"""Differences of two encoders: what is told apart, and how rarely by luck."""

from __future__ import annotations

from math import hypot, inf, isnan, nan

import numpy as np
import pytest
from scipy import stats as scipy_stats

from holdfast.core.statistics.differences import _draws, _resampled_medians, paired, unpaired
from holdfast.core.statistics.summaries import Better, summarise
from tests.core.statistics.series import COMMON_AND_SMALL, RARE_AND_LARGE, law_of_shares, series
from tests.facts import refused

NOISE = np.random.default_rng(0).normal(size=100)


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
    with refused(ValueError, "got 3", "2", "samples"):
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


@pytest.mark.parametrize("statistic", ["mean", "median"])
def test_samples_of_one_group_decide_as_one(statistic):
    rng = np.random.default_rng(1)
    base, lift = rng.normal(size=12), 0.3 + rng.normal(size=12)
    groups = np.repeat(np.arange(12), 25)
    a, b = (series(np.repeat(values, 25), unit="length") for values in (base + lift, base))
    named = [f"slide {group}" for group in groups]
    grouped = paired(a, b, statistic, "higher", groups=named)
    alone = paired(a, b, statistic, "higher")
    assert alone.outcome == "a is better", "vacuous"
    assert grouped.outcome == "tied"
    assert grouped.value == alone.value
    once = paired(series(base + lift, unit="length"), series(base, unit="length"), statistic, "higher")
    assert grouped.high - grouped.low == pytest.approx(once.high - once.low, rel=0.35)
    order = rng.permutation(len(groups))
    moved_a, moved_b = (series(np.asarray(one.values)[order], unit="length") for one in (a, b))
    reordered = paired(moved_a, moved_b, statistic, "higher", groups=[named[k] for k in order])
    assert (reordered.low, reordered.high) == pytest.approx((grouped.low, grouped.high), rel=1e-9)
    swapped = paired(b, a, statistic, "higher", groups=named)
    assert (swapped.low, swapped.high) == pytest.approx((-grouped.high, -grouped.low))


def test_ends_of_a_difference_of_two_numbers_meet_crosswise():
    """Zou and Donner 2008, by hand: ``a - b`` is lowest where a is low and b is high; the intervals are lopsided."""
    like = summarise(series([0.0, 1.0]), "mean", "lower")
    a = like.model_copy(update={"value": 5.0, "low": 4.0, "high": 5.5})
    b = like.model_copy(update={"value": 3.0, "low": 2.0, "high": 3.75})
    found = unpaired(a, b)
    assert found.low == pytest.approx(2 - hypot(1, 0.75))
    assert found.high == pytest.approx(2 + hypot(0.5, 1))
    assert (found.value, found.outcome, found.paired) == (2, "b is better", False)
    back = unpaired(b, a)
    assert (back.low, back.high, back.outcome) == (-found.high, -found.low, "a is better")
    touching = unpaired(like.model_copy(update={"value": 1.0, "low": 0.0, "high": 2.0}), b.model_copy(update={
        "value": 0.0, "low": -1.0, "high": 0.0}))  # fmt: skip
    assert (touching.low, touching.outcome) == (0, "tied"), "a difference that may be 0"


@pytest.mark.parametrize("n", [7, 8])
def test_medians_of_resamples_are_those_of_the_samples_drawn(n: int):
    values = np.random.default_rng(n).exponential(size=n)
    expected = [np.median(np.repeat(values, times)) for times in _draws(n)]
    assert _resampled_medians(values, None) == pytest.approx(expected)
    assert (_draws(n).sum(1) == n).all()


def test_a_mean_is_compared_within_the_limits_of_a_difference():
    """A difference of two shares lies in [-1, 1]: where none differ one unseen image may go all the way, to either side."""
    found = differ(np.zeros(20), np.zeros(20), unit="share")
    end = scipy_stats.beta.ppf(0.975, 0.5, 20)
    assert (found.low, found.high) == pytest.approx((-end, end), rel=0.1)
    narrow = differ(np.zeros(20), np.full(20, 0.25), unit="share")
    assert narrow.value == -0.25
    assert narrow.high - narrow.low < found.high - found.low, "equal differences leave an unseen image less"


@pytest.mark.parametrize("statistic", ["mean", "median"])
def test_how_many_differ_is_counted_by_samples_or_by_groups(statistic: str):
    ours, theirs = np.zeros(40), np.zeros(40)
    theirs[:10] = 1
    assert differ(ours, theirs, statistic).differing == 10
    pairs = [str(k // 2) for k in range(40)]
    grouped = paired(series(ours), series(theirs), statistic, "lower", groups=pairs)
    assert grouped.differing == 5
    assert grouped.outcome == "tied", "five signs that agree come about by chance"
