"""Center smoothing against stored draws, linear maps whose answer is known, and slow definitions."""

from __future__ import annotations

import json
from math import ceil, exp, sqrt
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ncx2, norm

from holdfast.core.divergences import L2Distance
from holdfast.core.images import Images
from holdfast.core.noise import Noise
from holdfast.core.run_settings import RunSettings
from holdfast.measure.population import Population
from holdfast.smoothing.copies import kept_ranks
from holdfast.smoothing.evaluations.center_smoothing import CenterSmoothing
from holdfast.smoothing.index import BETA, Smoothing, abstains, central_sample, deviation, mass, quantile
from holdfast.smoothing.noisy_codes import NoisyCodes
from holdfast.smoothing.plan import certified_distance
from tests.samples import linear

ENCODERS = ("mnist_base", "mnist_base_adv1", "mnist_cnn_4layer_a", "mnist_cnn_4layer_a_adv1")


def test_the_levels_of_the_paper():
    assert mass(0.25, 0.25, 0.05) == pytest.approx(0.8698, abs=5e-5)
    assert quantile(0.25, 0.25, 0.05, 100_000, 0.005) == pytest.approx(0.8750, abs=5e-5)


def test_levels_of_the_linear_cases(reference: Path):
    for case in json.loads((reference / "unsupervised" / "center_smoothing_linear.json").read_text()):
        assert mass(case["eps_in"], case["sigma"], case["delta"]) == pytest.approx(case["p"], rel=1e-12)
        found = quantile(case["eps_in"], case["sigma"], case["delta"], case["N"], 0.005)
        assert found == pytest.approx(case["q"], rel=1e-12)


def test_a_certificate_is_three_times_the_distance_at_its_rank_by_hand():
    """1000 distances 1, 2, ..., 1000: the rank is the share ``p + sqrt(ln(2 / alpha) / 2N)`` of them, rounded up."""
    copies, slack, alpha, sigma, eps = 1000, 0.1, 0.01, 0.5, 0.2
    ranks = kept_ranks(copies)
    assert ranks.tolist() == list(range(500, 1001))
    asked = Smoothing(sigma, 2000, copies, 1, 1)
    level = norm.cdf(norm.ppf(0.5 + slack) + eps / sigma) + sqrt(np.log(2 / alpha) / (2 * copies))
    assert 0.5 < level < 1
    found = certified_distance(ranks[None].double(), torch.tensor([0.5]).double(), eps, asked, slack, alpha)
    assert found.tolist() == [3 * ceil(level * copies)]
    far = certified_distance(ranks[None].double(), torch.tensor([0.5]).double(), 2.0, asked, slack, alpha)
    assert bool(far.isnan()), "no share of the draws is enough"


def test_who_abstains_by_hand():
    """``off = sqrt(ln(2 / alpha) / 2n)``: the ball must hold ``1/2 - slack + off`` of fresh copies at least."""
    selection, slack, alpha = 1000, 0.1, 0.01
    off = sqrt(np.log(2 / alpha) / (2 * selection))
    level = 0.5 - slack + off
    held = torch.tensor([level - 1e-6, level + 1e-6], dtype=torch.float64)
    assert abstains(held, selection, slack, alpha).tolist() == [True, False]
    few = int(np.log(2 / alpha) / (2 * slack**2))
    assert abstains(torch.ones(1), few, slack, alpha).item(), "too few to tell at all"
    assert not abstains(torch.ones(1), few + 1, slack, alpha).item()


def test_stored_draws_exactly(reference: Path):
    stored = np.load(reference / "unsupervised" / "center_smoothing_samples_mnist_base.npz")
    said = json.loads((reference / "unsupervised" / "smoothing_mnist_base.json").read_text())["center_smoothing"][0]
    samples = torch.from_numpy(stored["Z"])
    found = central_sample(samples)
    assert found.index == int(stored["center_index"])
    assert found.radius == pytest.approx(said["radius"], rel=5e-5)  # the mean of two order statistics there, one here
    held = torch.tensor([float((stored["d_fresh"] <= said["radius"]).mean())])
    assert held.item() == pytest.approx(said["frac"])
    assert not abstains(held, 10_000, 0.05, 0.005).item()
    ordered = np.sort(stored["d_cert"])
    rank = ceil(said["q"] * len(ordered))
    below, above = (3 * float(ordered[k - 1]) for k in (rank - 1, rank))
    assert below <= said["eps_out"] <= above  # interpolated there
    kept = torch.from_numpy(ordered)[kept_ranks(len(ordered)) - 1][None]
    asked = Smoothing(0.25, 10_000, 100_000, 1, 1)
    ours = float(certified_distance(kept, held, 0.25, asked, 0.05, 0.01))
    assert above <= ours <= 1.0005 * above


@pytest.mark.parametrize("name", ENCODERS)
def test_abstentions_of_stored_counts(reference: Path, name: str):
    rows = json.loads((reference / "unsupervised" / f"smoothing_{name}.json").read_text())["center_smoothing"]
    for row in rows:
        assert bool(abstains(torch.tensor([row["frac"]]), row["N0"], 0.05, 0.005)) == row["abstain"]
    assert len(rows) == 20


@pytest.mark.parametrize(("k", "expected"), [(1, 1.151), (10, 3.026), (100, 10.045)])
def test_a_linear_map_has_the_distance_of_the_noncentral_chi_distribution(k: int, expected: float):
    """``f(x) = x`` in ``k`` dimensions: the truth is .25, and the certificate grows like ``3 sqrt(k)``: it is loose."""
    images = Images(torch.full((1, 1, 1, k), 0.5))
    population = Population(linear(torch.eye(k), (1, 1, k)), images, RunSettings(batch_size=4096))
    asked = NoisyCodes(Smoothing(0.25, 10_000, 100_000, 1, 1), (L2Distance(),), ())
    seen = asked.observe(population, [0])
    found = float(certified_distance(seen["0.distances"], seen["0.held"], 0.25, asked.smoothing, 0.05, 0.01))
    offset = float(seen["0.error"]) / 0.25
    exact = 3 * 0.25 * sqrt(ncx2.ppf(0.87499, k, offset**2)) if offset > 1e-9 else torch.nan
    assert found == pytest.approx(exact, rel=0.006)
    assert found == pytest.approx(expected, rel=0.03)
    assert found > 0.25


def slow_radius(samples: torch.Tensor) -> float:
    distances = (samples[:, None] - samples[None]).double().norm(dim=2)
    medians = distances.sort(dim=1).values[:, ceil(len(samples) / 2) - 1]
    return float(medians.min())


@given(seed=st.integers(0, 10**6), n=st.integers(1, 200), d=st.integers(1, 5), offset=st.sampled_from([0.0, 1000.0]))
def test_the_centre_is_that_of_the_definition(seed: int, n: int, d: int, offset: float):
    samples = torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).relu() + offset
    radius = slow_radius(samples)
    found = central_sample(samples)
    assert found.radius == pytest.approx(radius, abs=1e-9)
    assert float((samples - samples[found.index]).norm(dim=1).sort().values[ceil(n / 2) - 1]) == pytest.approx(
        radius, abs=1e-9
    )


def test_samples_that_are_not_finite_are_far_away():
    samples = torch.tensor([[torch.nan], [0.0], [1.0], [3.0], [torch.inf]])
    assert central_sample(samples) == central_sample(samples)
    assert central_sample(samples).index == 2
    assert central_sample(samples).radius == 2
    assert central_sample(torch.full((4, 2), torch.nan)).radius == torch.inf


def test_kept_ranks_hold_the_ends_and_do_not_grow():
    assert kept_ranks(100_000)[[0, -1]].tolist() == [50_000, 100_000]
    assert len(kept_ranks(100_000)) == 1024
    assert kept_ranks(1).tolist() == [1]


def chance_of_error(share: float, expected: float, draws: int) -> float:
    """How likely a share of draws exceeds its expectation by so much, at most (Hoeffding 1963)."""
    return exp(-2 * draws * (share - expected) ** 2) if share > expected else 1.0


@pytest.mark.parametrize("copies", [1000, 2001])
@pytest.mark.parametrize("alpha", [0.01, 0.05])
def test_the_ball_that_is_claimed_holds_the_draws_that_half_of_alpha_needs(copies: int, alpha: float):
    """Half of the chance of error is left for the changed image; and not one draw less, nor many more, will do."""
    asked, slack, eps = Smoothing(0.25, 4000, copies, 1, 1), 0.1, 0.1
    ranks = kept_ranks(copies).double()[None]  # as if the draw of rank k were at distance k
    certified = certified_distance(ranks, torch.ones(1, dtype=torch.float64), eps, asked, slack, alpha)
    draws = round(float(certified) / (1 + BETA))
    needed = mass(eps, 0.25, slack)
    assert chance_of_error(draws / copies, needed, copies) <= alpha / 2
    assert chance_of_error((draws - 2) / copies, needed, copies) > alpha / 2


@pytest.mark.parametrize("alpha", [0.005, 0.05])
def test_a_centre_whose_ball_may_hold_too_little_abstains(alpha: float):
    """What is held exceeds half of the mass less the slack by more than chance explains: half of alpha is for that."""
    selection, slack = 2000, 0.1
    shares = torch.arange(selection + 1).double() / selection
    least = float(shares[~abstains(shares, selection, slack, alpha)].min())
    assert chance_of_error(least, 0.5 - slack, selection) <= alpha / 2
    assert chance_of_error(least - 1 / selection, 0.5 - slack, selection) > alpha / 2


@pytest.mark.slow
def test_the_certificate_fails_no_more_often_than_it_says():
    """2,000 certificates at alpha = .05 of ``f(x) = x``: the ball must hold the mass, and the moved centre lie within."""
    k, sigma, eps, alpha, selection, copies, slack = 3, 0.25, 0.2, 0.05, 300, 1000, 0.2
    asked = Smoothing(sigma, selection, copies, 1, 1)
    needed, off = mass(eps, sigma, slack), deviation(alpha / 2, copies)
    assert needed + off < 1
    trials, noise = 2000, Noise.of(0, ["trials"])
    start = {"here": torch.zeros(k), "there": torch.tensor([eps, 0.0, 0.0])}

    def drawn(purpose: str, count: int) -> torch.Tensor:
        numbered = noise.fork(purpose).numbered(torch.arange(trials * count))
        return sigma * numbered.gaussian((k,)).view(trials, count, k)

    samples = {which: x + drawn(f"centre {which}", selection) for which, x in start.items()}
    fresh = {which: x + drawn(f"held {which}", selection) for which, x in start.items()}
    copied, radii, off_centre, too_far = drawn("certify", copies), [], [], 0
    for trial in range(trials):
        centres, helds = [], []
        for which in start:
            found = central_sample(samples[which][trial])
            centres.append(samples[which][trial, found.index])
            helds.append(((fresh[which][trial] - centres[-1]).norm(dim=1) <= found.radius).double().mean()[None])
        distances = (copied[trial] - centres[0]).norm(dim=1).sort().values
        certified = certified_distance(distances[kept_ranks(copies) - 1][None], helds[0], eps, asked, slack, alpha)
        if bool(certified.isnan()) or bool(abstains(helds[1], selection, slack, alpha / 2)):
            continue
        radii.append(float(certified) / (1 + BETA))
        off_centre.append(float(centres[0].norm()))
        too_far += float((centres[0] - centres[1]).norm()) > float(certified)
    answered = len(radii)
    true_mass = ncx2.cdf((np.array(radii) / sigma) ** 2, k, (np.array(off_centre) / sigma) ** 2)
    too_small = int(np.sum(true_mass < needed))
    assert answered > 0.8 * trials, "vacuous"
    assert too_small <= trials * (alpha + 3 * sqrt(alpha * (1 - alpha) / trials))
    assert too_far <= trials * (alpha + 3 * sqrt(alpha * (1 - alpha) / trials))


def test_half_of_alpha_is_left_for_the_ball_at_the_changed_image():
    """``alpha / 2`` for this centre, of which half again for each of two counts: ``off = sqrt(ln(4 / alpha) / 2n)``."""
    selection, copies, slack, alpha = 2000, 1000, 0.1, 0.02
    least = 0.5 - slack + sqrt(np.log(4 / alpha) / (2 * selection))
    asked = Smoothing(0.25, selection, copies, 1, 1)
    distances = kept_ranks(copies).double()[None].expand(2, -1)
    held = torch.tensor([least - 1e-6, least + 1e-6], dtype=torch.float64)
    certified = certified_distance(distances, held, 0.1, asked, slack, alpha)
    assert certified.isnan().tolist() == [True, False]


def test_an_attacked_centre_whose_ball_may_hold_too_little_shows_no_displacement():
    """Half of alpha is for the changed image, shared by its two counts as at the image itself; by hand."""
    alpha, slack, selection, copies = 0.02, 0.1, 2000, 1000
    asked = CenterSmoothing(
        selection=selection,
        copies=copies,
        samples=2,
        slack=slack,
        alpha=alpha,
        radii=(0.1,),
        divergences=(L2Distance(),),
    )
    least = 0.5 - slack + sqrt(np.log(4 / alpha) / (2 * selection))
    images = Images(torch.rand(4, 1, 1, 2, generator=torch.Generator().manual_seed(0)))
    population = Population(linear(torch.eye(2), (1, 1, 2)), images, RunSettings())
    observed = {
        "0.0.centre": torch.zeros(2, 2),
        "0.0.held": torch.tensor([0.6, 0.6], dtype=torch.float64),
        "0.0.distances": torch.ones(2, len(kept_ranks(copies))),
        "0.0.error": torch.zeros(2),
        "0.copies": torch.tensor([copies, copies]),
        "1.centre": torch.tensor([[0.3, 0.4], [0.3, 0.4]]),
        "1.held": torch.tensor([least - 1e-6, least + 1e-6], dtype=torch.float64),
    }
    found = asked.conclude(population, population.choose(2), observed)
    (moved,) = [one for one in found.series if one.quantity == "attacked_smoothed_displacement"]
    assert np.isnan(moved.values[0])
    assert moved.values[1] == pytest.approx(0.5)


def test_alpha_is_shared_by_all_looks():
    """By hand: after one of three looks the rank is the share ``p + sqrt(ln(2 * 3 / alpha) / 2N)`` of N distances."""
    copies, slack, alpha, sigma, eps, most = 24_000, 0.1, 0.01, 0.5, 0.2, 12
    asked = CenterSmoothing(
        sigma=sigma, copies=copies, samples=2, slack=slack, alpha=alpha, radii=(eps,), divergences=(L2Distance(),)
    )
    assert asked.looks == 3
    images = Images(torch.rand(4, 1, 1, 2, generator=torch.Generator().manual_seed(0)))
    population = Population(linear(torch.eye(2), (1, 1, 2)), images, RunSettings())
    draws = (6000, copies)
    observed = {
        "0.0.centre": torch.zeros(2, 2),
        "0.0.held": torch.ones(2, dtype=torch.float64),
        "0.0.distances": torch.stack([kept_ranks(number, copies).double() for number in draws]),
        "0.0.error": torch.zeros(2),
        "0.copies": torch.tensor(draws),
        "1.centre": torch.zeros(2, 2),
        "1.held": torch.ones(2, dtype=torch.float64),
    }
    found = asked.conclude(population, population.choose(2), observed)
    (certified,) = [one for one in found.series if one.quantity == "certified_smoothed_displacement"]
    for number, distance in zip(draws, certified.values, strict=True):
        needed, careless = (
            number * (norm.cdf(norm.ppf(0.5 + slack) + eps / sigma) + sqrt(np.log(2 * looks / alpha) / (2 * number)))
            for looks in (3, 1)
        )
        assert careless + most < needed, "vacuous: ranks are kept too sparsely"
        assert needed <= distance / (1 + BETA) <= needed + most
