"""The laws that tie the scores together, and what may not change them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse.csgraph import shortest_path

from holdfast.spectral import analysis
from holdfast.spectral import resistance as hops
from holdfast.spectral.analysis import edge_scores, riemannian, scored, spade, sweep
from holdfast.spectral.eigen import spectrum
from holdfast.spectral.graph import Graph
from holdfast.spectral.resistance import resistances
from tests.spectral.graphs import folded, graph_pair, oracle, random_graph

seeds = st.integers(0, 10**6)


@settings(max_examples=8)
@given(seeds)
def test_resistances_stretch_less_and_cuts_shrink_less_than_the_score(seed):
    inputs, outputs = random_graph(40, 60, seed), random_graph(40, 20, seed + 1)
    found = scored(graph_pair(inputs, outputs))
    everyone = np.argwhere(np.triu(np.ones((40, 40)), 1))
    gamma = resistances(outputs, everyone) / resistances(inputs, everyone)
    assert gamma.max() <= found.score * (1 + 1e-9)
    assert found.stretch == pytest.approx(
        (resistances(outputs, inputs.edges) / resistances(inputs, inputs.edges)).max()
    )
    assert found.cut is not None
    assert found.cut.distortion * found.score >= 1 - 1e-9


@settings(max_examples=8)
@given(seeds)
def test_no_cut_at_all_beats_one_over_the_score(seed):
    inputs, outputs = random_graph(9, 12, seed), random_graph(9, 5, seed + 1)
    top = oracle(inputs, outputs)[0]
    best = np.inf
    for mask in range(1, 2**8):
        inside = np.array([mask >> bit & 1 for bit in range(9)], dtype=float)
        best = min(best, (inside @ (outputs.laplacian @ inside)) / (inside @ (inputs.laplacian @ inside)))
    assert best * top >= 1 - 1e-9
    swept = sweep(inputs, outputs, spectrum(inputs, outputs, 1).vectors[:, 0])
    assert swept.distortion >= best - 1e-9
    side = swept.inside.astype(float)
    assert (side @ (outputs.laplacian @ side)) / (side @ (inputs.laplacian @ side)) == pytest.approx(swept.distortion)


@settings(max_examples=8)
@given(seeds)
def test_all_eigenvectors_have_closed_forms(seed):
    inputs, outputs = random_graph(25, 40, seed), random_graph(25, 20, seed + 1)
    whole = spectrum(inputs, outputs, 24, solver="dense")
    inverse = np.linalg.pinv(outputs.laplacian.toarray())
    e = np.eye(25)[inputs.edges[:, 0]] - np.eye(25)[inputs.edges[:, 1]]
    expected = np.einsum("mi,ij,mj->m", e, inverse @ inputs.laplacian.toarray() @ inverse, e)
    assert edge_scores(inputs, whole, 24) == pytest.approx(expected, rel=1e-7, abs=1e-9)
    assert scored(graph_pair(inputs, outputs)).edge_scores_all == pytest.approx(expected, rel=1e-7, abs=1e-9)
    # Normalised by L_X instead, the sum over all eigenvectors is the resistance of the outputs.
    steps = np.square(inputs.differences(whole.vectors))
    assert steps.sum(1) == pytest.approx(resistances(outputs, inputs.edges), rel=1e-7, abs=1e-9)


def test_node_scores_are_means_over_input_neighbours():
    found = spade(*folded(80), k=4)
    edges, scores = found.inputs.edges, found.edge_scores[2]
    for node in (0, 17, 79):
        own = scores[(edges == node).any(1)]
        assert found.node_scores(2)[node] == pytest.approx(own.mean())


@given(seeds, st.booleans())
def test_hops_are_shortest_paths(seed, connected):
    graph = random_graph(70, 60, seed, connected)
    pairs = np.random.default_rng(seed).integers(0, 70, (90, 2))
    truth = shortest_path(graph.adjacency, unweighted=True, directed=False)
    assert np.array_equal(hops.hops(graph, pairs), truth[pairs[:, 0], pairs[:, 1]])


def test_hops_in_small_blocks(monkeypatch):
    graph = random_graph(300, 200, 0)
    pairs = graph.edges[:, ::-1]
    monkeypatch.setattr(hops, "MEMORY", 1)
    assert (hops.hops(random_graph(300, 0, 1), pairs) == hops.hops(random_graph(300, 0, 1), graph.edges)).all()


def test_hops_of_the_edges_of_some_nodes(monkeypatch):
    x, y = folded(400)
    whole = spade(x, y)
    monkeypatch.setattr(hops, "affordable", lambda graph: 100)
    found = spade(x, y)
    known = ~np.isnan(found.hops)
    assert 0 < known.sum() < len(known)
    assert np.array_equal(found.hops[known], whole.hops[known])
    means = found.per_sample(found.hops)
    assert 100 <= (~np.isnan(means)).sum() < 200
    assert np.nanmean(means) == pytest.approx(whole.per_sample(whole.hops).mean(), rel=0.1)


@pytest.mark.parametrize("exact", [3000, 100])
def test_large_graphs_are_bracketed_from_below(monkeypatch, exact):
    """The sketch may choose the edge, never the number."""
    x, y = folded(400)
    whole = spade(x, y)
    monkeypatch.setattr("holdfast.spectral.resistance.EXACT", exact)
    found = spade(x, y)
    assert 0.8 * whole.stretch <= found.stretch <= whole.stretch * (1 + 1e-9)


def test_the_order_of_samples_changes_nothing():
    x, y = folded(150)
    order = np.random.default_rng(0).permutation(150)
    here, there = spade(x, y), spade(x[order], y[order])
    assert there.score == pytest.approx(here.score, rel=1e-9)
    for r in (1, 2, 10):
        assert there.node_scores(r) == pytest.approx(here.node_scores(r)[order], rel=1e-6, abs=1e-12)
    assert not np.allclose(here.node_scores(), there.node_scores()), "vacuous: nothing was permuted"


def test_scale_and_rotation_change_nothing():
    x, y = folded(150)
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))[0]
    assert spade(4 * x, 0.5 * y @ turn).score == pytest.approx(spade(x, y).score, rel=1e-6)


def test_the_identity_has_no_stretch():
    x, _ = folded(150)
    found = spade(x, x)
    assert found.eigenvalues == pytest.approx(np.ones(10))
    assert found.riemannian == pytest.approx(0, abs=1e-6)
    assert found.riemannian_all == pytest.approx(0, abs=1e-6)
    assert (found.hops == 1).all()
    assert found.stretch == pytest.approx(1)


def test_stronger_folds_stretch_more():
    x, _ = folded(400)
    gentle, harsh = (np.stack([x[:, 0], np.sin(a * x[:, 1])], 1) for a in (0.3, 6.0))
    assert spade(x, harsh).score > 2 * spade(x, gentle).score
    assert spade(x, harsh).riemannian > 1.3 * spade(x, gentle).riemannian


def test_the_published_remark_holds():
    """``sqrt(sum log^2) <= sqrt(n - 1) max(log lambda_max, -log lambda_min)``."""
    inputs, outputs = random_graph(30, 40, 0), random_graph(30, 40, 1)
    values = oracle(inputs, outputs)
    assert riemannian(values) <= np.sqrt(29) * max(np.log(values[0]), -np.log(values[-1]))


def test_a_vector_that_separates_nothing_has_no_cut():
    lonely = Graph.of(4, np.array([[0, 1]]))
    whole = Graph.of(4, np.array([[0, 1], [1, 2], [2, 3]]))
    assert sweep(lonely, whole, np.arange(4.0)).size == 1
    with pytest.raises(ValueError, match="no threshold"):
        sweep(Graph.of(4, np.empty((0, 2), dtype=np.int64)), whole, np.arange(4.0))


def test_certificates_are_proved_unless_refused():
    x, y = folded(150)
    assert spade(x, y, certify=False).certificate is None
    found = spade(x, y)
    assert found.certificate == pytest.approx(found.score * (1 + 1e-6))


def test_large_graphs_are_numbered_for_locality(monkeypatch):
    """Another order of the nodes changes no number of any sample or pair."""
    x, y = folded(300)
    plain = spade(x, y)
    monkeypatch.setattr("holdfast.spectral.graph_pair.FACTORED", 100)
    local = spade(x, y)
    assert not np.array_equal(local.graphs.rows, plain.graphs.rows)
    assert local.score == pytest.approx(plain.score, rel=1e-9)
    assert local.node_scores() == pytest.approx(plain.node_scores(), rel=1e-6, abs=1e-12)

    def by_pair(found: analysis.Spade) -> dict[tuple[int, int], float]:
        return {(min(p, q), max(p, q)): hop for (p, q), hop in zip(found.pairs().tolist(), found.hops, strict=True)}

    assert by_pair(local) == by_pair(plain)

    def width(found: analysis.Spade) -> float:
        return float(np.abs(np.diff(found.graphs.outputs.edges, axis=1)).mean())

    assert width(local) < width(plain) / 2
