"""SPADE scores as records: numbers of the whole map, series of samples, warnings, comparisons of the SPADE paper."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import isinf
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from holdfast.core.errors import HoldfastError
from holdfast.core.points.points import Points
from holdfast.core.records import Claim, Conditions, Curve, Estimate, Findings, Series, Verdict
from holdfast.core.statistics.summaries import Better, series_of, summarise, without_interval
from holdfast.measure.observation import estimate_of, line_of
from holdfast.spectral.analysis import RANKS, TOP, Spade, riemannian
from holdfast.spectral.eigen import spectrum
from holdfast.spectral.graph import Graph, split
from holdfast.spectral.graph_pair import GraphConstruction, draw
from holdfast.spectral.resistance import FACTORED, Columns, Laplacian, hops, one_thread
from holdfast.spectral.stability import DRAWS, Numbers, Subsets, node_score

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
        _bare_estimate("edge_hops", {**case, "edges": name}, float(found.mean()), scores.inputs.n, "hops")
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
    return [_bare_estimate("reverse_spade_score", case, reverse_score(scores, seed), scores.inputs.n, "stretch")]


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
        estimates.append(_bare_estimate("spade_score", case, value, graphs.inputs.n, "stretch"))
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
    return [_bare_estimate(name, case, value, scores.inputs.n, unit) for name, (value, unit) in numbers.items()]


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


def _bare_estimate(name: str, case: Conditions, value: float, n: int, unit: str) -> Estimate:
    method = "no interval: one number of two whole graphs"
    return without_interval(name, case, value, n, method, unit, OF[name])


GROUPS = 20
"""Labels or clusters shown, the largest first."""
INFINITE = "no interval: infinite, for output components separate input neighbours"
UNSTEADY = "no interval: the first eigenvectors are others in other samples"
RELATED = "no interval: scores of one graph's samples depend on each other"


def per_sample(scores: Spade, base: Conditions) -> list[Series]:
    """Return the scores of every sample: by number of eigenvectors, over all of them, and in hops."""
    everything = {str(r): scores.node_scores(r) for r in RANKS}
    if scores.edge_scores_all is not None:
        everything["all"] = scores.per_sample(scores.edge_scores_all)
    records = [
        _series("node_score", {**base, "vectors": r}, values, "squared stretch", "stretch around the sample", scores)
        for r, values in everything.items()
    ]
    hops = scores.per_sample(scores.hops)
    return [*records, _series("hop_distortion", base, hops, "hops", "mean output hops to the input neighbours", scores)]


def _series(name: str, case: Conditions, values: Float[np.ndarray, "n"], unit: str, of: str, scores: Spade) -> Series:
    return series_of(name, case, torch.from_numpy(values), unit, Claim.ESTIMATE, of, partial(_missing, scores))


def _missing(scores: Spade, row: int) -> str:
    if scores.graphs.node_of[row] < 0:
        return "left out by the repair"
    return (
        "unknown where the score is infinite" if scores.split else "not computed, or the sample has no input neighbour"
    )


def summaries(series: Sequence[Series], subsets: Subsets) -> list[Estimate]:
    """Return means over the samples, but medians of node scores: a few samples hold most of their sum.

    All samples share two graphs, so their values depend on each other: intervals come from whole subsets.
    """
    records = []
    for part in series:
        whole = summarise(part, "median" if part.quantity == "node_score" else "mean", "lower")
        vectors = part.conditions.get("vectors")
        low, high = subsets.interval(node_score(vectors) if vectors else part.quantity, whole.value)
        method = INFINITE if isinf(whole.value) else subsets.method
        if vectors and vectors not in (str(TOP), "all"):
            method = UNSTEADY
        update = {"low": low, "high": high, "method": method, "series": None, "statistic": "whole"}
        records.append(whole.model_copy(update=update))
    return records


def group_means(spade: Spade, case: Conditions, groups: Mapping[str, Sequence[int]], kind: str) -> list[Estimate]:
    """Return the mean node score of the largest groups: labels in their order, clusters by size."""
    scores, records = spade.node_scores(TOP), []
    largest = sorted(groups, key=lambda name: -len(groups[name]))[:GROUPS]
    for name in sorted(largest, key=list(groups).index) if kind == "label" else largest:
        values = scores[list(groups[name])]
        values = values[np.isfinite(values)]
        if not len(values):
            continue
        where, mean, of = {**case, kind: name}, float(values.mean()), f"mean stretch around the samples of the {kind}"
        records.append(without_interval(f"{kind}_score", where, mean, len(values), RELATED, "squared stretch", of))
    return records


def verdict(scores: Spade) -> Verdict:
    """Return the verdict on the score: finite and correct, with the details of its computation."""
    graphs = scores.graphs
    recall = "exact" if min(graphs.recall) == 1 else f"approximate, recall {min(graphs.recall):.5f}"
    facts = {
        "samples": f"{graphs.inputs.n:,}",
        "k": str(graphs.k),
        "metric": "Euclidean",
        "neighbours": recall,
        "duplicate inputs left out": str(graphs.duplicates),
        "components of inputs and outputs": f"{graphs.inputs.components} and {graphs.outputs.components}",
    }
    if graphs.repaired:
        facts["repair"] = graphs.repaired
    if scores.split:
        status, reason = "refuted", f"Infinite: {scores.split}."
    else:
        facts["relative residual"] = f"{scores.residual:.1e}"
        assert scores.spectrum is not None
        facts["solver"] = scores.spectrum.solver
        if scores.cut:
            facts["sweep cut"] = f"{scores.cut.size:,} of {graphs.inputs.n:,} samples"
        if scores.certificate is None:
            status, reason = "unknown", "The eigenvalue converged; no factorisation proved that none is larger."
        else:
            status, reason = "proved", f"A factorisation shows that every eigenvalue is below {scores.certificate:.6g}."
    question = "Is the largest eigenvalue finite and right?"
    return Verdict.model_validate({"question": question, "status": status, "reason": reason, "witness": facts})


def spade_warnings(scores: Spade) -> tuple[str, ...]:
    """Return the warnings for the numbers."""
    warnings, graphs = [], scores.graphs
    if scores.split:
        warnings.append(f"The SPADE score is infinite: {scores.split}.")
    if graphs.remark:
        warnings.append(graphs.remark)
    if graphs.repaired:
        warnings.append(f"The SPADE score answers a repaired question: {graphs.repaired}.")
    if graphs.duplicates:
        warnings.append(f"{graphs.duplicates} samples have the input of an earlier one; SPADE counts each input once.")
    if graphs.ties:
        warnings.append(
            f"{graphs.ties} samples share their output exactly with at least {graphs.k} others, so which of these are "
            "their neighbours is arbitrary: read the SPADE numbers with suspicion."
        )
    if min(graphs.recall) < 1:
        warnings.append(
            f"Neighbours are approximate (recall {min(graphs.recall):.5f}), which moves the SPADE score by percents."
        )
    return tuple(warnings)


UNITS = {
    "spade_score": ("stretch", "largest stretch of neighbourhoods"),
    "riemannian_distance": ("log stretch", "Riemannian distance of the graphs over the ten largest eigenvalues"),
    "riemannian_distance_all": ("log stretch", "Riemannian distance of the graphs over all eigenvalues"),
    "eigenvalue_gap": ("ratio", "first eigenvalue over the second"),
    "edge_hop_distortion": ("hops", "mean output hops between input neighbours"),
}


def assembled(
    ids: Sequence[str],
    scores: Spade,
    subsets: Subsets,
    baselines: Mapping[str, Sequence[Numbers]],
    groups: Mapping[str, Sequence[int]],
    others: Mapping[str, Spade],
    kind: str = "cluster",
) -> Findings:
    """Return everything known of one map.

    Args:
        baselines: the numbers of untrained maps, draw by draw.
        groups: samples by label or cluster.
        kind: what the groups are, ``label`` or ``cluster``.
    """
    base = conditions(scores)
    series = per_sample(scores, base)
    whole = _whole(scores)
    estimates = [
        _estimate(name, base, value, subsets.interval(name, value), scores.inputs.n, subsets.method)
        for name, value in whole.items()
    ]
    estimates += [*_brackets(scores, base), *_spread(subsets, base), *summaries(series, subsets)]
    for name, draws in baselines.items():
        estimates += _ranges({**base, "outputs": name}, draws, scores.inputs.n)
    estimates += [_layer({**conditions(other), "outputs": name}, other) for name, other in others.items()]
    estimates += group_means(scores, {**base, "vectors": str(TOP)}, groups, kind)
    return Findings(
        ids=tuple(ids),
        series=tuple(series),
        estimates=tuple(estimates),
        curves=_curves(scores, base, others),
        verdicts=(verdict(scores),),
        warnings=spade_warnings(scores),
    )


def conditions(scores: Spade) -> Conditions:
    """Return under which the numbers were taken: they drift with both, so others are not comparable."""
    return {"n": f"{scores.inputs.n:,}", "k": str(scores.graphs.k)}


def _whole(scores: Spade) -> Numbers:
    values = scores.eigenvalues
    more = {} if scores.riemannian_all is None else {"riemannian_distance_all": scores.riemannian_all}
    gap = float(values[0] / values[1]) if len(values) > 1 and values[1] > 0 else np.inf
    return {
        "spade_score": scores.score,
        "riemannian_distance": scores.riemannian,
        **more,
        "eigenvalue_gap": gap,
        "edge_hop_distortion": float(np.nanmean(scores.hops)),
    }


def _estimate(
    name: str, case: Conditions, value: float, ends: tuple[float, float], n: int, method: str, confidence: float = 0.95
) -> Estimate:
    better: Better = "neither" if name == "eigenvalue_gap" else "lower"
    (unit, of), statistic = UNITS[name], "whole" if confidence == 0.95 else "other"
    found = estimate_of(name, (value, *ends), n, method, unit, of, better, case)
    return found.model_copy(update={"confidence": confidence, "statistic": statistic})


def _brackets(scores: Spade, case: Conditions) -> list[Estimate]:
    """Return the numbers whose other end the score itself proves: resistances stretch less, cuts shrink less."""
    top = scores.certificate or scores.score
    low = 1 / top
    n, number = scores.inputs.n, (scores.stretch, scores.stretch, max(top, scores.stretch))
    how, of = "bracket: exact on one pair from below, the score from above", "largest growth of an effective resistance"
    stretch = estimate_of("resistance_stretch", number, n, how, "ratio", of, "lower", case, Claim.LOWER, confidence=1.0)
    if scores.cut is None:
        return [stretch]
    distortion, of = scores.cut.distortion, "smallest output edges per input edge across a cut"
    number = (distortion, min(low, distortion), distortion)
    how = f"bracket: one over the score from below, a cut of {scores.cut.size} samples from above"
    cut = estimate_of("cut_distortion", number, n, how, "ratio", of, "higher", case, Claim.UPPER, confidence=1.0)
    return [stretch, cut]


def _spread(subsets: Subsets, case: Conditions) -> list[Estimate]:
    """Return the mean and standard deviation over random subsets, of the score and of its steadier companion."""
    records = []
    for name in ("spade_score", "riemannian_distance"):
        values = subsets.numbers.get(name, np.empty(0))
        if len(values) < 2:
            continue
        finite = np.isfinite(values).all()
        mean, spread = (float(values.mean()), float(values.std(ddof=1))) if finite else (np.inf, np.inf)
        ends = (max(0.0, mean - spread), mean + spread) if finite else (np.nan, np.nan)
        method = f"mean and standard deviation over {len(values)} random subsets"
        part = _estimate(name, {**case, "n": f"{subsets.size:,}"}, mean, ends, subsets.size, method, 0.68)
        records.append(part.model_copy(update={"quantity": f"subset_{name}"}))
    return records


def _ranges(case: Conditions, draws: Sequence[Numbers], n: int) -> list[Estimate]:
    records = []
    for name in ("spade_score", "riemannian_distance", "edge_hop_distortion"):
        low, *_, high = values = sorted(draw[name] for draw in draws)
        middle, how = values[len(values) // 2], f"median and range of {DRAWS} draws"
        records.append(_estimate(name, case, middle, (low, high), n, how, 0.5))
    return records


def _layer(case: Conditions, scores: Spade) -> Estimate:
    ends = scores.stretch, max(scores.score, scores.stretch)
    return _estimate("spade_score", case, scores.score, ends, scores.inputs.n, "bracket from below", 1.0)


def _curves(scores: Spade, case: Conditions, others: Mapping[str, Spade]) -> tuple[Curve, ...]:
    lines = [("spectrum", "number", "eigenvalue", scores.eigenvalues.tolist())]
    if others:
        by_layer = [*(other.score for other in others.values()), scores.score]
        lines.append(("layer_scores", "layer (the last is the output)", "SPADE score", by_layer))
    return tuple(line_of(name, case, x, y, range(1, len(values) + 1), values) for name, x, y, values in lines)
