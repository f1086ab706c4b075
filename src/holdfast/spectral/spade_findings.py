"""SPADE scores as records: numbers of the whole map, series of samples, warnings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import isinf

import numpy as np
import torch
from jaxtyping import Float

from holdfast.core.records import Claim, Conditions, Curve, Estimate, Findings, Series, Verdict
from holdfast.core.statistics.summaries import Better, series_of, summarise, without_interval
from holdfast.measure.observation import estimate_of, line_of
from holdfast.spectral.analysis import RANKS, TOP, Spade
from holdfast.spectral.stability import DRAWS, Numbers, Subsets, node_score

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
