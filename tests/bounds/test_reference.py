"""Bounds and radii that independent programs computed on published encoders."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from holdfast.bounds import Alpha, Crown, Interval, Method, Semidefinite
from holdfast.bounds.certified_search import bracket_radii
from holdfast.bounds.network.network_graph import Graph
from holdfast.bounds.network.tracing import trace
from holdfast.bounds.regions import Region
from holdfast.core.balls import Linf
from tests.marks import rest_slow
from tests.samples import published

NAMES = ["mnist_base", "cifar10_base_adv4", "mnist_cnn_4layer_a", "mnist_cnn_4layer_a_adv1"]
FILES = {"crown": Crown(joint=False), "ibp": Interval()}
named = pytest.mark.parametrize("name", rest_slow(NAMES))
clipped = pytest.mark.parametrize("clip", rest_slow(["clip", "noclip"]))


@cache
def traced(reference: Path, name: str) -> Graph:
    return trace(published(reference, name, torch.float64))


class Case:
    """An encoder in the units of the stored numbers (those of CIFAR are normalised), images, specifications, the range."""

    def __init__(self, reference: Path, name: str, clip: str, count: int = 20) -> None:
        self.stored = dict(np.load(reference / "verification" / f"autolirpa__{name}.npz"))
        self.graph = traced(reference, name)
        self.x = torch.tensor(self.stored["X_f32"][:count]).double()
        self.specifications = torch.tensor(self.stored["C_f64"][:count])
        ends = (torch.tensor(self.stored[key]).double().reshape(1, -1, 1, 1) for key in ("clip_min", "clip_max"))
        self.low, self.high = ends if clip == "clip" else (torch.tensor(-torch.inf), torch.tensor(torch.inf))

    def region(self, eps: Tensor, images: Tensor | slice = slice(None)) -> Region:
        x, reach = self.x[images], eps.reshape(-1, 1, 1, 1)
        low, high = torch.maximum(x - reach, self.low), torch.minimum(x + reach, self.high)
        return Region(x[:, None], low[:, None], high[:, None], eps, Linf)

    def bounds(self, method: Method, eps: float) -> Tensor:
        return method(
            self.graph, self.region(torch.full((len(self.x),), eps, dtype=torch.float64)), self.specifications
        )


@named
@clipped
def test_plain_crown_and_interval_bounds(reference: Path, name: str, clip: str) -> None:
    case = Case(reference, name, clip)
    for which, method in FILES.items():
        for k, eps in enumerate(case.stored["eps"].tolist()):
            theirs = case.stored[f"{which}_{clip}_f64"][k]
            assert case.bounds(method, eps).numpy() == pytest.approx(theirs, rel=1e-6, abs=1e-9), (which, eps)


@named
def test_joint_bounds_are_never_below_plain_ones(reference: Path, name: str) -> None:
    case = Case(reference, name, "clip")
    for k, eps in enumerate(case.stored["eps"].tolist()):
        assert (case.bounds(Crown(), eps).numpy() >= case.stored["crown_clip_f64"][k] - 1e-9).all()


@named
def test_plain_bounds_are_those_of_the_authors_in_single_precision(reference: Path, name: str) -> None:
    theirs = dict(np.load(reference / "verification" / f"official_f32__{name}.npz"))
    case, compared = Case(reference, name, "clip"), 0
    for k, eps in enumerate(theirs["eps"].tolist()):
        ran = ~np.isnan(theirs["crown_clip"][k])
        ours = case.bounds(FILES["crown"], eps).numpy()
        assert np.allclose(ours[ran], theirs["crown_clip"][k][ran], rtol=1e-4, atol=1e-3)
        compared += ran.sum()
    assert compared >= 15


@named
@clipped
def test_radii_to_the_tolerance_of_the_bisection(reference: Path, name: str, clip: str) -> None:
    case = Case(reference, name, clip, count=6)

    def bound(images: Tensor, eps: Tensor, specifications: Tensor) -> Tensor:
        return Crown()(case.graph, case.region(eps, images), case.specifications[images[:, None], specifications])

    clean = torch.einsum("bsd,bd->bs", case.specifications, case.graph(case.x))
    found = bracket_radii(bound, clean, 1.0, 1e-4).numpy()
    theirs = case.stored[f"radius_{clip}_f64"][:6]
    assert (found >= theirs - 3e-4).all()  # the bound is not monotone in the radius: two searches may part
    assert (found >= theirs - 1.01e-4).mean() > 0.95
    if "cifar" not in name:  # there intervals improve on plain CROWN
        assert found == pytest.approx(theirs, abs=3e-4)


@pytest.mark.slow
@named
def test_optimised_slopes_reach_the_stored_bounds(reference: Path, name: str) -> None:
    theirs = dict(np.load(reference / "verification" / f"alpha__{name}.npz"))["my_alpha_opt_interm_clip_f32"]
    case = Case(reference, name, "clip", count=3)
    for k, eps in enumerate(case.stored["eps"].tolist()):
        known = ~np.isnan(theirs[k][:3])
        assert known.any()
        assert case.bounds(Alpha(), eps).numpy()[known].mean() >= theirs[k][:3][known].mean() - 1e-3


@named
def test_no_stored_attack_lies_below_a_bound(reference: Path, name: str) -> None:
    attacks = dict(np.load(reference / "verification" / f"pgd__{name}.npz"))
    case = Case(reference, name, "clip", count=4)
    for k, eps in enumerate(case.stored["eps"].tolist()):
        moved = torch.tensor(attacks["adv_clip"][k]).double().unflatten(0, (20, 5))[:4]
        values = torch.stack([(case.specifications[i] * case.graph(moved[i])).sum(1) for i in range(4)])
        assert (case.bounds(Alpha(steps=5, inner=5), eps) <= values + 1e-4).all()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "rows"), [("mnist_base", 2), ("mnist_cnn_4layer_a_adv1", 1)])
def test_neurons_together_are_bounded_tighter_than_one_by_one_and_below_every_attack(
    reference: Path, name: str, rows: int
) -> None:
    attacks = dict(np.load(reference / "verification" / f"pgd__{name}.npz"))
    case, largest = Case(reference, name, "clip", count=1), 2
    eps = float(case.stored["eps"][largest])
    case.specifications = case.specifications[:, :rows]  # each is bounded by itself
    single, together = (case.bounds(method, eps)[0] for method in (Alpha(10, 10), Semidefinite(steps=60)))
    # Where nothing is gained they are the same, but for what the clock left of the steps on a machine under load.
    assert (together >= single - 0.01 * single.abs()).all()
    assert together.mean() > single.mean() + 0.01
    assert (together.numpy() <= attacks["pgd_ub_clip"][largest][0][:rows] + 1e-4).all()
