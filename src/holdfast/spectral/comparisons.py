"""Comparisons of the SPADE paper: highest and random edges, the reverse map, other k, other Laplacians."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from holdfast.core.errors import HoldfastError
from holdfast.core.points.points import Points
from holdfast.core.records import Conditions, Curve, Estimate
from holdfast.core.statistics.summaries import without_interval
from holdfast.measure.observation import line_of
from holdfast.spectral.analysis import TOP, Spade, riemannian
from holdfast.spectral.eigen import spectrum
from holdfast.spectral.graph import Graph, split
from holdfast.spectral.graph_pair import GraphConstruction, draw
from holdfast.spectral.resistance import FACTORED, Columns, Laplacian, hops, one_thread

EDGES = 100
"""Edges whose hop distances are averaged, as in table 2 of the paper."""


def compared_edges(scores: Spade, case: Conditions, seed: int) -> list[Estimate]:
    """Return the mean output hops of the input edges with the highest scores, and of as many random ones."""
    edges = scores.inputs.edges
    known = np.nan_to_num(scores.edge_scores[TOP], nan=-np.inf)
    count = min(EDGES, len(edges))
    chosen = {
        f"{count} highest": np.argsort(-known, kind="stable")[:count],
        f"{count} random": np.random.default_rng(seed).choice(len(edges), count, replace=False),
    }
    return [
        _estimate("edge_hops", {**case, "edges": name}, float(found.mean()), scores.inputs.n, "hops")
        for name, rows in chosen.items()
        for found in [hops(scores.graphs.outputs, edges[rows])]
    ]


def reverse_score(scores: Spade, seed: int) -> float:
    """Return ``lambda_max(L_X^+ L_Y)``: the most that neighbours among outputs are apart among inputs; inf if separated."""
    if split(scores.graphs.outputs, scores.inputs) is not None:
        return np.inf
    return float(spectrum(scores.graphs.outputs, scores.inputs, 1, 1e-3, seed).values[0])


def reversed_map(scores: Spade, case: Conditions, seed: int) -> list[Estimate]:
    """Return the score of the map from outputs to inputs as an estimate."""
    return [_estimate("reverse_spade_score", case, reverse_score(scores, seed), scores.inputs.n, "stretch")]


def over_k(
    x: Points, y: Points, ks: Sequence[int], manifold: GraphConstruction, repair: str, seed: int
) -> tuple[list[Estimate], list[Curve]]:
    """Return the score at each ``k`` of both graphs, as estimates and as a curve.

    Raises:
        HoldfastError: a k is too large for so few samples.
    """
    estimates, values = [], []
    for k in ks:
        graphs = draw(x, y, k, manifold, repair, seed)
        value = np.inf
        if graphs.split is None:
            value = float(spectrum(graphs.inputs, graphs.outputs, 1, 1e-3, seed).values[0])
        values.append(value)
        case = {"n": f"{graphs.inputs.n:,}", "k": str(graphs.k), "outputs": "sweep over k"}
        estimates.append(_estimate("spade_score", case, value, graphs.inputs.n, "stretch"))
    return estimates, [line_of("scores_by_k", {}, "k", "SPADE score", ks, values)]


def normalised(inputs: Graph, outputs: Graph, r: int = TOP, seed: int = 0) -> Float[np.ndarray, "r"]:
    """Return the ``r`` largest eigenvalues of ``N_Y^+ N_X`` with the normalised Laplacians, descending.

    ``N = D^-1/2 L D^-1/2``. The vectors of zero energy of the two differ, so the largest ratio over all vectors would be
    infinite; the pseudo-inverse leaves out those of ``N_Y``. The authors' later program takes these Laplacians.

    Raises:
        HoldfastError: there are too many samples to factorise.
    """
    from scipy.linalg import eigh
    from scipy.sparse import diags_array
    from scipy.sparse.linalg import eigsh

    if inputs.n > FACTORED:
        raise HoldfastError(f"normalised Laplacians need at most {FACTORED:,} samples, got {inputs.n:,}; lower samples")
    root = [np.sqrt(np.maximum(graph.laplacian.diagonal(), np.finfo(float).tiny)) for graph in (inputs, outputs)]
    n_x, n_y = (
        (diags_array(1 / size) @ graph.laplacian @ diags_array(1 / size)).tocsr()
        for graph, size in zip((inputs, outputs), root, strict=True)
    )
    bound, column = Laplacian(outputs), root[1][:, None]
    # The vectors without energy in N_Y: sqrt(degree) on each component, of length 1.
    part = outputs.component
    null = root[1] / np.sqrt(np.bincount(part, root[1] ** 2))[part]

    def of_null(vectors: Columns) -> Columns:
        sums = np.stack([np.bincount(part, null * each) for each in vectors.T], axis=1)
        return null[:, None] * sums[part]

    def outside(vectors: Columns) -> Columns:
        return vectors - of_null(vectors)

    most = int(bound.free.sum())
    r = min(r, most)
    with one_thread():
        if most <= max(100, 4 * r):
            sizes, turn = eigh(n_y.toarray())
            safe = sizes > 1e-10
            scaled = turn[:, safe] / np.sqrt(sizes[safe])
            return eigh(scaled.T @ n_x.toarray() @ scaled, eigvals_only=True)[::-1][:r]
        # N_Y with 1 in place of 0 for the vectors without energy, which N_X then never sees: all are definite.
        values = eigsh(
            _operator(inputs.n, lambda v: outside(n_x @ outside(v))),
            r,
            M=_operator(inputs.n, lambda v: n_y @ v + of_null(v)),
            Minv=_operator(inputs.n, lambda v: outside(bound.solve(outside(v) * column) * column) + of_null(v)),
            which="LA",
            v0=outside(np.random.default_rng(seed).standard_normal((inputs.n, 1)))[:, 0],
            tol=1e-10,
            return_eigenvectors=False,
        )
    return np.sort(values)[::-1]


def _operator(n: int, of_columns: Callable[[Columns], Columns]) -> Any:
    from scipy.sparse.linalg import LinearOperator

    return LinearOperator((n, n), matvec=lambda vector: of_columns(vector.reshape(-1, 1))[:, 0], dtype=np.float64)


def of_normalised(scores: Spade, case: Conditions, seed: int) -> list[Estimate]:
    """Return the score and the Riemannian distance with normalised Laplacians."""
    values = normalised(scores.inputs, scores.graphs.outputs, TOP, seed)
    numbers = {"spade_score": (float(values[0]), "stretch"), "riemannian_distance": (riemannian(values), "log stretch")}
    case = {**case, "laplacian": "normalised"}
    return [_estimate(name, case, value, scores.inputs.n, unit) for name, (value, unit) in numbers.items()]


def of_one_graph(graph: Graph, seed: int = 0) -> Float[np.ndarray, "n 2"] | None:
    """Return the two eigenvectors of the graph's Laplacian with the smallest eigenvalues above zero; None of too many nodes.

    On a connected graph that is the usual spectral embedding. Where it falls apart, each vector lives on one component.
    """
    from scipy.sparse.linalg import eigsh

    if graph.n > FACTORED:
        return None
    bound = Laplacian(graph)
    # The largest eigenvalues of the pseudo-inverse are those of the smallest above zero.
    start = bound.centred(np.random.default_rng(seed).standard_normal((graph.n, 1)))[:, 0]
    with one_thread():
        values, vectors = eigsh(_operator(graph.n, bound.solve), 2, which="LA", v0=start, tol=1e-8)
    vectors = vectors[:, np.argsort(values)[::-1]]
    top = np.abs(vectors).argmax(axis=0)
    return vectors * np.sign(vectors[top, np.arange(2)])


OF = {
    "edge_hops": "mean output hops of input edges",
    "reverse_spade_score": "largest stretch of output neighbourhoods in pixels",
    "spade_score": "largest stretch of neighbourhoods",
    "riemannian_distance": "Riemannian distance of the graphs over the ten largest eigenvalues",
}


def _estimate(name: str, case: Conditions, value: float, n: int, unit: str) -> Estimate:
    method = "no interval: one number of two whole graphs"
    return without_interval(name, case, value, n, method, unit, OF[name])
