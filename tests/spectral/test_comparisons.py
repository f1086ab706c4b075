"""What stands beside the SPADE score, against dense matrices and graphs whose answer is known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.sparse.csgraph import laplacian, shortest_path

from holdfast.core.errors import HoldfastError
from holdfast.spectral.analysis import TOP, scored, spade
from holdfast.spectral.graph import Graph
from holdfast.spectral.graph_pair import KNN, checked
from holdfast.spectral.spade_findings import compared_edges, normalised, of_one_graph, over_k, reverse_score
from tests.spectral.graphs import graph_pair

X = np.random.default_rng(0).normal(size=(300, 3))
Y = X @ np.diag([1.0, 1.0, 8.0])


def dense(graph: Graph, normed: bool = False) -> np.ndarray:
    return np.asarray(laplacian(graph.adjacency.toarray(), normed=normed))


def largest(inputs: np.ndarray, outputs: np.ndarray) -> np.ndarray:
    """Eigenvalues of outputs^+ inputs, by the definition."""
    values = np.linalg.eigvals(np.linalg.pinv(outputs, hermitian=True, rcond=1e-9) @ inputs)
    return np.sort(values.real)[::-1]


def test_the_reverse_score_is_that_of_the_map_turned_round() -> None:
    found = spade(X, Y)
    assert reverse_score(found, 0) == pytest.approx(spade(Y, X).score, rel=1e-3)
    assert reverse_score(found, 0) == pytest.approx(
        largest(dense(found.graphs.outputs), dense(found.inputs))[0], rel=1e-3
    )
    assert reverse_score(found, 0) != pytest.approx(found.score, rel=0.1)


def test_the_reverse_score_is_infinite_where_inputs_fall_apart() -> None:
    apart = np.concatenate([X[:150], X[150:] + 1000])
    found = spade(apart, X)
    assert found.inputs.components == 2
    assert reverse_score(found, 0) == np.inf


@pytest.mark.parametrize("n", [60, 300])
def test_normalised_laplacians_have_the_eigenvalues_of_the_definition(n: int) -> None:
    found = spade(X[:n], Y[:n])
    expected = largest(dense(found.inputs, True), dense(found.graphs.outputs, True))
    assert normalised(found.inputs, found.graphs.outputs) == pytest.approx(expected[:TOP], rel=1e-6)


def test_normalised_laplacians_of_outputs_that_fall_apart() -> None:
    apart = np.concatenate([X[:150], X[150:] + 1000])
    found = spade(apart, apart @ np.diag([1.0, 1.0, 4.0]))
    assert found.graphs.outputs.components == 2
    expected = largest(dense(found.inputs, True), dense(found.graphs.outputs, True))
    assert normalised(found.inputs, found.graphs.outputs, 3) == pytest.approx(expected[:3], rel=1e-6)


def test_regular_graphs_do_not_mind_normalising() -> None:
    ring = Graph.of(40, np.array([[i, (i + 1) % 40] for i in range(40)]))
    wide = Graph.of(40, np.array([[i, (i + 3) % 40] for i in range(40)]))
    assert normalised(ring, wide, 5) == pytest.approx(largest(dense(ring), dense(wide))[:5], rel=1e-8)


def test_too_many_samples_to_factorise_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.spectral.spade_findings.FACTORED", 200)
    found = spade(X, Y)
    with pytest.raises(HoldfastError, match=r"200 samples, got 300"):
        normalised(found.inputs, found.graphs.outputs)
    assert of_one_graph(found.inputs) is None


def test_hops_of_the_highest_edges_exceed_those_of_random_ones() -> None:
    found = spade(X, Y)
    highest, random = compared_edges(found, {}, 0)
    assert (highest.conditions["edges"], random.conditions["edges"]) == ("100 highest", "100 random")
    # By the definition: the 100 input edges of the largest scores, and shortest paths among outputs.
    paths = shortest_path(found.graphs.outputs.adjacency, unweighted=True)
    order = np.argsort(-found.edge_scores[TOP], kind="stable")[:100]
    assert highest.value == pytest.approx(np.mean([paths[p, q] for p, q in found.inputs.edges[order]]))
    every = np.mean([paths[p, q] for p, q in found.inputs.edges])
    assert random.value == pytest.approx(every, rel=0.2)
    assert highest.value > 1.3 * random.value
    assert compared_edges(found, {}, 1)[1].value != random.value


def test_small_graphs_compare_all_their_edges() -> None:
    found = spade(X[:12], Y[:12], k=2)
    names = {estimate.conditions["edges"] for estimate in compared_edges(found, {}, 0)}
    assert names == {f"{len(found.inputs.edges)} highest", f"{len(found.inputs.edges)} random"}


def test_a_sweep_over_k_is_one_score_each() -> None:
    x, y = checked(X, Y)
    estimates, (curve,) = over_k(x, y, (5, 10, 20), KNN(), "none", 0)
    assert curve.x == (5, 10, 20)
    for k, value in zip(curve.x, curve.y, strict=True):
        assert value == pytest.approx(spade(X, Y, k=int(k)).score, rel=1e-3)
    assert [e.conditions["k"] for e in estimates] == ["5", "10", "20"]


def test_planes_of_one_graph_are_its_smoothest_vectors() -> None:
    graph = spade(X, Y).inputs
    vectors = of_one_graph(graph)
    assert vectors is not None
    values, exact = np.linalg.eigh(dense(graph))
    for column in (0, 1):
        assert abs(vectors[:, column] @ exact[:, 1 + column]) == pytest.approx(1, abs=1e-6)
        assert vectors[:, column] @ dense(graph) @ vectors[:, column] == pytest.approx(values[1 + column], rel=1e-6)


@pytest.mark.parametrize("name", ["mnist_base", "mnist_cnn_4layer_a_adv3"])
def test_published_encoders_show_table_2(reference: Path, name: str) -> None:
    """As the paper says: edges with high scores lie farther apart among outputs. Numbers of an independent program."""
    oracle = dict(np.load(reference / "spade" / f"oracle_{name}_N1000_k20.npz"))
    inputs, outputs = (Graph.of(1000, oracle[which].astype(np.int64)) for which in ("EX", "EY"))
    graphs = graph_pair(inputs, outputs, 20)
    highest, random = compared_edges(scored(graphs), {}, 0)
    expected = oracle["geo_dY"][np.argsort(-oracle["edge_r10"], kind="stable")[:100]].mean()
    assert highest.value == pytest.approx(expected, rel=0.02)
    assert highest.value > 1.2 * random.value
