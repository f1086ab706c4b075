"""The statistics of the agreement study against other programs and against formulas written out."""

from __future__ import annotations

import doctest
from itertools import combinations

import numpy as np
import pytest
from scipy.stats import false_discovery_control, kendalltau, norm, spearmanr
from studies.agreement import figures, measures
from studies.agreement import rankings as agreement
from studies.agreement import words as agreement_words
from studies.agreement.measures import median_rung

from studies import common

ONE = np.zeros(12, int)
TWO = np.repeat([0, 1], 6)


@pytest.fixture
def rankings() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    x = random.integers(0, 6, 12).astype(float)
    return x, x + random.normal(0, 2, 12).round(), random.normal(size=12)


def slow_tau(x: np.ndarray, y: np.ndarray, group: np.ndarray) -> float:
    """Kendall's tau-b by its definition, pair by pair."""
    both = left = right = 0.0
    for i, j in combinations(range(len(x)), 2):
        if group[i] != group[j] or not np.isfinite([x[i], x[j], y[i], y[j]]).all():
            continue
        s, t = np.sign(x[i] - x[j]), np.sign(y[i] - y[j])
        both, left, right = both + s * t, left + s * s, right + t * t
    return both / np.sqrt(left * right)


@pytest.mark.parametrize("module", [agreement, agreement_words, figures, measures, common], ids=lambda m: m.__name__)
def test_examples_are_right(module) -> None:
    found = doctest.testmod(module)
    assert found.attempted
    assert not found.failed


def test_rankings_agree_as_scipy_says(rankings) -> None:
    x, y, _ = rankings
    assert agreement.tau(x, y, ONE) == pytest.approx(kendalltau(x, y).statistic)
    assert agreement.spearman(x, y, ONE) == pytest.approx(spearmanr(x, y).statistic)


def test_all_pairs_may_count_alike(rankings) -> None:
    x, y, z = rankings
    y[3] = np.nan
    drawn = np.random.default_rng(1).integers(0, 3, (4, 12)).astype(float)
    found = agreement.taus(np.stack([x, y, z]), TWO, alike=True)
    weighted = agreement.taus(np.stack([x, y, z])[None], TWO, drawn, alike=True)
    signs = {
        (i, j): np.sign(x[i] - x[j]) * np.sign(y[i] - y[j])
        for i, j in combinations(range(12), 2)
        if TWO[i] == TWO[j] and 3 not in (i, j)
    }
    assert 0 in signs.values(), "vacuous fixture"
    assert found[0, 1] == pytest.approx(np.mean([*signs.values()]))
    for counts, taus in zip(drawn, weighted, strict=True):
        pairs = [counts[i] * counts[j] for i, j in signs]
        assert taus[0, 1] == pytest.approx(np.average([*signs.values()], weights=pairs))


def test_only_pairs_of_one_data_set_count(rankings) -> None:
    x, y, _ = rankings
    shifted = x + 100 * TWO
    assert agreement.tau(shifted, y, TWO) == pytest.approx(slow_tau(x, y, TWO))
    assert agreement.tau(shifted, y, ONE) != pytest.approx(slow_tau(x, y, TWO)), "vacuous fixture"
    assert agreement.spearman(shifted, y, TWO) == pytest.approx(agreement.spearman(x, y, TWO))
    y[3] = np.nan
    assert agreement.tau(x, y, TWO) == pytest.approx(slow_tau(x, y, TWO))


def test_an_encoder_drawn_twice_is_written_twice_but_not_compared_with_itself(rankings) -> None:
    x, y, _ = rankings
    drawn = np.array([2, 0, 1, 1, 3, 1, 0, 0, 1, 1, 1, 1.0])
    rows = np.repeat(np.arange(12), drawn.astype(int))
    assert agreement.tau(x, y, TWO, drawn) == pytest.approx(slow_tau(x[rows], y[rows], TWO[rows]))


def drawn_with_gaps(rankings) -> tuple[np.ndarray, np.ndarray]:
    """Return replicates of three rankings, with ties and values that lack, and how often each encoder is drawn."""
    random = np.random.default_rng(2)
    values = np.stack(rankings) + random.normal(0, 1, (30, 3, 12)).round()
    values[:, 1, 4] = np.nan
    return values, random.integers(0, 3, (30, 12)).astype(float)


def test_taus_of_every_two_rankings_are_those_one_by_one(rankings) -> None:
    values, drawn = drawn_with_gaps(rankings)
    found, plain = agreement.taus(values, TWO, drawn), agreement.taus(values, TWO)
    for one, other in combinations(range(3), 2):
        assert found[:, one, other] == pytest.approx(agreement.tau(values[:, one], values[:, other], TWO, drawn))
        assert plain[7, one, other] == pytest.approx(slow_tau(values[7, one], values[7, other], TWO))
    assert (found == found.swapaxes(1, 2)).all()


def test_partial_agreement_is_kendalls_formula(rankings) -> None:
    x, y, z = rankings
    a, b, c = (kendalltau(*pair).statistic for pair in ((x, y), (x, z), (y, z)))
    found = agreement.partial(agreement.taus(np.stack([x, y, z]), ONE), 0, 1, [2])
    assert found == pytest.approx((a - b * c) / np.sqrt((1 - b * b) * (1 - c * c)))


def test_partial_agreement_given_three_is_that_of_regression_of_signs(rankings) -> None:
    random = np.random.default_rng(5)
    every = [*rankings, random.normal(size=12), random.normal(size=12)]
    table = [[float(kendalltau(a, b).statistic) for b in every] for a in every]
    inverse = np.linalg.inv(np.array(table))
    found = agreement.partial(agreement.taus(np.stack(every), ONE), 0, 1, [2, 3, 4])
    assert found == pytest.approx(-inverse[0, 1] / np.sqrt(inverse[0, 0] * inverse[1, 1]))


def test_a_constant_ranking_explains_nothing_and_a_copy_everything(rankings) -> None:
    x, y, z = rankings
    seen = agreement.taus(np.stack([x, y, z, np.zeros(12), x]), ONE)
    assert agreement.partial(seen, 0, 1, [2, 3]) == pytest.approx(agreement.partial(seen, 0, 1, [2]))
    assert np.isnan(agreement.partial(seen, 0, 1, [2, 4]))


def test_what_is_explained_by_a_third_ranking_is_gone() -> None:
    random = np.random.default_rng(3)
    z = random.normal(size=300)
    x, y = z + random.normal(size=300), z + random.normal(size=300)
    seen = agreement.taus(np.stack([x, y, z]), np.zeros(300, int))
    assert seen[0, 1] > 0.25
    assert abs(agreement.partial(seen, 0, 1, [2])) < 0.2


def test_an_interval_allows_for_the_luck_of_its_replicates() -> None:
    """Of 200 bootstraps of one number, the low ends of nearly all lie above the least that one of them allows."""
    random = np.random.default_rng(0)
    ends = [agreement.interval(random.normal(size=2000)) for _ in range(200)]
    truth = norm.ppf(0.025)
    assert np.mean([one.least <= truth for one in ends]) > 0.97
    assert np.mean([one.low <= truth for one in ends]) < 0.7, "vacuous: the low end itself is above as often as below"


def test_families_are_drawn_before_their_members() -> None:
    family = np.array([0, 0, 0, 1, 2])
    drawn = agreement.draw_families(family, 300, 0)
    by_family = np.stack([drawn[:, family == one].sum(1) / (family == one).sum() for one in range(3)], axis=1)
    assert (by_family == by_family.round()).all(), "a family is drawn as often as it has members, or not at all"
    assert (by_family.sum(1) == 3).all()
    assert drawn.mean(0) == pytest.approx(np.ones(5), abs=0.2)


def test_redrawn_images_are_the_same_for_all_encoders() -> None:
    random = np.random.default_rng(1)
    images = random.normal(size=(1, 40))
    found = agreement.resampled([images, None, images + 1], np.array([0.0, 7.0, 1.0]), measures.mean, 50, 0)
    assert np.allclose(found[:, 2] - found[:, 0], 1)
    assert (found[:, 1] == 7).all()
    assert found[:, 0].std() == pytest.approx(images.std() / np.sqrt(40), rel=0.4)
    images[0, 3] = np.nan
    series, values = [images, None], np.array([0.0, 7.0])
    for name in ("mean", "median"):
        counted = agreement.resampled(series, values, measures.REDUCED[name], 50, 0, name)
        assert counted == pytest.approx(agreement.resampled(series, values, measures.REDUCED[name], 50, 0))


def test_shuffling_within_blocks_leaves_what_blocks_differ_in() -> None:
    block = np.repeat(np.arange(4), 3)
    x = block * 10.0
    assert agreement.permutation_p(x, x[None], ONE, block, 200, 0) == [1.0], (
        "constant within blocks: nothing to shuffle"
    )
    steps = block * 10.0 + np.tile([0, 1, 2], 4)
    assert agreement.permutation_p(steps, np.stack([x, steps]), ONE, block, 200, 0)[1] < 0.05


def test_many_tests_are_corrected_as_scipy_does() -> None:
    p = [0.001, 0.2, 0.03, 0.03, 0.9]
    assert agreement.benjamini_hochberg(p) == pytest.approx(false_discovery_control(p))
    assert agreement.holm(p) == pytest.approx([0.005, 0.4, 0.12, 0.12, 0.9])


def test_a_choice_costs_what_the_best_has_more() -> None:
    y, group = np.array([0.1, 0.5, 0.3, 0.9, 0.7]), np.array([0, 0, 0, 1, 1])
    assert (agreement.losses(y, y, group) == 0).all()
    assert agreement.losses(-y, y, group) == pytest.approx([0.4, 0.2])
    assert agreement.losses(np.zeros(5), y, group) == pytest.approx([0.2, 0.1])
    offered = np.array([[True, False, True, True, False], [True, True, False, False, False]])
    assert agreement.losses(-y, y, group, offered) == pytest.approx(np.array([[0.2, 0], [0.4, np.nan]]), nan_ok=True)


def test_halves_of_noise_do_not_agree_and_halves_of_signal_do() -> None:
    random = np.random.default_rng(0)
    noise = [random.normal(size=(1, 60)) for _ in range(12)]
    assert abs(agreement.halves(noise, measures.mean, ONE, 20, 0)) < 0.4
    assert agreement.halves([one + place for place, one in enumerate(noise)], measures.mean, ONE, 20, 0) > 0.95


def test_the_median_rung_has_no_ceiling() -> None:
    top = float(measures.RUNGS)
    assert median_rung(np.array([top, top, 0.0])) < median_rung(np.array([top, top, top]))
    assert median_rung(np.array([top] * 3 + [np.nan])) == top + 0.5
