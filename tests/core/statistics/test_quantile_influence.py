"""Universal quantiles as each image moves them."""

from __future__ import annotations

from math import nan

import numpy as np
import pytest

from holdfast.core.statistics.differences import paired
from holdfast.core.statistics.quantiles import quantile_influence
from tests.core.statistics.series import series


def measured(n: int, far: float, rng: np.random.Generator):
    """The influence series of images on a line, carried ``far`` in the middle, and their universal quantile."""
    codes = rng.normal(size=n)
    apart = np.abs(codes[:, None] - codes)
    moves = far * rng.lognormal(sigma=0.3, size=n)
    pairs = np.sort(apart[np.triu_indices(n, 1)])
    quantiles = np.searchsorted(pairs, moves, side="right") / len(pairs)
    near = ((apart <= np.median(moves)).sum(1) - 1) / (n - 1)
    return quantile_influence(series(quantiles, unit="share of pairs"), near, n), float(np.median(quantiles))


def test_the_mean_of_influences_is_the_median():
    influences, median = measured(41, 0.3, np.random.default_rng(0))
    assert np.mean(influences.values) == pytest.approx(median, abs=1e-12)
    assert influences.quantity == "risk_influence"


def test_influences_vary_as_the_quantile_does_over_draws():
    """Their standard error is the standard deviation of the quantile, of which the pairs hold a part."""
    draws = [measured(100, 0.5, np.random.default_rng(seed)) for seed in range(150)]
    spread = np.std([median for _, median in draws])
    error = np.mean([np.std(influences.values) / 10 for influences, _ in draws])
    assert 0.9 * spread < error < 1.4 * spread
    half = [(np.asarray(i.values) - m) for i, m in draws]
    assert np.mean([np.abs(np.unique(each.round(9))).size for each in half]) > 25, "vacuous: the pairs have no part"


def test_by_hand():
    """Nine shares .1 to .9: a rank's deviation is 3, the density 1 / 0.9; nobody is near anybody."""
    values = np.arange(1, 10) / 10
    influences = quantile_influence(series(values), np.zeros(9), 9)
    spread = (np.quantile(values, 0.5 + 1 / 3) - 0.5) * 3
    expected = 0.5 + np.repeat([-spread / 2, 0, spread / 2], [4, 1, 4])
    assert influences.values == pytest.approx(expected)
    assert influences.limits == pytest.approx((0.5 - spread / 2, 0.5 + spread / 2))


def test_images_that_are_no_references_are_attacked_alone():
    values, near = np.arange(1, 10) / 10, np.r_[0.2, 0.4, np.full(7, nan)]
    alone, partly = (quantile_influence(series(values), each, 9).values for each in (np.full(9, nan), near))
    moved = np.subtract(partly, alone)
    assert moved == pytest.approx([-0.2, 0.2, *[0.0] * 7])
    few = quantile_influence(series(values), near, 900).values
    assert np.subtract(few, alone) == pytest.approx(moved / 10), "chance in who the others are weighs less"


def test_undefined_images_have_no_part():
    influences = quantile_influence(series([0.1, nan, 0.3]), np.array([0.1, 0.5, 0.1]), 3)
    assert np.isnan(influences.values).tolist() == [False, True, False]
    nobody = quantile_influence(series([nan, nan]), np.array([nan, nan]), 2)
    assert nobody.limits is None


def test_encoders_that_nothing_moves_are_tied_with_room_for_a_pair():
    zero = quantile_influence(series(np.zeros(30)), np.zeros(30), 30)
    found = paired(zero, zero, "mean", "lower")
    assert found.outcome == "tied"
    assert 0 < found.high < 0.02, "a few of the 435 pairs"
    assert found.low == -found.high
