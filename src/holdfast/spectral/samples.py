"""The scores of each sample as series, and their summaries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float

from holdfast.result import Claim, Conditions, Estimate, Series
from holdfast.spectral.analysis import RANKS, TOP, Spade
from holdfast.stats import skewed_interval, summarise

GROUPS = 20
"""Labels or clusters shown, the largest first."""


def per_sample(found: Spade, base: Conditions) -> list[Series]:
    """Return the scores of every sample: by number of eigenvectors, over all of them, and in hops."""
    everything = {str(r): found.node_scores(r) for r in RANKS}
    if found.edge_scores_all is not None:
        everything["all"] = found.per_sample(found.edge_scores_all)
    made = [
        _series("node_score", {**base, "vectors": r}, values, "squared stretch", "stretch around the sample", found)
        for r, values in everything.items()
    ]
    hops = found.per_sample(found.hops)
    return [*made, _series("hop_distortion", base, hops, "hops", "mean output hops to the input neighbours", found)]


def _series(name: str, given: Conditions, values: Float[np.ndarray, "n"], unit: str, of: str, found: Spade) -> Series:
    return Series(
        quantity=name,
        conditions=given,
        values=tuple(values.tolist()),
        unit=unit,
        claim=Claim.ESTIMATE,
        of=of,
        reasons={row: _missing(found, row) for row in np.flatnonzero(np.isnan(values)).tolist()},
    )


def _missing(found: Spade, row: int) -> str:
    if found.drawing.place[row] < 0:
        return "left out by the repair"
    return (
        "unknown where the score is infinite" if found.split else "not computed, or the sample has no input neighbour"
    )


def summaries(series: Sequence[Series]) -> list[Estimate]:
    """Return means over the samples, but medians of node scores: a few samples hold most of their sum."""
    made = []
    for part in series:
        values = np.asarray(part.values)
        median = part.quantity == "node_score"
        if np.isinf(values).any() and not median:
            note = "no interval: infinite, for output components separate input neighbours"
            made.append(summarise(part, "mean", "lower").model_copy(update={"method": note}))
        else:
            made.append(summarise(part, "median" if median else "mean", "lower"))
    return made


def group_means(found: Spade, given: Conditions, groups: Mapping[str, Sequence[int]], kind: str) -> list[Estimate]:
    """Return the mean node score of the largest groups: labels in their order, clusters by size."""
    scores, made = found.node_scores(TOP), []
    largest = sorted(groups, key=lambda name: -len(groups[name]))[:GROUPS]
    for name in sorted(largest, key=list(groups).index) if kind == "label" else largest:
        values = scores[list(groups[name])]
        values = values[np.isfinite(values)]
        ends = skewed_interval(values)
        if np.isnan(ends[0]):
            continue
        made.append(
            Estimate(
                quantity=f"{kind}_score",
                conditions={**given, kind: name},
                value=float(values.mean()),
                low=min(ends[0], float(values.mean())),
                high=max(ends[1], float(values.mean())),
                n=len(values),
                method="Student's interval with skewness removed",
                unit="squared stretch",
                claim=Claim.ESTIMATE,
                of=f"mean stretch around the samples of the {kind}",
                better="neither",
            )
        )
    return made
