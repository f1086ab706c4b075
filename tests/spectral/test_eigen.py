"""Every solver against the dense definition, on random graphs in one piece and in several."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.spectral import resistance
from holdfast.spectral.eigen import all_values, certified, spectrum
from holdfast.spectral.graph import Graph, split
from holdfast.spectral.resistance import Factor, Laplacian
from tests.spectral.graphs import oracle, random_graph

SOLVERS = ("dense", "lanczos", "lobpcg")
seeds = st.integers(0, 10**6)


def pair(seed: int, n: int = 60, connected: bool = True) -> tuple[Graph, Graph]:
    """Two random graphs; or two such pairs side by side, so that the second graph is in two pieces."""
    if connected:
        return random_graph(n, 3 * n, seed), random_graph(n, n, seed + 1)
    left, right = pair(seed, n // 2), pair(seed + 2, n - n // 2)
    return beside(left[0], right[0]), beside(left[1], right[1])


def beside(left: Graph, right: Graph) -> Graph:
    edges = np.concatenate([left.edges, right.edges + left.n])
    return Graph(left.n + right.n, edges, np.concatenate([left.weights, right.weights]))


@settings(max_examples=15)
@given(seeds, st.booleans(), st.sampled_from(SOLVERS))
def test_solvers_agree_with_the_oracle(seed, connected, solver):
    inputs, outputs = pair(seed, connected=connected)
    assert split(inputs, outputs) is None
    truth = oracle(inputs, outputs)
    found = spectrum(inputs, outputs, 4, 1e-8, solver=solver)
    assert found.values == pytest.approx(truth[:4], rel=1e-6)
    assert found.residuals.max() < 1e-6
    assert all_values(inputs, outputs) == pytest.approx(truth, rel=1e-8, abs=1e-8)


@pytest.mark.parametrize("solver", SOLVERS)
def test_vectors_are_normalised_centred_and_signed(solver):
    inputs, outputs = pair(0, connected=False)
    found = spectrum(inputs, outputs, 3, 1e-9, solver=solver)
    bound = Laplacian(outputs)
    assert found.vectors.T @ (outputs.laplacian @ found.vectors) == pytest.approx(np.eye(3), abs=1e-5)
    assert found.vectors == pytest.approx(bound.centred(found.vectors), abs=1e-12)
    assert (found.vectors.max(0) >= -found.vectors.min(0)).all()


def test_lobpcg_does_what_it_says():
    inputs, outputs = pair(3, n=500)
    rough, fine = (spectrum(inputs, outputs, 3, tolerance, solver="lobpcg") for tolerance in (1e-2, 1e-7))
    assert fine.residuals.max() <= 1e-7 < rough.residuals.max() <= 1e-2
    other = spectrum(inputs, outputs, 3, 1e-7, seed=1, solver="lobpcg")
    assert other.values == pytest.approx(fine.values, rel=1e-9)


def test_a_small_gap_does_not_hide_the_largest():
    """Two nearly equal blocks: power iteration would take thousands of steps to tell them apart."""
    one = random_graph(100, 200, 0)
    shifted = Graph(200, one.edges + 100, one.weights * 1.0001)
    inputs = Graph(200, np.concatenate([one.edges, shifted.edges]), np.concatenate([one.weights, shifted.weights]))
    tree = random_graph(100, 0, 1)
    bridge = Graph.of(200, np.concatenate([tree.edges, tree.edges + 100, [[0, 100]]]))
    truth = oracle(inputs, bridge)
    assert truth[1] / truth[0] > 0.999
    found = spectrum(inputs, bridge, 1, 1e-6, solver="lobpcg")
    assert found.values[0] == pytest.approx(truth[0], rel=1e-6)


def test_the_default_solver_depends_on_size(monkeypatch):
    assert spectrum(*pair(0), r=10).solver == "dense"
    assert spectrum(*pair(0, n=300), r=10).solver == "lanczos"
    assert spectrum(*pair(0, n=300), r=1).solver == "lobpcg"
    monkeypatch.setattr("holdfast.spectral.eigen.FACTORED", 100)
    assert spectrum(*pair(0, n=300), r=10).solver == "lobpcg"


@pytest.mark.parametrize("seed", [2, 15, 47])
def test_equal_graphs_have_as_many_eigenvalues_as_were_asked_for(seed):
    graph = random_graph(72, 700, seed)
    found = spectrum(graph, graph, 10)
    assert found.solver == "dense"
    np.testing.assert_allclose(found.values, np.ones(10))
    assert found.residuals.max() < 1e-8


def test_more_eigenvalues_than_there_are():
    inputs, outputs = pair(0, n=6)
    assert len(spectrum(inputs, outputs, 10).values) == 5


@given(seeds, st.booleans())
def test_certificates_hold_and_only_where_true(seed, connected):
    inputs, outputs = pair(seed, connected=connected)
    top = oracle(inputs, outputs)[0]
    assert certified(inputs, outputs, top) == pytest.approx(top * (1 + 1e-6))
    assert certified(inputs, outputs, top * (1 - 1e-5)) is None


def test_factors_know_what_is_positive():
    from scipy.sparse import csr_array

    assert Factor(csr_array(np.array([[2.0, 1.0], [1.0, 2.0]]))).positive
    assert not Factor(csr_array(np.array([[1.0, 2.0], [2.0, 1.0]]))).positive


@given(seeds, st.booleans())
def test_solutions_are_those_of_the_pseudo_inverse(seed, connected):
    graph = random_graph(30, 40, seed, connected)
    b = np.random.default_rng(seed).normal(size=(30, 3))
    expected = np.linalg.pinv(graph.laplacian.toarray(), rcond=1e-9) @ b
    assert Laplacian(graph).solve(b) == pytest.approx(expected, abs=1e-8)


def test_large_systems_are_descended(monkeypatch):
    graph = random_graph(200, 600, 0)
    b = np.random.default_rng(0).normal(size=(200, 2))
    exact = Laplacian(graph).solve(b)
    monkeypatch.setattr(resistance, "FACTORED", 10)
    bound = Laplacian(graph)
    assert bound.solve(b) == pytest.approx(exact, abs=1e-6)
    assert "factor" not in vars(bound)


@given(seeds)
def test_resistances_are_those_of_the_definition(seed):
    graph = random_graph(25, 30, seed)
    inverse = np.linalg.pinv(graph.laplacian.toarray())
    pairs = np.random.default_rng(seed).integers(0, 25, (20, 2))
    e = np.eye(25)[pairs[:, 0]] - np.eye(25)[pairs[:, 1]]
    expected = np.einsum("mi,ij,mj->m", e, inverse, e)
    assert resistance.resistances(graph, pairs) == pytest.approx(expected, abs=1e-9)
    assert resistance.between(graph, pairs) == pytest.approx(expected, abs=1e-9)


def test_sketched_resistances_converge():
    graph = random_graph(150, 400, 0)
    exact = resistance.resistances(graph, graph.edges)
    errors = []
    for rows in (50, 800):
        sketch = resistance.resistances(graph, graph.edges, rows=rows)
        errors.append(float(np.sqrt(np.square(sketch / exact - 1).mean())))
        assert errors[-1] == pytest.approx(np.sqrt(2 / rows), rel=0.4)
        assert np.mean(sketch / exact) == pytest.approx(1, abs=3 * np.sqrt(2 / rows))
    assert errors[1] < errors[0] / 2
