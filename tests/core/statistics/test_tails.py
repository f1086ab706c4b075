"""What a mean hides, against loops that are slow and obvious; and its intervals on populations of known truth."""

from __future__ import annotations

from math import isnan

import numpy as np
import pytest
from benchmarks.statistics.coverage import LEAST, chance

from holdfast.core.records import Claim, Series
from holdfast.core.statistics.intervals import bounded_interval, share_interval
from holdfast.core.statistics.tails import (
    design_effect,
    fraction_interval,
    lowest_interval,
    lowest_mean,
    tails,
    worst_group,
)


def series(values: list[float], missing: dict[int, str] | None = None) -> Series:
    return Series(
        quantity="kept", values=tuple(values), unit="share", claim=Claim.ESTIMATE, of="kept", reasons=missing or {}
    )


def fractions(n: int, seed: int = 0) -> list[float]:
    counts: list[int] = np.random.default_rng(seed).binomial(10, 0.8, n).tolist()
    return [count / 10 for count in counts]


def slow_lowest(values: list[float], share: float) -> float:
    """The mean of the lowest, sample by sample, the last in part."""
    left, total = share * len(values), 0.0
    for value in sorted(values):
        part = min(1.0, left)
        total, left = total + part * value, left - part
    return total / (share * len(values))


@pytest.mark.parametrize("n", [7, 50, 100, 144, 700])
def test_numbers_are_those_of_slow_loops(n: int) -> None:
    values = fractions(n)
    found = {estimate.quantity: estimate for _, estimate in tails(series(values))}
    assert found.keys() == {"kept_at_50", "kept_at_80", "kept_at_100", "kept_worst_1", "kept_worst_10"}
    for tenths in (5, 8, 10):
        counted = sum(1 for value in values if round(10 * value) >= tenths)
        estimate = found[f"kept_at_{10 * tenths}"]
        assert estimate.value == pytest.approx(counted / n)
        assert (estimate.low, estimate.high) == pytest.approx(share_interval(counted, n)), "independent: mid-P"
    for percent in (1, 10):
        estimate = found[f"kept_worst_{percent}"]
        assert estimate.value == pytest.approx(slow_lowest(values, percent / 100))
        assert estimate.low <= estimate.value <= estimate.high
    assert found["kept_worst_10"].value < found["kept_at_50"].value, "vacuous"


def test_undefined_samples_are_left_out_with_their_reason() -> None:
    values = [*fractions(20), float("nan")]
    for scored, estimate in tails(series(values, {20: "zero"})):
        assert estimate.n == 20
        assert estimate.reason is not None
        assert scored is None or scored.reasons == {20: "zero"}
    assert all(isnan(estimate.value) for _, estimate in tails(series([float("nan")], {0: "zero"})))


def test_the_mean_of_all_has_gaffkes_bounds() -> None:
    values = np.array(fractions(60))
    assert lowest_mean(values, 1.0) == pytest.approx(values.mean())
    assert lowest_interval(values, 1.0) == pytest.approx(bounded_interval(values, (0.0, 1.0)), abs=0.01)


def test_intervals_ignore_order_and_lengthen_for_groups() -> None:
    values = fractions(100)
    assert lowest_interval(np.array(values), 0.1) == lowest_interval(np.array(values[::-1]), 0.1)
    twice = [value for value in values for _ in range(4)]
    alone = {e.quantity: e for _, e in tails(series(twice))}
    grouped = {e.quantity: e for _, e in tails(series(twice), [str(k // 4) for k in range(400)])}
    for name, estimate in grouped.items():
        assert estimate.value == alone[name].value
        assert estimate.high - estimate.low > 1.3 * (alone[name].high - alone[name].low)
        assert estimate.method.endswith("over groups of images")


def test_the_design_effect_is_the_size_of_equal_groups() -> None:
    values = np.random.default_rng(0).normal(size=500)
    groups = np.arange(500)
    assert design_effect(values, values, groups) == 1
    assert design_effect(np.repeat(values, 4), np.repeat(values, 4), np.repeat(groups, 4)) == pytest.approx(4, rel=0.05)
    assert design_effect(values, 3 * values, groups) == pytest.approx(9)


def test_the_worst_group_is_named_and_its_interval_is_that_of_all_groups() -> None:
    values, names = [0.9] * 30 + [0.5] * 10 + [0.0] * 2, ["a"] * 30 + ["b"] * 10 + ["c"] * 2
    estimate = worst_group(series(values), names, "kept_worst_group")
    assert estimate is not None
    assert estimate.value == pytest.approx(0.5)
    assert estimate.n == 10
    assert "'b'" in str(estimate.reason)
    # Each of two groups with half of the error; the bound on fractions is that of Clopper and Pearson.
    ends = [fraction_interval(30 * 0.9, 30.0, 0.025), fraction_interval(5.0, 10.0, 0.025)]
    assert (estimate.low, estimate.high) == pytest.approx([min(part) for part in zip(*ends, strict=True)])
    assert worst_group(series(values[:30]), names[:30], "x") is None
    assert worst_group(series(values[30:]), names[30:], "x") is None, "the other group is too small"


def test_fractions_have_the_interval_of_clopper_and_pearson() -> None:
    from scipy.stats import binomtest

    for successes in (0, 3, 20):
        exact = binomtest(successes, 20).proportion_ci(0.95, method="exact")
        assert fraction_interval(float(successes), 20.0, 0.05) == pytest.approx((exact.low, exact.high))


def test_the_interval_of_the_worst_group_holds_the_lowest_mean() -> None:
    """Ten groups of equal truth, whose observed worst is far too low, and groups of which one is worse."""
    rng, draws = np.random.default_rng(0), 200
    for truths in ([0.8] * 10, [0.9] * 9 + [0.6]):
        covered = biased = 0
        for _ in range(draws):
            kept = np.concatenate([rng.binomial(10, truth, 12) / 10 for truth in truths])
            estimate = worst_group(series(kept.tolist()), np.repeat(np.arange(10), 12).astype(str).tolist(), "x")
            assert estimate is not None
            covered += estimate.low <= min(truths) <= estimate.high
            biased += estimate.value < min(truths)
        assert covered / draws >= LEAST - chance(LEAST, draws)
        assert biased / draws > (0.9 if len(set(truths)) == 1 else 0.3), "vacuous: the observed worst is too low"
