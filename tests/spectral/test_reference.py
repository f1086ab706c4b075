"""Numbers that an independent program computed on published encoders."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from holdfast.spectral.analysis import edge_scores, scored, spade
from holdfast.spectral.eigen import all_values, spectrum
from holdfast.spectral.graph import Graph
from holdfast.spectral.graph_pair import GraphConstruction, checked, draw
from holdfast.spectral.resistance import hops, resistances
from tests.marks import rest_slow
from tests.samples import published
from tests.spectral.graphs import graph_pair

NAMES = ["mnist_base", "mnist_cnn_4layer_a", "mnist_cnn_4layer_a_adv3"]
SIZES = [(300, 10), (1000, 20)]
LARGER = ("mnist_cnn_4layer_a_adv3", 2000, 10)
"""One of the encoders: more images are more of the same, and take more than all the others together."""
LARGE = {"mnist_cnn_4layer_a": 23.46, "mnist_cnn_4layer_a_adv3": 11.84}


@pytest.fixture(scope="module")
def mnist(reference: Path) -> Tensor:
    return torch.tensor(np.load(reference / "images" / "mnist_test.npz")["images"])


def stored(reference: Path, name: str, n: int, k: int) -> dict[str, np.ndarray]:
    return dict(np.load(reference / "spade" / f"oracle_{name}_N{n}_k{k}.npz"))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "n", "k"), [*((name, *size) for size in SIZES for name in NAMES), LARGER])
def test_everything_from_features(reference: Path, mnist: Tensor, name: str, n: int, k: int) -> None:
    oracle = stored(reference, name, n, k)
    codes = published(reference, name, torch.float32).forward(mnist[:n].float() / 255).detach()
    found = spade(mnist[:n], codes, k)
    assert np.array_equal(found.inputs.edges, oracle["EX"])
    assert np.array_equal(found.graphs.outputs.edges, oracle["EY"])
    assert found.eigenvalues == pytest.approx(oracle["lam"][:10], rel=1e-6)
    for r in (1, 2, 10):
        assert found.edge_scores[r] == pytest.approx(oracle[f"edge_r{r}"], rel=1e-5, abs=1e-9)
        assert found.node_scores(r) == pytest.approx(oracle[f"node_r{r}"], rel=1e-5, abs=1e-9)
    assert np.array_equal(found.hops, oracle["geo_dY"])
    assert found.stretch == pytest.approx((oracle["res_dY"] / oracle["res_dX"]).max(), rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", rest_slow(NAMES))
@pytest.mark.parametrize(("n", "k"), SIZES)
def test_everything_from_edge_lists(reference: Path, name: str, n: int, k: int) -> None:
    oracle = stored(reference, name, n, k)
    inputs, outputs = (Graph.of(n, oracle[which].astype(np.int64)) for which in ("EX", "EY"))
    assert all_values(inputs, outputs) == pytest.approx(oracle["lam"], rel=1e-9)
    for solver in ("dense", "lanczos", "lobpcg"):
        found = spectrum(inputs, outputs, 10, solver=solver)
        assert found.values == pytest.approx(oracle["lam"][:10], rel=1e-6)
        assert np.abs(found.vectors) == pytest.approx(np.abs(oracle["V10"]), abs=1e-4)
        assert edge_scores(inputs, found, 10) == pytest.approx(oracle["edge_r10"], rel=1e-2, abs=1e-5)
    assert resistances(inputs, inputs.edges) == pytest.approx(oracle["res_dX"], rel=1e-6)
    assert resistances(outputs, inputs.edges) == pytest.approx(oracle["res_dY"], rel=1e-6)
    assert np.array_equal(hops(outputs, inputs.edges), oracle["geo_dY"])
    assert scored(graph_pair(inputs, outputs, k)).score == pytest.approx(oracle["lam"][0], rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_scores_of_ten_thousand_images(reference: Path, mnist: Tensor, name: str) -> None:
    """Compute all parts for one encoder, and for the other only what its score needs: a third of the time."""
    codes = published(reference, name, torch.float32).forward(mnist.float() / 255).detach()
    if name == "mnist_cnn_4layer_a":
        found = spade(mnist, codes, certify=False)
        assert 1 < found.stretch <= found.score * (1 + 1e-6)
        score = found.score
    else:
        graphs = draw(*checked(mnist, codes), 10, GraphConstruction.read("knn"), "none", 0)
        score = float(spectrum(graphs.inputs, graphs.outputs).values[0])
    assert score == pytest.approx(LARGE[name], abs=0.006)
