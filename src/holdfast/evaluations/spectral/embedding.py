"""Pictures of a spectral score: the two-dimensional embedding of the samples, drawn as a file of its own."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from io import BytesIO

import numpy as np
from jaxtyping import Float

from holdfast.core.records import Picture
from holdfast.evaluations.spectral.analysis import TOP, Spade

MOST = 20_000
"""Points drawn: more hide each other."""


def embedding(found: Spade) -> Float[np.ndarray, "m 2"] | None:
    """Return ``[v_1 sqrt(lambda_1), v_2 sqrt(lambda_2)]``, one row per node; None for an infinite score."""
    if found.spectrum is None or len(found.spectrum.values) < 2:
        return None
    return found.spectrum.vectors[:, :2] * np.sqrt(np.maximum(found.spectrum.values[:2], 0))


def embedding_pictures(found: Spade, labels: Sequence[int] | None = None) -> tuple[Picture, ...]:
    """Return the embedding coloured by node score and, if ``labels`` (one per sample) are given, by label."""
    places = embedding(found)
    if places is None:
        return ()
    scores = found.node_scores(TOP)[found.graphs.rows]
    floor = max(float(np.nanmax(scores)), 1e-12) * 1e-6
    caption = "Spectral embedding: along these axes the representation pulls input neighbours apart most."
    made = [_picture(places, np.log10(np.maximum(np.nan_to_num(scores), floor)), "viridis", "by node score", caption)]
    if labels is not None:
        own = np.asarray(labels)[found.graphs.rows]
        made.append(_picture(places, np.unique(own, return_inverse=True)[1], "tab10", "by label", caption))
    return tuple(made)


def _picture(places: Float[np.ndarray, "m 2"], colours: np.ndarray, palette: str, label: str, caption: str) -> Picture:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.2, 3.2), dpi=100, layout="constrained")
    axes = figure.add_subplot()
    shown = np.argsort(colours, kind="stable")[-MOST:]  # the highest scores on top, and never left out
    drawn = axes.scatter(places[shown, 0], places[shown, 1], c=colours[shown], s=5, cmap=palette, linewidths=0)
    figure.colorbar(drawn, ax=axes, label="log10 of the score" if label == "by node score" else "label")
    axes.set_xlabel("first eigenvector")
    axes.set_ylabel("second eigenvector")
    buffer = BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return Picture(caption=caption, labels=(label,), pngs=(b64encode(buffer.getvalue()).decode(),))
