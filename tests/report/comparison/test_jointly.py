"""Ranks of a scorecard hold together: no more than one in twenty names a winner among equal encoders."""

from __future__ import annotations

import doctest

import numpy as np
import pytest
from scipy.stats import norm

from holdfast.core.records import Claim
from holdfast.core.statistics.differences import Difference, Outcome
from holdfast.report.comparison import compare as jointly
from holdfast.report.comparison.compare import Contest, Pair, case, jointly_ranked, p_value


def gap(value: float, half: float = 1.959964, n: int = 300) -> Difference:
    tied = abs(value) <= half
    outcome: Outcome = "tied" if tied else "a is better" if value < 0 else "b is better"
    return Difference(value=value, low=value - half, high=value + half, n=n, outcome=outcome)


def contest(k: int, *values: float) -> Contest:
    pairs = tuple(
        Pair(a=a, b=b, difference=gap(value))
        for (a, b), value in zip([("a", "b"), ("a", "c"), ("b", "c")], values, strict=False)
    )
    names = sorted({name for pair in pairs for name in (pair.a, pair.b)})
    losers = [
        pair.b if pair.difference.outcome == "a is better" else pair.a
        for pair in pairs
        if pair.difference.outcome != "tied"
    ]
    return Contest(
        evaluation=f"evaluation {k}", protocol=str(k), quantity="risk", conditions={}, claim=Claim.ESTIMATE,
        better="lower", pairs=pairs, ranks={name: 1 + losers.count(name) for name in names},
    )  # fmt: skip


def test_examples_are_right():
    assert not doctest.testmod(jointly).failed


@pytest.mark.parametrize("z", [2.0, 3.0, 4.5])
def test_the_p_value_is_that_of_the_interval(z):
    assert p_value(gap(z)) == pytest.approx(2 * norm.sf(z), rel=1e-5)
    assert p_value(gap(-z)) == p_value(gap(z))
    assert p_value(gap(z, n=6)) >= 1 / 32, "six samples say no more than all six on one side"
    few = gap(z).model_copy(update={"differing": 7})
    assert p_value(few) >= 1 / 64, "of 300 samples seven differ, and these may all be on one side"
    assert p_value(gap(1.9)) == 1


def test_the_p_value_of_a_skewed_interval_goes_by_the_end_nearer_to_zero():
    """By hand: 0.3 with an end at 0.2 is three half-widths of that side from zero, whatever the other side is."""
    above = gap(3.0).model_copy(update={"value": 0.3, "low": 0.2, "high": 0.9})
    below = gap(-3.0).model_copy(update={"value": -0.3, "low": -0.9, "high": -0.2})
    assert p_value(above) == p_value(below) == pytest.approx(2 * norm.sf(3 * 1.959964), rel=1e-5)
    wide = above.model_copy(update={"low": 0.01, "high": 0.31})
    assert p_value(wide) == pytest.approx(2 * norm.sf(1.959964 * 30 / 29), rel=1e-5)
    edge = above.model_copy(update={"low": 1e-9})
    assert p_value(edge) == pytest.approx(0.05, rel=1e-4), "an end at zero is a p-value of one in twenty"


def test_holm_goes_on_where_bonferroni_stops():
    first, second = contest(1, 4.0), contest(2, 2.1)
    assert 0.025 < p_value(gap(2.1)) < 0.05
    ranks = jointly_ranked([first, second])
    assert ranks[case(first)] == {"a": 2, "b": 1}
    assert ranks[case(second)] == {"a": 2, "b": 1}, "once the first is told apart, one comparison is left"
    lone = jointly_ranked([second, contest(3, 0.0)])
    assert lone[case(second)] == {"a": 1, "b": 1}


def test_equal_encoders_are_told_apart_in_one_scorecard_of_twenty():
    random = np.random.default_rng(0)
    single = together = 0
    for _ in range(400):
        made = []
        for k in range(10):
            x = random.normal(size=3) / 2**0.5
            made.append(contest(k, x[0] - x[1], x[0] - x[2], x[1] - x[2]))
        single += any(max(one.ranks.values()) > 1 for one in made)
        together += any(max(ranks.values()) > 1 for ranks in jointly_ranked(made).values())
    assert single > 200, "vacuous: each for itself they mostly name somebody"
    assert together <= 0.05 * 400 + 2 * (0.05 * 0.95 * 400) ** 0.5
