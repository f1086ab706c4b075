"""SPADE: how much a map stretches neighbourhoods, as scores of edges, samples and cuts."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float, Int

from holdfast.core.errors import check_no_blanks
from holdfast.spectral.eigen import DENSE, SCORES, Spectrum, all_values, certified, spectrum
from holdfast.spectral.graph import Edges, Graph, Split, crossing
from holdfast.spectral.graph_pair import GraphConstruction, GraphPair, checked, draw
from holdfast.spectral.resistance import FACTORED, Laplacian, between, edge_hops, forms, resistances, sketch_rows

# What the eigenvectors of ``L_X v = lambda L_Y v`` say of edges, samples and cuts (Cheng et al. 2021, sections 3.2,
# 3.3).
#
# ``edge_score(p, q) = sum over i <= r of lambda_i (v_i(p) - v_i(q))^2``; a sample's score is the mean over its input
# neighbours (the authors' program sums, which ranks by degree as well); ``zeta(S) = cut_Y(S) / cut_X(S)``.


def edge_scores(inputs: Graph, spectrum: Spectrum, r: int) -> Float[np.ndarray, "m"]:
    """Return the score of every input edge from the first ``r`` eigenvectors."""
    steps = inputs.differences(spectrum.vectors[:, :r])
    return np.square(steps) @ spectrum.values[:r]


def riemannian(values: Float[np.ndarray, "r"]) -> float:
    """Return ``sqrt(sum log^2 lambda)``: the distance of two forms, 0 if they are equal, inf if one is degenerate.

    Example:
        >>> riemannian(np.array([np.e, 1.0])), riemannian(np.array([1.0, 0.0]))
        (1.0, inf)
    """
    with np.errstate(divide="ignore"):
        # Zero eigenvalues come out of solvers as rounding, of either sign.
        logs = np.log(np.where(values > 1e-12 * max(values.max(), 1.0), values, 0.0))
    return float(np.sqrt(np.square(logs).sum()))


@dataclass(frozen=True, eq=False)
class Cut:
    """A set of samples that the outputs nearly separate while the inputs do not."""

    distortion: float
    """``zeta``: output edges over input edges across its border."""
    inside: Bool[np.ndarray, "n"]

    @property
    def size(self) -> int:
        """Return the number of samples on the smaller side."""
        return int(min(self.inside.sum(), (~self.inside).sum()))


def sweep(inputs: Graph, outputs: Graph, vector: Float[np.ndarray, "n"]) -> Cut:
    """Return the best cut between the samples below and above a threshold of ``vector``; ``zeta >= 1 / lambda_max``.

    Raises:
        ValueError: no threshold separates input neighbours.
    """
    order = np.argsort(vector, kind="stable")
    position = np.empty(inputs.n, dtype=np.int64)
    position[order] = np.arange(inputs.n)
    across_x, across_y = (_crossings(graph, position) for graph in (inputs, outputs))
    with np.errstate(divide="ignore", invalid="ignore"):
        distortion = np.where(across_x > 0, across_y / across_x, np.inf)
    best = int(distortion.argmin())
    if not np.isfinite(distortion[best]):
        raise ValueError("no threshold of the vector separates input neighbours")
    return Cut(float(distortion[best]), position <= best)


def _crossings(graph: Graph, position: Int[np.ndarray, "n"]) -> Float[np.ndarray, "c"]:
    """Return for each threshold after the t-th sample the weight of the edges across it."""
    ends = np.sort(position[graph.edges], axis=1)
    steps = np.bincount(ends[:, 0], graph.weights, graph.n) - np.bincount(ends[:, 1], graph.weights, graph.n)
    return np.cumsum(steps.astype(np.float64))[:-1]  # of no edges at all, bincount counts in whole numbers


# SPADE: how badly a map stretches neighbourhoods, from its inputs and outputs alone.
#
# With graphs G_X of the inputs and G_Y of the outputs on the same samples, ``spade_score = lambda_max(L_Y^+ L_X)``,
# the largest eigenvalue of ``L_X v = lambda L_Y v``: the most that any function of the samples varies between input
# neighbours for each unit it varies between output neighbours. It bounds the growth of effective resistances from
# above, ``d_Y(p, q) / d_X(p, q) <= lambda_max``, and of cuts, ``cut_Y(S) / cut_X(S) >= 1 / lambda_max``. Cheng et al.
# 2021, https://proceedings.mlr.press/v139/cheng21a.html.

RANKS = (1, 2, 10)
"""Numbers of eigenvectors that edge and node scores are given for."""
TOP = 10
CANDIDATES = 64
"""Input edges whose stretch is computed exactly where all edges are too many."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Spade:
    """The spectral scores of one map on one set of samples."""

    graphs: GraphPair
    score: float
    """``lambda_max``; inf if output components separate input neighbours (see ``split``)."""
    split: Split | None = None
    """The witness of an infinite score."""
    spectrum: Spectrum | None = None
    """The ten largest eigenvalues and their vectors; None for an infinite score."""
    certificate: float | None = None
    """Upper bound of ``lambda_max``, proved by a factorisation; None if not tried or failed."""
    riemannian: float
    """``sqrt(sum log^2 lambda)`` over the ten largest eigenvalues."""
    riemannian_all: float | None
    """Riemannian distance over all eigenvalues; None for more than ``DENSE`` samples."""
    edge_scores: dict[int, Float[np.ndarray, "m"]]
    """For each number r of eigenvectors the score of every input edge (``graphs.inputs.edges``)."""
    edge_scores_all: Float[np.ndarray, "m"] | None
    """Over all eigenvectors, ``e' L_Y^+ L_X L_Y^+ e``; sketched above ``resistance.EXACT`` samples, None if too many."""
    hops: Float[np.ndarray, "m"]
    """Hop distance between the outputs of each input edge; nan where it was not computed."""
    stretch: float
    """The largest ``d_Y / d_X`` in effective resistance found over input edges, exact on its edge: at most ``score``."""
    cut: Cut | None = None
    """The sweep cut of the first eigenvector."""

    def __repr__(self) -> str:
        samples = len(self.graphs.node_of)
        return f"Spade(score={self.score:.6g}, riemannian={self.riemannian:.6g}, samples={samples}, k={self.graphs.k})"

    @property
    def inputs(self) -> Graph:
        """Return the graph of the inputs."""
        return self.graphs.inputs

    @property
    def eigenvalues(self) -> Float[np.ndarray, "r"]:
        """Return the largest eigenvalues, descending."""
        return self.spectrum.values if self.spectrum else np.array([np.inf])

    @property
    def residual(self) -> float:
        """Return the largest eigenvalue's relative residual."""
        return float(self.spectrum.residuals[0]) if self.spectrum else 0.0

    def per_sample(self, edges: Float[np.ndarray, "m"]) -> Float[np.ndarray, "n"]:
        """Return for each sample the mean over its input neighbours of a value per edge; nan if it is in no graph."""
        nodes = self.inputs.node_means(edges)
        return np.where(self.graphs.node_of >= 0, nodes[self.graphs.node_of], np.nan)

    def node_scores(self, r: int = TOP) -> Float[np.ndarray, "n"]:
        """Return the score of each sample from the first ``r`` eigenvectors."""
        return self.per_sample(self.edge_scores[r])

    def pairs(self) -> Int[np.ndarray, "m 2"]:
        """Return the samples that each input edge joins."""
        return self.graphs.rows[self.inputs.edges]


def spade(
    inputs: object,
    outputs: object,
    k: int = 10,
    *,
    graph: GraphConstruction | str = "knn",
    repair: str = "none",
    certify: bool = True,
    seed: int = 0,
) -> Spade:
    """Return the spectral scores of the map from ``inputs`` to ``outputs``.

    Args:
        inputs, outputs: arrays or tensors, one row per sample; they are flattened, and never changed.
        k: neighbours of each sample in both graphs.
        graph: which is drawn, ``knn`` as published, ``pca:components=50``, ``cknn`` or ``sparsified``.
        repair: what to do about an infinite score: ``none``, ``increase_k``, ``largest`` or ``mst``.
        certify: prove an upper bound of the score, by a factorisation that may cost more than the score itself.
        seed: of start vectors, sketches and samples; it changes nothing but what those approximate.

    Raises:
        HoldfastError: the arrays cannot be measured, or there is no such graph or repair.

    Example:
        >>> x = np.random.default_rng(0).normal(size=(200, 3))
        >>> found = spade(x, x @ np.diag([1.0, 1.0, 20.0]))
        >>> 1 < found.stretch < found.score
        True
    """
    check_no_blanks(locals())
    x, y = checked(inputs, outputs)
    manifold = GraphConstruction.read(graph) if isinstance(graph, str) else graph
    scores = scored(draw(x, y, k, manifold, repair, seed), seed)
    return proved(scores) if certify else scores


def scored(graphs: GraphPair, seed: int = 0) -> Spade:
    """Return the spectral scores of two graphs."""
    split = graphs.split
    if split is not None:
        return _infinite(graphs, split, seed)
    inputs, outputs = graphs.inputs, graphs.outputs
    eigen = spectrum(inputs, outputs, TOP, SCORES, seed)
    edges = {r: edge_scores(inputs, eigen, r) for r in RANKS}
    return Spade(
        graphs=graphs,
        score=float(eigen.values[0]),
        spectrum=eigen,
        riemannian=riemannian(eigen.values),
        riemannian_all=riemannian(all_values(inputs, outputs)) if inputs.n <= DENSE else None,
        edge_scores=edges,
        edge_scores_all=edge_scores_all(graphs, seed),
        hops=edge_hops(inputs, outputs, seed),
        stretch=_stretch(inputs, outputs, edges[TOP], seed),
        cut=sweep(inputs, outputs, eigen.vectors[:, 0]),
    )


def proved(scores: Spade) -> Spade:
    """Return the scores with a proved upper bound, if there is a score and its matrices can be factorised."""
    if scores.split or scores.inputs.n > FACTORED:
        return scores
    return replace(scores, certificate=certified(scores.inputs, scores.graphs.outputs, scores.score))


def _infinite(graphs: GraphPair, split: Split, seed: int) -> Spade:
    """Return the scores if the score is infinite: only those of separated edges are known."""
    crosses = crossing(graphs.inputs, graphs.outputs)
    separated = np.where(crosses, np.inf, np.nan)
    return Spade(
        graphs=graphs,
        score=np.inf,
        split=split,
        riemannian=np.inf,
        riemannian_all=np.inf,
        edge_scores=dict.fromkeys(RANKS, separated),
        edge_scores_all=separated,
        hops=edge_hops(graphs.inputs, graphs.outputs, seed),
        stretch=np.inf,
    )


def edge_scores_all(graphs: GraphPair, seed: int) -> Float[np.ndarray, "m"] | None:
    """Return the score of every input edge from all eigenvectors; None if there are too many samples."""
    inputs, outputs = graphs.inputs, graphs.outputs
    if inputs.n > FACTORED:
        return None
    return forms(inputs, Laplacian(outputs), inputs.edges, sketch_rows(inputs.n), seed)


def _stretch(inputs: Graph, outputs: Graph, scores: Float[np.ndarray, "m"], seed: int) -> float:
    """Return the largest ratio of effective resistances found over the input edges."""
    edges: Edges = inputs.edges
    if sketch_rows(inputs.n) is None:
        return float((resistances(outputs, edges) / resistances(inputs, edges)).max())
    if inputs.n <= FACTORED:
        scores = resistances(outputs, edges, seed=seed) / resistances(inputs, edges, seed=seed)
    # A sketch errs by some percent, and the largest of many errors is no bound: the best candidates are solved exactly.
    count = CANDIDATES if inputs.n <= FACTORED else CANDIDATES // 4
    best = edges[np.argsort(-scores, kind="stable")[:count]]
    return float((between(outputs, best) / between(inputs, best)).max())
