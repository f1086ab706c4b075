"""Copies in rounds: whoever stops when it suits them errs no more often than is said, and rounds are parts of one pass."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

import numpy as np
import pytest
import torch
from scipy.stats import norm

from holdfast.core.divergences import L2Distance
from holdfast.core.images import Images
from holdfast.core.run_settings import Observed, RunSettings
from holdfast.measure.population import Population
from holdfast.smoothing.copies import Stopping, least_share
from holdfast.smoothing.evaluations.smoothed_retrieval import SmoothedRetrieval
from holdfast.smoothing.index import Smoothing, mass, quantile
from holdfast.smoothing.noisy_codes import NoisyCodes
from holdfast.smoothing.plan import Plan
from tests.facts import says
from tests.samples import linear

SMOOTHING, TRIALS, ALPHA = Smoothing(0.25, 400, 8000, 6, 5), 2000, 0.05
RULE = Stopping((0.25, 0.5), 0.001, 500)


def drawn(chance: float, looks: tuple[int, ...]) -> torch.Tensor:
    """Return how many draws showed an event at each look, in 2,000 trials."""
    random = np.random.default_rng(0)
    fresh = np.stack([random.binomial(n, chance, TRIALS) for n in np.diff((0, *looks))], axis=1)
    return torch.from_numpy(fresh.cumsum(1))


@pytest.mark.parametrize("chance", [0.6, 0.8413, 0.977])
def test_whoever_stops_at_the_first_false_certificate_errs_with_alpha_at_most(chance: float) -> None:
    """The worst rule there is: it knows the truth, and stops as soon as the bound exceeds it."""
    looks = RULE.looks(8000)
    counts, draws = drawn(chance, looks), torch.tensor(looks)
    ever, careless = (
        float((least_share(counts, draws.expand_as(counts), alpha) > chance).any(1).double().mean())
        for alpha in (ALPHA / len(looks), ALPHA)
    )
    margin = 3 * sqrt(ALPHA * (1 - ALPHA) / TRIALS)
    assert ever <= ALPHA + margin
    assert careless > ALPHA + margin, "vacuous: looking costs nothing"


def test_distances_of_a_moving_number_of_copies_hold_at_every_look() -> None:
    """The ball of rank ``quantile`` holds its mass wherever one stops: copies nearer than it are a share that is too low."""
    looks, alpha = RULE.looks(8000), ALPHA
    needed = mass(0.1, 0.25, 0.1)
    counts = drawn(needed, looks)  # of copies in the ball that holds just the mass
    ranks = torch.tensor([np.ceil(n * quantile(0.1, 0.25, 0.1, n, alpha / len(looks))) for n in looks])
    assert float((counts >= ranks).any(1).double().mean()) <= alpha


def test_one_stops_when_all_is_decided_and_no_later() -> None:
    looks, sigma = RULE.looks(8000), 0.25
    alpha = RULE.certainty / len(looks)

    def slow(count: int, draws: int) -> bool:
        low = float(least_share(torch.tensor([count]), draws, alpha))
        high = 1 - float(least_share(torch.tensor([draws - count]), draws, alpha))
        return all(low > norm.cdf(r / sigma) or high < norm.cdf(r / sigma) for r in RULE.wanted)

    answers = {(k, n): RULE.decided(torch.tensor([k]), n, 8000, sigma) for n in looks for k in range(0, n + 1, 25)}
    assert answers == {(k, n): slow(k, n) for k, n in answers}
    assert 0.2 < np.mean(list(answers.values())) < 0.99
    both = torch.tensor([500, 420])
    assert not RULE.decided(both, 500, 8000, sigma), "one event is undecided"


def test_a_radius_out_of_reach_is_not_waited_for() -> None:
    agreed = torch.tensor([1000])
    assert replace(RULE, wanted=(0.25, 2.0)).decided(agreed, 1000, 8000, 0.25)
    assert not replace(RULE, wanted=(0.25, 0.75)).decided(torch.tensor([999]), 1000, 8000, 0.25)


@pytest.fixture(scope="module")
def population() -> Population:
    points = torch.rand(12, 1, 1, 2, generator=torch.Generator().manual_seed(3))
    return Population(linear(torch.eye(2), (1, 1, 2)), Images(points), RunSettings(batch_size=3000))


def observed(population: Population, stopping: Stopping, rows: list[int]) -> Observed:
    return NoisyCodes(SMOOTHING, (L2Distance(),), (), stopping).observe(population, rows)


def test_rounds_are_the_first_copies_of_one_pass(population: Population, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = population.choose(6)
    whole = observed(population, Stopping(), rows)
    early = observed(population, RULE, rows)
    alone = observed(population, RULE, rows[2:3])
    monkeypatch.setattr(Stopping, "decided", lambda *_: False)
    never = observed(population, RULE, rows)
    assert never["copies"].tolist() == [8000] * 6
    for name in ("0.kept", "0.nearer", "0.retrieved", "0.distances", "0.held"):
        assert torch.equal(whole[name], never[name]), name
    assert len(early["copies"].unique()) > 1, "vacuous: all stop at once"
    assert (early["0.kept"] <= whole["0.kept"]).all()
    assert all(torch.equal(alone[name][0], early[name][2]) for name in early), "a row depends on its neighbours"


def test_what_is_certified_early_is_certified_by_all_copies(population: Population) -> None:
    """Each wanted radius that a stopped image has, it has with all copies; those that it has not, it has not."""
    looks = RULE.looks(8000)
    alpha, rows = RULE.certainty / len(looks), population.choose(6)
    early, whole = observed(population, RULE, rows), observed(population, Stopping(), rows)
    for radius in RULE.wanted:
        threshold = norm.cdf(radius / 0.25)
        for event in ("kept", "retrieved"):
            certain, certain_of_all = (
                least_share(seen[f"0.{event}"], seen["copies"], alpha) > threshold for seen in (early, whole)
            )
            assert certain.tolist() == certain_of_all.tolist()


def test_evaluations_share_copies_and_the_plan_foretells_them() -> None:
    asked = SmoothedRetrieval()
    assert asked.stopping == Stopping((0.25, 0.5, 0.75), 0.001, 6000)
    assert asked.looks == 5
    said = str(Plan(asked.smoothing, asked.slack, asked.alpha, asked.stopping))
    assert says(said, "120,000", "32,500", "copies")
    wide = SmoothedRetrieval(radii=(0.25, 0.5))
    assert wide.least_copies > 6000, "the ball of center smoothing takes more"
