"""The tests against slow, obvious code, against SciPy, and against what they promise."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from holdfast.core.noise import Noise
from holdfast.core.statistics.intervals import bounded_interval
from holdfast.service import energy, two_sets
from holdfast.service import energy as classifier
from holdfast.service import energy as directions


def drawn(count: int, features: int, name: str = "") -> torch.Tensor:
    return Noise.of(0, [f"{name}{k}" for k in range(count)]).normal((features,), torch.float64)


def names(count: int) -> list[str]:
    return [f"image-{k}" for k in range(count)]


def weights_of(count: int, total: int, draws: int = 40, groups: list[str] | None = None) -> torch.Tensor:
    return energy.assignments(count, names(total), groups or names(total), draws, 0)


def slow_energy(x: torch.Tensor, y: torch.Tensor) -> float:
    """The definition."""
    x, y = x.double(), y.double()
    across, here, there = (torch.linalg.vector_norm(a[:, None] - b, dim=-1).mean() for a, b in ((x, y), (x, x), (y, y)))
    return float(2 * across - here - there)


@pytest.mark.parametrize(("count", "total", "offset"), [(20, 50, 0.0), (25, 50, 1e4), (3, 7, -50.0)])
def test_the_fast_energy_is_the_slow_one_under_every_assignment(
    count: int, total: int, offset: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(energy, "BLOCK", 16)  # several blocks, the last of them smaller
    points, weights = drawn(total, 4) + offset, weights_of(count, total)
    fast = energy.energies(points, weights).statistics
    slow = [slow_energy(points[side > 0], points[side < 0]) for side in weights.T]
    assert fast.tolist() == pytest.approx(slow, rel=2e-4, abs=1e-6)


def test_energy_in_one_dimension_is_that_of_scipy() -> None:
    points = drawn(60, 1)
    points[25:] += 0.5
    statistics = energy.energies(points, weights_of(25, 60)).statistics
    expected = stats.energy_distance(points[:25, 0].numpy(), points[25:, 0].numpy()) ** 2
    assert float(statistics[0]) == pytest.approx(2 * expected, rel=1e-4) or float(statistics[0]) == pytest.approx(
        expected, rel=1e-4
    )


def test_each_point_knows_its_part_of_the_distance() -> None:
    points = drawn(30, 3)
    result = energy.energies(points, weights_of(12, 30))
    apart = torch.cdist(points, points)
    own = apart[0, :12].sum() / 11
    assert float(result.influence[0]) == pytest.approx(float(apart[0, 12:].mean() - own), rel=1e-5)
    assert result.spread == pytest.approx(float(apart[:12, 12:].mean()), rel=1e-5)


def test_assignments_keep_sizes_and_groups_and_follow_names() -> None:
    weights = weights_of(10, 30)
    assert (weights > 0).sum(0).tolist() == [10] * 41
    assert len({tuple(side.tolist()) for side in (weights > 0).T}) == 41, "vacuous: the draws are alike"
    assert torch.allclose(weights.sum(0), torch.zeros(41), atol=1e-6)
    order = [*range(9, -1, -1), *range(29, 9, -1)]
    shuffled = energy.assignments(10, [names(30)[k] for k in order], [names(30)[k] for k in order], 40, 0)
    assert torch.equal(shuffled, weights[order])
    groups = [f"group-{k // 5}" for k in range(30)]
    together = weights_of(10, 30, groups=groups)
    assert ((together.unflatten(0, (6, 5)) > 0).float().std(1) == 0).all()
    assert ((together > 0).sum(0) == 10).all()


def test_every_division_of_four_samples_is_as_likely() -> None:
    weights = energy.assignments(2, list("abcd"), list("abcd"), 6000, 0)[:, 1:]
    counts = np.unique((weights > 0).int().T.numpy(), axis=0, return_counts=True)[1]
    assert len(counts) == 6
    assert stats.chisquare(counts).pvalue > 1e-3


def test_gaps_are_those_of_kolmogorov_and_smirnov() -> None:
    values, weights = (drawn(40, 1)[:, 0] * 3).round() / 3, weights_of(15, 40)  # with ties
    gaps = directions.largest_gaps(values, weights)
    expected = [stats.ks_2samp(values[side > 0], values[side < 0]).statistic for side in weights.T]
    assert gaps.tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("features", [4, 80])
def test_principal_directions_are_those_of_scikit_learn(features: int) -> None:
    from sklearn.decomposition import PCA

    points = drawn(50, features) * torch.tensor([9.0, 5.0, 3.0, *[0.1] * (features - 3)])
    coordinates, shares = directions.principal(points, 3)
    pca = PCA(3).fit(points.numpy())
    expected = pca.transform(points.numpy())
    assert shares[:3].tolist() == pytest.approx(pca.explained_variance_ratio_.tolist(), rel=1e-6)
    assert coordinates.std(0, correction=0).tolist() == pytest.approx([1.0] * 3)
    for k in range(3):
        assert abs(np.corrcoef(coordinates[:, k], expected[:, k])[0, 1]) == pytest.approx(1)


def test_the_area_is_that_of_scikit_learn_and_the_ranks_that_of_mann_and_whitney() -> None:
    from sklearn.metrics import roc_auc_score

    values = (drawn(60, 1)[:, 0].numpy() * 4).round()
    first = np.arange(60) < 25
    area = classifier.area(values, first)
    assert area.value == pytest.approx(roc_auc_score(~first, values))
    assert area.low < area.value < area.high
    statistic = float(classifier.rank_statistics(values, weights_of(25, 60))[0])
    u = stats.mannwhitneyu(values[~first], values[first]).statistic
    assert statistic == pytest.approx((u / (25 * 35) - 0.5) * 60, abs=1e-4)


def test_the_interval_of_an_area_holds_the_chance_of_both_sets() -> None:
    """By hand: the shares of each set's points, their Gaffke bounds, and squares of distances added."""
    values = np.round(drawn(60, 1)[:, 0].numpy() * 4)
    first = np.arange(60) < 25
    here, there = values[first], values[~first]
    wins = (there[:, None] > here).astype(float) + (there[:, None] == here) / 2
    ends = np.array([bounded_interval(wins.mean(axis), (0.0, 1.0)) for axis in (0, 1)])
    found, value = classifier.area(values, first), wins.mean()
    apart = np.sqrt(((ends - value) ** 2).sum(0))
    assert (apart > 1.1 * np.abs(ends - value).max(0)).all(), "vacuous: one set alone says nearly as much"
    assert (found.value, found.low, found.high) == pytest.approx((value, value - apart[0], value + apart[1]))
    mirrored = classifier.area(-values, ~first)  # the sets change places, and what is high is low
    assert (mirrored.low, mirrored.high) == pytest.approx((found.low, found.high))


def test_a_classifier_sees_a_shift_of_half_that_it_was_not_taught() -> None:
    points = drawn(200, 5)
    points[100:, 2] += 3
    first, learning = torch.arange(200) < 100, torch.arange(200) % 2 == 0
    scores = classifier.scores(points, first, learning)
    assert classifier.area(scores, first[~learning].numpy()).value > 0.9
    assert classifier.scores(torch.ones(20, 3), torch.arange(20) < 10, torch.arange(20) % 2 == 0).tolist() == [0] * 10


def test_holm_is_that_of_statsmodels_by_hand() -> None:
    assert energy.holm([0.04, 0.001, 0.03]) == pytest.approx([0.06, 0.003, 0.06])


def test_conformal_p_values_are_exact_and_discoveries_keep_their_rate() -> None:
    reference = drawn(99, 1)[:, 0].numpy()
    scores = drawn(4000, 1, "new ")[:, 0].numpy()
    chances = two_sets.conformal_p_values(scores, reference)
    slow = [(1 + (reference >= score).sum()) / 100 for score in scores[:50]]
    assert chances[:50].tolist() == pytest.approx(slow)
    shares, news = [], []
    for trial in range(200):
        drawn_anew = drawn(60, 1, f"{trial} ")[:, 0].numpy()
        chances = two_sets.conformal_p_values(drawn_anew[:20], drawn_anew[20:])
        shares.append((chances <= 0.0976).mean())  # 4 of 41
        mixed = two_sets.conformal_p_values(np.r_[drawn_anew[:15], np.full(5, 9.0)], drawn_anew[20:])
        found = two_sets.discovered(mixed, 0.2)
        news.append(found[:15].sum() / max(1, found.sum()))
    assert np.mean(shares) == pytest.approx(4 / 41, abs=0.02)
    assert 0 < np.mean(news) < 0.2


def test_the_bet_sees_a_change_soon_and_nothing_where_nothing_changes() -> None:
    reference = drawn(100, 1)[:, 0].numpy()
    uniform = Noise.of(1, names(300)).uniform((), torch.float64).numpy()
    same = drawn(300, 1, "same ")[:, 0].numpy()
    ranks = two_sets.ranks_among_earlier(reference, same, uniform)
    assert stats.kstest(ranks, "uniform").pvalue > 0.01
    assert two_sets.log_capital(ranks).max() < np.log(20)
    moved = two_sets.log_capital(two_sets.ranks_among_earlier(reference, same + 2, uniform))
    assert np.argmax(moved > np.log(20)) < 30
    earlier = two_sets.log_capital(two_sets.ranks_among_earlier(reference, same[:100] + 2, uniform[:100]))
    assert np.allclose(moved[:100], earlier), "what comes later changes what came before"


def test_ties_are_broken_by_chance() -> None:
    """Scores that are all equal say nothing: the rank is the draw. Of two values, ranks are uniform all the same."""
    uniform = Noise.of(2, names(2000)).uniform((), torch.float64).numpy()
    assert two_sets.ranks_among_earlier(np.ones(3), np.ones(50), uniform[:50]) == pytest.approx(uniform[:50])
    coins = (drawn(2030, 1)[:, 0].numpy() > 0.3).astype(float)
    ranks = two_sets.ranks_among_earlier(coins[:30], coins[30:], uniform)
    assert stats.kstest(ranks, "uniform").pvalue > 0.01
    assert two_sets.log_capital(ranks).max() < np.log(20)


def test_the_stake_is_fair() -> None:
    """The mean of the capital after fair bets is the stake: the martingale of which Ville's inequality speaks."""
    ranks = Noise.of(3, list(map(str, range(4000)))).uniform((5,), torch.float64).numpy()
    capital = [np.exp(two_sets.log_capital(row)[-1]) for row in ranks]
    assert np.mean(capital) == pytest.approx(1, abs=4 * np.std(capital) / len(capital) ** 0.5)
