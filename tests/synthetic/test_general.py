"""Unequal priors, coloured noise and l_inf budgets: what the mixture allows, against samples and closed forms."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.fft import dctn
from torch import Tensor

from holdfast.core.noise import Noise
from holdfast.synthetic.mixture import DIRECTIONS, Mixture, Pooled, Rules, _cosines, direction
from holdfast.synthetic.score import allowed, reference
from tests.synthetic.isotropic import isotropic_rule
from tests.synthetic.test_bayes import in_modes, pair

NAMES = [str(k) for k in range(40_000)]
BUDGETS = [0.0, 0.3, 0.6]


def covariance(mixture: Mixture) -> Tensor:
    """The whole matrix, by the definition: the basis of cosines as columns."""
    count = mixture.mean.numel()
    basis = _cosines(torch.eye(count, dtype=torch.float64).reshape(count, *mixture.mean.shape)).reshape(count, count)
    return basis * mixture.variances.flatten() @ basis.T


@pytest.mark.parametrize("shape", [(7,), (5, 6), (2, 4, 3)])
def test_cosines_are_those_of_scipy_and_lead_back(shape: tuple[int, ...]) -> None:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    axes = tuple(range(len(shape)))[-2:]
    assert np.allclose(_cosines(values).numpy(), dctn(values.numpy(), axes=axes, norm="ortho"), atol=1e-12)
    assert torch.allclose(_cosines(_cosines(values), back=True), values)


def test_coloured_noise_has_its_covariance() -> None:
    mixture = Mixture(2 * direction("signs", (2, 3, 4)), spectrum=1.5)
    x, y = mixture.sample(Noise.of(0, NAMES), torch.float64)
    around = (x - y.reshape(-1, 1, 1, 1) * mixture.mean).flatten(1)
    found = around.T @ around / len(x)
    assert (found - covariance(mixture)).abs().max() < 0.05 * found.max()
    mean = mixture.mean.flatten()
    assert float(mean @ torch.linalg.solve(covariance(mixture), mean)) == pytest.approx(float(mean @ mean))
    # Neighbours are alike, places far apart are not, and channels are independent.
    assert found[0, 1] > found[0, 3] + 0.2 * found[0, 0]
    assert found[:12, 12:].abs().max() < 0.05 * found.max()


@pytest.mark.parametrize("kind", DIRECTIONS)
def test_the_best_rule_is_right_as_often_whatever_the_colour(kind: str) -> None:
    """So that one grid of scales serves, at any size of the images."""
    for size in (4, 64):
        gain, _ = Mixture(direction(kind, (3, size, size)), spectrum=2.0).rules([0.0], "l2")
        assert gain.item() == pytest.approx(1)


WAYS = [(0.0, "l2"), (2.0, "l2"), (0.0, "linf")]
MIXTURES = [(kind, (0.5, 0.3)[(k + j) % 2], *way) for k, kind in enumerate(DIRECTIONS) for j, way in enumerate(WAYS)]
"""Every direction in every way, and every two of prior, way and direction somewhere."""


@pytest.mark.parametrize(("kind", "prior", "spectrum", "norm"), MIXTURES)
def test_what_is_allowed_is_what_the_best_rules_reach_on_samples(
    kind: str, prior: float, spectrum: float, norm: str
) -> None:
    """The rules get the exact moments of the mixture."""
    scales = [0.7, 1.5]
    unit = direction(kind, (3, 4))
    right, bound = allowed(scales, Mixture(unit, prior, spectrum), BUDGETS, norm)
    for k, scale in enumerate(scales):
        mixture = Mixture(scale * unit, prior, spectrum)
        x, y = mixture.sample(Noise.of(1, NAMES), torch.float64)
        assert (y > 0).double().mean().item() == pytest.approx(prior, abs=0.01)
        count = torch.tensor([1e9, 1e9], dtype=torch.float64)
        mean = torch.stack([mixture.mean.flatten(), -mixture.mean.flatten()])
        rules = Rules.fit(Pooled(count, mean, covariance(mixture) * 2e9), BUDGETS, torch.float64, norm, prior)
        found, margins = rules(x.flatten(1), y)
        share = found.double().mean(0)
        assert torch.allclose(share, right[k], atol=0.01)
        assert torch.allclose(margins.mean(0) / share, bound[k], rtol=0.02)


@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_rules_of_unequal_priors_are_the_closed_form_of_alike_values(norm: str) -> None:
    mu = torch.tensor([0.9, -0.4, 0.2, 0.1], dtype=torch.float64)
    largest = float(mu.norm() if norm == "l2" else mu.abs().max())
    pooled = Pooled(torch.tensor([1e9, 1e9]).double(), torch.stack([mu, -mu]), 2e9 * torch.eye(4).double())
    rules = Rules.fit(pooled, [0.4], torch.float64, norm, prior=0.3)
    own = isotropic_rule(mu, 0.4 * largest, "l2" if norm == "l2" else "linf", prior=0.3)
    scale = float(own.w @ mu)
    assert torch.allclose(rules.weights[0], own.w / scale)
    assert rules.offsets[0].item() == pytest.approx(own.offset / scale, rel=1e-6)
    x = torch.randn(200, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ones = torch.ones(200, dtype=torch.float64)
    assert torch.equal(rules(x, ones)[0][:, 0], own(x) > 0)
    # Bounds times the distance of the mean are distances in the norm of the budget.
    where = rules(x, ones)[0][:, 0]
    assert torch.allclose((rules(x, ones)[1][:, 0] * rules.margins(norm)[0])[where], own.margin(x)[where], rtol=1e-6)


def test_no_threshold_does_better_than_that_of_the_prior() -> None:
    """On samples of a correlated pair: moving the boundary either way loses accuracy."""
    m, lam = pair(4, seed=2)
    prior = 0.25
    pooled = Pooled(torch.tensor([1e9, 1e9]).double(), torch.stack([m, -m]), 2e9 * lam)
    rules = Rules.fit(pooled, [0.0], torch.float64, prior=prior)
    modes, values, _ = in_modes(m, lam)
    spread = float(rules.weights[0] @ lam @ rules.weights[0]) ** 0.5

    def accuracy(offset: float) -> float:
        sides = torch.tensor([(1 - offset) / spread, (1 + offset) / spread], dtype=torch.float64)
        return float(torch.special.ndtr(sides) @ torch.tensor([prior, 1 - prior], dtype=torch.float64))

    best = float(rules.offsets[0])
    assert best > 0
    assert accuracy(best) > max(accuracy(best * 0.8), accuracy(best * 1.2))
    assert float((modes.square() / values).sum()) == pytest.approx(1 / spread**2)


def test_white_noise_of_equal_priors_is_the_published_reference() -> None:
    scales = [0.3, 1.0, 2.5]
    for kind in DIRECTIONS:
        for found, expected in zip(
            allowed(scales, Mixture(direction(kind, (3, 5))), BUDGETS, "l2"), reference(scales), strict=True
        ):
            assert torch.allclose(found, expected[:, None].expand_as(found))


def test_repeated_codes_do_not_break_linf_rules() -> None:
    m = torch.tensor([1.0, 1.0, 0.2], dtype=torch.float64)
    spread = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]], dtype=torch.float64)
    pooled = Pooled(torch.tensor([1e9, 1e9]).double(), torch.stack([m, -m]), 2e9 * spread)
    rules = Rules.fit(pooled, [0.0, 0.5], torch.float64, "linf")
    assert torch.isfinite(rules.weights).all()
    assert torch.allclose(rules.weights @ m, torch.ones(2, dtype=torch.float64))
