"""The robust Bayes rules: worked examples, an independent convex solver, and the laws that define them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch import Tensor

from holdfast.core.errors import HoldfastError
from holdfast.synthetic import mixture as bayes
from holdfast.synthetic.mixture import homotopy, secular
from holdfast.synthetic.score import expected_bound
from tests.synthetic.isotropic import isotropic_rule

BUDGETS = [0.0, 0.2, 0.4, 0.6, 0.8]


def accuracy(w: Tensor, m: Tensor, lam: Tensor) -> Tensor:
    """Return the accuracy of the rules ``sign(w'x)``: ``Phi(m'w / sqrt(w' Lam w))``."""
    return torch.special.ndtr(w @ m / (w.square() @ lam).sqrt())


def pair(d: int, seed: int = 0, condition: float = 30.0) -> tuple[Tensor, Tensor]:
    """A mean and a covariance of full rank."""
    generator = torch.Generator().manual_seed(seed)
    basis, _ = torch.linalg.qr(torch.randn(d, d, generator=generator, dtype=torch.float64))
    values = torch.logspace(0, -float(np.log10(condition)), d, dtype=torch.float64)
    return torch.randn(d, generator=generator, dtype=torch.float64), basis * values @ basis.T


def solved(m: Tensor, covariance: Tensor, norm: str, radius: float) -> Tensor:
    """The minimiser of (m - z)' Lam^-1 (m - z) over the ball, by sequential quadratic programming."""
    inverse, mean = np.linalg.inv(covariance.numpy()), m.numpy()
    start = mean * radius / np.linalg.norm(mean) if norm == "l2" else np.clip(mean, -radius, radius) / 2
    ball: Any = {"type": "ineq", "fun": lambda z: radius**2 - z @ z, "jac": lambda z: -2 * z}
    within: Any = {"constraints": [ball]} if norm == "l2" else {"bounds": [(-radius, radius)] * len(mean)}
    solve: Any = minimize  # whose stubs know no analytic derivative of a lambda
    found = solve(
        lambda z: (mean - z) @ inverse @ (mean - z),
        start,
        jac=lambda z: -2 * inverse @ (mean - z),
        method="SLSQP",
        options={"maxiter": 1000, "ftol": 1e-15},
        **within,
    )
    return torch.from_numpy(found.x)


def in_modes(m: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    lam, axes = torch.linalg.eigh(covariance)
    return axes.T @ m, lam, axes


def exact(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.fixture
def worked(reference: Path) -> dict[str, Any]:
    return json.loads((reference / "synbench" / "unit_anchors.json").read_text())


def test_l2_worked_example(worked: dict[str, Any]) -> None:
    m, lam, axes = in_modes(exact(worked["mu"]), exact(worked["Sigma"]))
    z, w = secular(m, lam, [float(case["eps"]) for case in worked["l2_relative_eps"]])
    for k, case in enumerate(worked["l2_relative_eps"]):
        assert (axes @ z[k]).tolist() == pytest.approx(case["z"], abs=1e-12)
        assert (axes @ w[k]).tolist() == pytest.approx(case["w"], abs=1e-12)
        assert accuracy(w, m, lam)[k].item() == pytest.approx(case["acc"], abs=1e-12)
        under_attack = torch.special.ndtr(((m - z[k]).square() / lam).sum().sqrt())
        assert under_attack.item() == pytest.approx(case["robust_acc"], abs=1e-12)
        assert expected_bound(accuracy(w, m, lam))[k].item() == pytest.approx(case["exp_bound"], abs=1e-12)


def test_linf_worked_example(worked: dict[str, Any]) -> None:
    m, covariance = exact(worked["mu"]), exact(worked["Sigma"])
    z, w = homotopy(m, covariance, [case["eps_abs"] for case in worked["linf_absolute_eps"]])
    for k, case in enumerate(worked["linf_absolute_eps"]):
        assert z[k].tolist() == pytest.approx(case["z"], abs=1e-12)
        assert w[k].tolist() == pytest.approx(case["w"], abs=1e-12)
        right = torch.special.ndtr(w[k] @ m / (w[k] @ covariance @ w[k]).sqrt())
        assert right.item() == pytest.approx(case["acc"], abs=1e-12)
        robust = torch.special.ndtr(((m - z[k]) @ torch.linalg.solve(covariance, m - z[k])).sqrt())
        assert robust.item() == pytest.approx(case["robust_acc"], abs=1e-12)


@pytest.mark.parametrize("seed", range(6))
def test_l2_agrees_with_a_convex_solver(seed: int) -> None:
    m, covariance = pair(4 + 3 * seed, seed)
    modes, lam, axes = in_modes(m, covariance)
    z, _ = secular(modes, lam, BUDGETS[1:])
    for k, budget in enumerate(BUDGETS[1:]):
        assert torch.allclose(axes @ z[k], solved(m, covariance, "l2", budget * float(m.norm())), atol=1e-5)


@pytest.mark.parametrize("seed", range(6))
def test_linf_agrees_with_a_convex_solver(seed: int) -> None:
    m, covariance = pair(4 + 3 * seed, seed)
    radii = [share * float(m.abs().max()) for share in (0.1, 0.5, 0.9)]
    z, _ = homotopy(m, covariance, radii)
    for k, radius in enumerate(radii):
        assert torch.allclose(z[k], solved(m, covariance, "linf", radius), atol=1e-5)


@given(
    seed=st.integers(0, 10_000),
    d=st.integers(1, 40),
    condition=st.sampled_from([1.0, 1e2, 1e6, 1e12]),
    size=st.sampled_from([1e-150, 1e-4, 1.0, 1e150]),
    budget=st.sampled_from([1e-9, 1e-3, 0.2, 0.5, 0.9, 0.999999]),
)
def test_secular_solution_is_what_defines_it(seed: int, d: int, condition: float, size: float, budget: float) -> None:
    m, covariance = pair(d, seed, condition)
    m, lam, _ = in_modes(m * size, covariance)
    lam = lam.clamp_min(lam.max() / condition / 2)
    z, w = secular(m, lam, [budget])
    assert float(z[0].norm() / m.norm()) == pytest.approx(budget, rel=1e-12)
    assert torch.allclose(w[0] * lam, m - z[0], rtol=1e-8, atol=1e-12 * float(m.norm()))
    # The solution of the dual: w is a positive multiple of z, so no other z in the ball comes nearer to m.
    assert float((w[0] / w[0].norm()) @ (z[0] / z[0].norm())) == pytest.approx(1, abs=1e-12)


def test_newton_takes_few_steps(monkeypatch) -> None:
    m, covariance = pair(300, condition=1e4)
    m, lam, _ = in_modes(m, covariance)
    expected = secular(m, lam, BUDGETS)[0]
    monkeypatch.setattr(bayes, "STEPS", 8)
    assert torch.allclose(secular(m, lam, BUDGETS)[0], expected, rtol=1e-12)
    monkeypatch.setattr(bayes, "STEPS", 2)
    assert not torch.allclose(secular(m, lam, BUDGETS)[0], expected, rtol=1e-12), "vacuous: two steps are enough"


def test_budgets_range_from_the_bayes_rule_to_the_mean() -> None:
    m, covariance = pair(6)
    m, lam, _ = in_modes(m, covariance)
    _, w = secular(m, lam, [0.0, 1 - 1e-9])
    assert torch.allclose(w[0], m / lam)
    assert torch.allclose(w[1] / w[1].norm(), m / m.norm(), atol=1e-6)


@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_robust_rules_are_right_as_often_as_they_promise(norm: str) -> None:
    """On samples, against the worst change; and no other budget's rule does better against it."""
    m, covariance = pair(5, seed=3)
    m = m * 0.7
    if norm == "l2":
        modes, lam, axes = in_modes(m, covariance)
        z, w = (part @ axes.T for part in secular(modes, lam, [0.0, 0.4, 0.8]))
        radius, dual = 0.4 * m.norm(), w.norm(dim=1)
    else:
        radii = [share * float(m.abs().max()) for share in (0.0, 0.4, 0.8)]
        z, w = homotopy(m, covariance, radii)
        radius, dual = torch.tensor(radii[1]), w.abs().sum(1)
    noise = torch.randn(200_000, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    x = m + noise @ torch.linalg.cholesky(covariance).T
    kept = ((x @ w.T - radius * dual) > 0).double().mean(0)
    promised = torch.special.ndtr(((m - z[1]) @ torch.linalg.solve(covariance, m - z[1])).sqrt())
    assert kept[1].item() == pytest.approx(promised.item(), abs=4e-3)
    assert kept[1] > kept[0]
    assert kept[1] > kept[2]


def test_impossible_budgets_are_refused() -> None:
    for budget in (-0.1, 1.0, float("nan")):
        with pytest.raises(HoldfastError, match=r"budget must be .* \[0, 1\)"):
            secular(torch.ones(3).double(), torch.ones(3).double(), [budget])


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_closed_forms_are_the_isotropic_case(share: float) -> None:
    m = torch.tensor([1.0, -0.5, 0.25, 0.0]).double()
    _, w = secular(m, torch.full((4,), 2.0).double(), [share])
    own = isotropic_rule(m, share * float(m.norm()), "l2").w
    assert torch.allclose(w[0] / w[0].norm(), own / own.norm())
    radius = share * float(m.abs().max())
    _, w = homotopy(m, 2 * torch.eye(4).double(), [radius])
    assert torch.allclose(2 * w[0], isotropic_rule(m, radius, "linf").w, atol=1e-12)


@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_isotropic_margins_reach_the_boundary(norm) -> None:
    mu = torch.tensor([0.6, -0.3, 0.2]).double()
    rule = isotropic_rule(mu, 0.1, norm, sigma=1.5, prior=0.3)
    x = torch.randn(50, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    steepest = rule.w / rule.w.norm() if norm == "l2" else rule.w.sign()
    for factor, same in ((0.999, True), (1.001, False)):
        moved = x - rule(x)[:, None] * factor * rule.margin(x)[:, None] * steepest
        assert bool((rule(moved) == rule(x)).all()) is same


def test_isotropic_prior_moves_the_boundary_to_equal_densities() -> None:
    mu, prior, sigma = torch.tensor([0.8, 0.4]).double(), 0.2, 1.3
    rule = isotropic_rule(mu, 0.0, "l2", sigma, prior)
    x = mu * rule.offset / (mu @ mu)
    odds = prior / (1 - prior) * ((-(x - mu).square().sum() + (x + mu).square().sum()) / (2 * sigma**2)).exp()
    assert odds.item() == pytest.approx(1)


def test_isotropic_margins_of_the_paper() -> None:
    """Result 3.1 and appendix B, balanced classes."""
    mu, x = torch.tensor([3.0, 4.0]).double(), torch.tensor([[1.0, -2.0]]).double()
    assert isotropic_rule(mu, 2.0, "l2").margin(x).item() == pytest.approx(abs(-5 * (1 - 2 / 5)) / (5 - 2))
    assert isotropic_rule(mu, 2.0, "linf").margin(x).item() == pytest.approx(abs(1 * 1 - 2 * 2) / 3)


def test_general_mixture_is_as_separable_as_its_rule() -> None:
    m, covariance = pair(5, seed=2)
    modes, lam, _ = in_modes(m, covariance)
    _, w = secular(modes, lam, [0.0])
    best = torch.special.ndtr((m @ torch.linalg.solve(covariance, m)).sqrt())
    assert best.item() == pytest.approx(accuracy(w, modes, lam).item(), abs=1e-12)
