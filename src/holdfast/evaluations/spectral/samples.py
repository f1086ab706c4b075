"""The scores of each sample as series, and their summaries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isinf, nan

import numpy as np
from jaxtyping import Float

from holdfast.core.records import Claim, Conditions, Estimate, Series
from holdfast.core.statistics import summarise
from holdfast.spectral.analysis import RANKS, TOP, Spade
from holdfast.spectral.stability import Subsets, node_score

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
    return Series(
        quantity=name,
        conditions=case,
        values=tuple(values.tolist()),
        unit=unit,
        claim=Claim.ESTIMATE,
        of=of,
        reasons={row: _missing(scores, row) for row in np.flatnonzero(np.isnan(values)).tolist()},
    )


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
        records.append(
            Estimate(
                quantity=f"{kind}_score",
                conditions={**case, kind: name},
                value=float(values.mean()),
                low=nan,
                high=nan,
                n=len(values),
                method=RELATED,
                unit="squared stretch",
                claim=Claim.ESTIMATE,
                of=f"mean stretch around the samples of the {kind}",
                better="neither",
            )
        )
    return records
