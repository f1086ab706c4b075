"""The two-dimensional spectral embedding of the samples, as points that a report draws."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int

from holdfast.core.records import Curve
from holdfast.spectral.analysis import TOP, Spade

DIGITS = 6
"""Significant ones, of what is only drawn."""


def embedding(scores: Spade) -> Float[np.ndarray, "m 2"] | None:
    """Return ``[v_1 sqrt(lambda_1), v_2 sqrt(lambda_2)]``, one row per node; None for an infinite score."""
    if scores.spectrum is None or len(scores.spectrum.values) < 2:
        return None
    return scores.spectrum.vectors[:, :2] * np.sqrt(np.maximum(scores.spectrum.values[:2], 0))


def embedding_curves(spade: Spade, labels: Int[np.ndarray, "n"] | None) -> tuple[Curve, ...]:
    """Return the embedding coloured by node score and, if ``labels`` (one per sample) are given, by label."""
    coordinates = embedding(spade)
    if coordinates is None:
        return ()
    order = spade.graphs.rows.argsort()  # as the samples are
    coordinates, rows = coordinates[order], spade.graphs.rows[order]
    scores = spade.node_scores(TOP)[rows]
    floor = max(float(np.nanmax(scores)), 1e-12) * 1e-6
    colours = {"node score (log10)": _rounded(np.log10(np.maximum(np.nan_to_num(scores), floor)))}
    if labels is not None:
        colours["label"] = tuple(labels[rows].astype(float).tolist())
    return (
        Curve(
            quantity="spectral_embedding",
            x_label="first eigenvector",
            y_label="second eigenvector",
            x=_rounded(coordinates[:, 0]),
            y=_rounded(coordinates[:, 1]),
            colours=colours,
        ),
    )


def _rounded(values: Float[np.ndarray, "m"]) -> tuple[float, ...]:
    return tuple(float(f"{value:.{DIGITS}g}") for value in values)
