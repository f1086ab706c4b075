"""Graphs, their variants, the components rule and its repairs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.sparse.csgraph import minimum_spanning_tree
from scipy.spatial.distance import cdist

from holdfast.core.errors import HoldfastError
from holdfast.core.points.neighbours import nearest_neighbours
from holdfast.core.points.points import points
from holdfast.spectral.analysis import spade
from holdfast.spectral.graph import Graph, bridged, crossing, split, union
from holdfast.spectral.graph_pair import CKNN, KNN, PCA, GraphConstruction, Sparsified, sparsified
from tests.facts import says
from tests.outside import installed
from tests.spectral.graphs import folded, oracle, random_graph


def two_moons(n: int = 120, gap: float = 50.0) -> tuple[np.ndarray, np.ndarray]:
    """Inputs in one piece, outputs in two far ones."""
    x, y = folded(n)
    return x, y + gap * (x[:, :1] > 0)


def test_laplacians_are_those_of_the_definition():
    graph = random_graph(12, 20, 0)
    dense = np.zeros((12, 12))
    for (i, j), weight in zip(graph.edges, graph.weights, strict=True):
        e = np.zeros(12)
        e[i], e[j] = 1, -1
        dense += weight * np.outer(e, e)
    assert graph.laplacian.toarray() == pytest.approx(dense)


def test_edges_may_come_in_any_order():
    graph = random_graph(20, 30, 1)
    mixed = graph.edges[::-1, ::-1]
    again = Graph.of(20, np.concatenate([mixed, mixed]), np.tile(graph.weights[::-1], 2))
    assert np.array_equal(again.edges, graph.edges)
    assert np.array_equal(again.weights, graph.weights)


@pytest.mark.parametrize(("pair", "said"), [((0, 5), "join nodes 0 to 4, got 0 to 5"), ((2, 2), "with itself")])
def test_impossible_edges_are_refused(pair, said):
    with pytest.raises(HoldfastError, match=said):
        Graph.of(5, np.array([pair]))


@pytest.mark.parametrize("name", ["knn", "pca", "cknn", "sparsified"])
def test_every_variant_is_read_from_text_and_scores(name):
    manifold = GraphConstruction.read(name)
    assert str(manifold) == name
    x, y = folded(300)
    found = spade(x, y, graph=manifold, repair="mst")
    assert 1 < found.score < 1000
    assert found.stretch <= found.score * (1 + 1e-9)


@pytest.mark.parametrize("text", ["pca:components=0", "cknn:delta=1.5", "sparsified:density=1", "knm"])
def test_impossible_variants_are_refused(text):
    with pytest.raises(HoldfastError):
        GraphConstruction.read(text)


def test_cknn_is_its_definition():
    x = np.random.default_rng(0).normal(size=(80, 3)) * np.linspace(0.2, 3, 80)[:, None]
    distance = cdist(x, x)
    near = nearest_neighbours(points(x), 6)
    radius = near.distance[:, -1]
    expected = distance < 0.9 * np.sqrt(radius[:, None] * radius)
    found = CKNN(0.9).connect(near)
    assert np.array_equal(found.edges, np.argwhere(np.triu(expected, 1)))
    assert len(found.edges) < len(KNN().connect(near).edges)


def test_pca_forgets_small_directions():
    rng = np.random.default_rng(0)
    x = np.concatenate([10 * rng.normal(size=(150, 2)), 2 * rng.normal(size=(150, 100))], axis=1)
    viewed = PCA(2).view(points(x))
    assert viewed.features == 2
    wanted, plain = union(nearest_neighbours(points(x[:, :2]), 5).index), union(nearest_neighbours(points(x), 5).index)
    found = union(nearest_neighbours(viewed, 5).index)

    def shared(graph: Graph) -> float:
        return len(set(map(tuple, graph.edges)) & set(map(tuple, wanted.edges))) / len(wanted.edges)

    assert shared(found) > 0.7 > shared(plain)
    assert PCA(102).view(points(x)).features == 102


def test_sparsified_laplacians_are_right_on_average():
    graph = random_graph(15, 60, 0)
    mean = np.mean([sparsified(graph, 1000, seed).laplacian.toarray() for seed in range(20)], axis=0)
    assert len(sparsified(graph, 40, 0).edges) < len(graph.edges)
    assert mean == pytest.approx(graph.laplacian.toarray(), abs=0.35)
    assert str(Sparsified()) == "sparsified"


def test_an_output_graph_in_pieces_gives_infinity_with_its_witness():
    x, y = two_moons()
    found = spade(x, y)
    assert found.score == np.inf
    assert found.riemannian == np.inf
    assert found.stretch == np.inf
    assert found.split is not None
    assert sum(found.split.sizes) == 120
    assert found.split.crossing == crossing(found.inputs, found.graphs.outputs).sum() > 0
    p, q = found.split.pair
    assert (x[p, 0] > 0) != (x[q, 0] > 0)
    assert "2 components" in str(found.split)
    assert np.isinf(found.node_scores()[p])
    assert np.isinf(found.hops).sum() == found.split.crossing


def test_pieces_that_no_input_edge_joins_have_the_largest_of_their_scores():
    parts = [folded(80, seed) for seed in (0, 1)]
    x = np.concatenate([parts[0][0], parts[1][0] + 1000])
    y = np.concatenate([parts[0][1], parts[1][1] + 1000])
    found = spade(x, y)
    alone = [spade(*part) for part in parts]
    assert found.split is None
    assert found.graphs.outputs.components == 2
    assert found.score == pytest.approx(max(one.score for one in alone), rel=1e-9)
    joint = np.sort(np.concatenate([oracle(one.inputs, one.graphs.outputs) for one in alone]))[::-1]
    assert found.eigenvalues == pytest.approx(joint[:10], rel=1e-9)


def test_input_graphs_may_be_in_pieces():
    x, y = folded(160)
    found = spade(x + 50 * (x[:, :1] > 0), y)
    assert found.inputs.components == 2
    assert np.isfinite(found.score)
    assert found.riemannian_all == np.inf  # an eigenvalue is zero


def test_a_larger_k_repairs():
    x, y = np.random.default_rng(0).normal(size=(2, 300, 2))
    assert spade(x, y, k=2).split is not None
    found = spade(x, y, k=2, repair="increase_k")
    assert found.split is None
    assert found.graphs.k > 2
    assert found.graphs.repaired == f"k increased from 2 to {found.graphs.k} in both graphs"
    smaller = spade(x, y, k=found.graphs.k - 1)
    assert smaller.split is not None
    assert found.score == pytest.approx(spade(x, y, k=found.graphs.k).score)


def test_no_k_may_be_large_enough():
    found = spade(*two_moons(gap=1e4), repair="increase_k")
    assert found.score == np.inf
    assert found.graphs.repaired == "increasing k to 40 did not help"


def test_the_largest_piece_repairs():
    found = spade(*two_moons(), repair="largest")
    split_ = spade(*two_moons()).split
    assert split_ is not None
    size = split_.sizes[0]
    assert np.isfinite(found.score)
    assert found.inputs.n == size
    scores = found.node_scores()
    assert np.isnan(scores).sum() == 120 - size
    assert says(found.graphs.repaired, "largest", "component")


def test_the_spanning_tree_repairs():
    x, y = two_moons()
    found = spade(x, y, repair="mst")
    before = spade(x, y).graphs.outputs
    added = set(map(tuple, found.graphs.outputs.edges)) - set(map(tuple, before.edges))
    tree = minimum_spanning_tree(cdist(y, y)).tocoo()
    bridges = {
        (min(i, j), max(i, j))
        for i, j in zip(tree.row.tolist(), tree.col.tolist(), strict=True)
        if before.component[i] != before.component[j]
    }
    assert added == bridges
    assert np.isfinite(found.score)


def test_many_pieces_are_bridged_by_the_spanning_tree():
    y = np.random.default_rng(0).normal(size=(60, 2))
    pieces = union(nearest_neighbours(points(y), 1).index)
    assert pieces.components > 5
    whole = bridged(pieces, points(y))
    assert whole.components == 1
    assert len(whole.edges) == len(pieces.edges) + pieces.components - 1
    tree = minimum_spanning_tree(cdist(y, y)).tocoo()
    edges = {(min(i, j), max(i, j)) for i, j in zip(tree.row.tolist(), tree.col.tolist(), strict=True)}
    assert set(map(tuple, whole.edges.tolist())) <= edges | set(map(tuple, pieces.edges.tolist()))


def test_a_connected_graph_needs_no_repair():
    x, y = folded(100)
    for repair in ("increase_k", "largest", "mst"):
        found = spade(x, y, repair=repair)
        assert not found.graphs.repaired
        assert found.score == spade(x, y).score
    assert split(found.inputs, found.graphs.outputs) is None


def test_duplicates_are_counted_and_count_once():
    x, y = folded(100)
    twice = np.concatenate([x, x[:30]]), np.concatenate([y, y[:30]])
    found, once = spade(*twice), spade(x, y)
    assert found.graphs.duplicates == 30
    assert found.score == once.score
    assert np.array_equal(found.node_scores()[100:], once.node_scores()[:30])


def test_equal_outputs_are_counted():
    x, y = folded(100)
    y[:40] = y[0]
    assert spade(x, y, repair="mst").graphs.ties == 40
    assert spade(*folded(100)).graphs.ties == 0


def test_graphs_of_other_packages_have_an_entry_point_group_of_their_own(tmp_path: Path) -> None:
    code = (
        "from dataclasses import dataclass\nfrom typing import final\n"
        "from holdfast.spectral.graph_pair import GraphConstruction\n\n\n"
        "@final\n@dataclass(frozen=True)\nclass Ring(GraphConstruction):\n    name = 'ring'\n\n"
        "    def connect(self, near):\n        raise NotImplementedError\n"
    )
    points = {"holdfast.spectral.graphs": {"ring": "elsewhere.ring:Ring"}}
    with installed(tmp_path, "elsewhere", {"ring": code}, points):
        assert type(GraphConstruction.read("ring")).__name__ == "Ring"
