"""Scores of populations with a known answer, and the published runs from their features."""

from __future__ import annotations

import json
from math import sqrt
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from holdfast.core.errors import HoldfastError
from holdfast.synthetic.mixture import Pooled, Rules, direction, secular
from holdfast.synthetic.score import SCALES, area, expected_above, expected_bound, reference, score
from holdfast.synthetic.score import reference as curve
from tests.facts import refused

BUDGETS = (0.0, 0.2, 0.4, 0.6, 0.8)
THRESHOLDS = (0.7, 0.75, 0.8, 0.85, 0.9)
RUNS = ("official_identity16_n512_seed12", "official_lin64to16_n512_seed12", "official_conv8to16_n512_seed12")


def kept(weight: Tensor, along: Tensor) -> Tensor:
    """The share of the separability that the linear map keeps, for each budget: its accuracy at scale s is Phi(c s)."""
    lam, axes = torch.linalg.eigh(weight @ weight.T)
    lam, axes = lam[lam > 1e-12 * lam.max()], axes[:, lam > 1e-12 * lam.max()]
    m = axes.T @ weight @ along
    if m.norm() < 1e-9 * weight.norm():
        return torch.zeros(len(BUDGETS), dtype=torch.float64)
    _, w = secular(m, lam, BUDGETS)
    return w @ m / (w.square() @ lam).sqrt()


def population_score(
    share: Tensor,
    mode: str = "exact",
    thresholds: tuple[float, ...] = THRESHOLDS,
    scales: tuple[float, ...] = SCALES,
) -> Tensor:
    a = torch.special.ndtr(torch.tensor(scales, dtype=torch.float64)[:, None] * share)
    return score(a, torch.where(a > 0.5, expected_bound(a), 0.0), reference(scales), thresholds, mode)


def test_reference_bounds() -> None:
    assert expected_bound(torch.tensor([0.6, 0.7, 0.9, 1.0]).double()).tolist() == pytest.approx(
        [3.541589, 1.947184, 1.152158, 1.0], abs=1e-6
    )
    assert expected_bound(torch.tensor([0.3, 0.5, 1.1])).isnan().all()


@pytest.mark.parametrize("scale", [0.3, 1.0, 2.5])
def test_reference_is_what_samples_show(scale: float) -> None:
    x = scale + torch.randn(400_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    accuracy, bound = reference([scale])
    assert (x > 0).double().mean().item() == pytest.approx(accuracy.item(), abs=3e-3)
    assert (x[x > 0] / scale).mean().item() == pytest.approx(bound.item(), rel=5e-3)


def test_reference_areas(reference: Path) -> None:
    known = json.loads((reference / "synbench" / "unit_anchors.json").read_text())

    assert area(*curve(SCALES), known["a_t"]).tolist() == pytest.approx(known["A_ref_exact"], rel=1e-12)
    heights = expected_above(*curve(SCALES), torch.tensor(known["a_t"], dtype=torch.float64))
    assert heights.tolist() == pytest.approx(known["E_ref"], rel=1e-12)


def test_scores_of_partial_separability() -> None:
    """A linear map that keeps a share c of the separability."""
    known = {
        0.9: (0.971, 0.959, 0.941),
        0.7: (0.889, 0.843, 0.771),
        0.5: (0.7425, 0.638, 0.476),
        0.3: (0.4505, 0.255, 0.038),
    }
    for share, expected in known.items():
        found = population_score(torch.tensor([share]).double(), thresholds=(0.7, 0.8, 0.9))
        assert found.flatten().tolist() == pytest.approx(expected, abs=6e-4)


def linear_maps() -> dict[str, tuple[Tensor, int]]:
    generator = torch.Generator().manual_seed(0)
    eye = torch.eye(64, dtype=torch.float64)
    square = torch.randn(64, 64, generator=generator, dtype=torch.float64)
    pool = torch.kron(torch.eye(16), torch.ones(1, 4) / 4).double()
    return {
        "identity64": (eye, 64),
        "orth64": (torch.linalg.qr(square)[0], 64),
        "scaled_identity_1e-4": (1e-4 * eye, 64),
        "mean_pixel784": (torch.full((1, 64), 1 / 64).double(), 64),
        "avgpool_28to7": (pool, 64),
        "first_quarter_pixels": (eye[:16], 64),
        "center784 (DC removed)": (eye - 1 / 64, 64),
        "diag_powerlaw64": (torch.diag(torch.arange(1, 65).double() ** -1), 64),
    }


@pytest.mark.parametrize("name", linear_maps())
def test_populations_behind_linear_maps(reference: Path, name: str) -> None:
    weight, size = linear_maps()[name]
    known = json.loads((reference / "synbench" / "anchors_population.json").read_text())["encoders"][name]
    share = kept(weight, direction("ones", (size,)))
    for mode in ("exact", "published"):
        found = population_score(share, mode)
        stored = known["score_exact" if mode == "exact" else "score_grid"]
        for e, budget in enumerate(("0", "0.2", "0.4", "0.6", "0.8")):
            assert found[:, e].tolist() == pytest.approx(stored[budget], abs=1e-9)


def test_injective_maps_lose_nothing_without_a_budget() -> None:
    weight = linear_maps()["diag_powerlaw64"][0]
    found = population_score(kept(weight, direction("ones", (64,))))
    assert found[:, 0].tolist() == pytest.approx([1.0] * 5, abs=1e-9)
    assert (found[:, 1:] < 0.99).all(), "vacuous: no budget costs anything"
    assert kept(weight, direction("ones", (64,)))[1].item() == pytest.approx(0.6246618, abs=1e-6)


def test_published_sum_is_near_the_area() -> None:
    for share in (0.3, 0.6, 0.9):
        found = [population_score(torch.tensor([share]).double(), mode) for mode in ("exact", "published")]
        assert (found[0] - found[1]).abs().max() < 0.01
        assert (found[0] - found[1]).abs().max() > 1e-4


def test_thresholds_that_no_scale_reaches_are_refused() -> None:
    with refused(HoldfastError, "0.9", "reaches", "threshold"):
        score(*reference([0.5, 0.6]), reference([0.5, 0.6]), [0.7, 0.9])
    with pytest.raises(HoldfastError, match="Did you mean 'exact'"):
        score(*reference([1.0, 2.0]), reference([1.0, 2.0]), [0.7], "exakt")


@pytest.mark.parametrize("name", RUNS)
def test_published_runs_from_their_features(reference: Path, name: str) -> None:
    with np.load(reference / "synbench" / f"{name}.npz") as stored:
        run = {key: torch.from_numpy(np.array(stored[key])) for key in stored.files}
    accuracies, bounds = [], []
    for k in range(len(run["s"])):
        train = run["train_X"][k], run["train_y"][k].float() * 2 - 1
        pooled = Pooled.of(*train)
        assert torch.allclose(pooled.covariance, run["cov"][k], rtol=1e-9)
        rules = Rules.fit(pooled, run["eps"].tolist(), torch.float32)
        right, bound = rules(run["test_X"][k], run["test_y"][k].float() * 2 - 1)
        accuracies.append(right.double().mean(0))
        bounds.append(bound.sum(0) / right.sum(0))
        # The authors' program averages the means of two batches.
        halves = torch.stack([b.sum(0) / r.sum(0) for b, r in zip(bound.split(256), right.split(256), strict=True)])
        assert torch.allclose(halves.mean(0), run["bound"][:, k], rtol=1e-4)
    accuracy, bound = torch.stack(accuracies), torch.stack(bounds)
    assert torch.equal(accuracy, run["acc"].T)
    found = score(accuracy, bound, curve(run["s"].tolist()), run["at"].tolist(), "published")
    assert (found.T - run["score"]).abs().max() < 1e-4
    exact = score(accuracy, bound, curve(run["s"].tolist()), run["at"].tolist())
    assert (exact.T - run["score"]).abs()[:, 2:6].max() < 0.02, "the area is not the sum, but near it"


@pytest.mark.parametrize(
    "name", [*RUNS, "official_lin784to64_n2048_seed12", "official_rvcl_mnist_cnn_4layer_a_n2048_seed12"]
)
def test_published_scores_from_their_curves(reference: Path, name: str) -> None:
    with np.load(reference / "synbench" / f"{name}.npz") as stored:
        accuracy, bound, known = (torch.from_numpy(stored[key]) for key in ("acc", "bound", "score"))
        found = score(accuracy.T, bound.T, curve(stored["s"].tolist()), stored["at"].tolist(), "published")
    assert (found.T - known).abs().max() < 1e-5


def test_score_depends_on_the_largest_scale() -> None:
    share = torch.tensor([0.5]).double()
    assert population_score(share, scales=SCALES[:25])[0].item() < population_score(share)[0].item() - 0.1


def test_share_of_separability_is_geometry() -> None:
    assert kept(torch.eye(64).double()[:16], direction("ones", (64,))).tolist() == pytest.approx([sqrt(16 / 64)] * 5)
