"""The page of a training: its settings and its curves, made from its card alone."""

from __future__ import annotations

from html import escape
from math import isfinite

import numpy as np

from holdfast.encoders.trained import Card
from holdfast.report.figures.svg import Line, draw

SAID = {
    "loss": "Mean training loss of each epoch",
    "rate": "Learning rate",
    "rankme": "RankMe of the embeddings: how many dimensions they fill",
    "uniformity": "Uniformity of the embeddings: larger is more spread out",
    "spread": "Spread of the embeddings: near 0 they have collapsed",
    "knn_accuracy": "Fraction of bank images whose nearest others show their class",
    "semantic_fluctuation": "Semantic fluctuation: mean change of a class's accuracy since the epoch before",
    "images_per_second": "Images per second",
    "agreement": "Mean cosine similarity to the embeddings of the original encoder",
    "relative_distance": "Distance to the embeddings of the original encoder, beside the spread of these",
    "neighbours_kept": "Fraction of images whose nearest other is the same as for the original encoder",
}
STYLE = (
    ":root{color-scheme:light dark;--e0:#2a8c78;--rule:#8886}"
    "body{font:16px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem}"
    "main{display:grid;grid-template-columns:repeat(auto-fit,minmax(20rem,1fr));gap:1rem}"
    "figure{margin:0}svg{width:100%;height:auto}td{padding:.1rem .8rem .1rem 0;vertical-align:top}"
    "@media(prefers-color-scheme:dark){body{background:#111;color:#eee}}"
)


def page(card: Card) -> str:
    """Return the page as HTML that needs nothing else."""
    names = list(dict.fromkeys(name for epoch in card.curve for name in epoch if name in SAID))
    plots = "".join(
        f"<figure>{_plot(card, name)}<figcaption>{escape(SAID[name])}</figcaption></figure>" for name in names
    )
    facts = {
        "objective": card.objective,
        "images": f"{card.images.name}, {card.images.count:,}",
        "parameters": f"{card.parameters:,}",
        "epochs": str(card.epochs),
        "finished": card.finished,
        **_fluctuation(card),
        **{name: str(value) for name, value in card.recipe.items() if value not in ("none", [])},
    }
    rows = "".join(f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>" for name, value in facts.items())
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{escape(card.name)}</title><style>{STYLE}</style><h1>{escape(card.name)}</h1><main>{plots}</main>"
        f"<h2>How it was trained</h2><table>{rows}</table></html>\n"
    )


def _fluctuation(card: Card) -> dict[str, str]:
    """Return the mean semantic fluctuation over all epochs, if it was measured."""
    changes = [epoch["semantic_fluctuation"] for epoch in card.curve if "semantic_fluctuation" in epoch]
    return {"mean semantic fluctuation": f"{sum(changes) / len(changes):.4f}"} if changes else {}


def _plot(card: Card, name: str) -> str:
    """Return one curve as SVG, with its text as text."""
    points = [(epoch["epoch"], epoch[name]) for epoch in card.curve if isfinite(epoch.get(name, float("nan")))]
    x, y = np.array(points, float).reshape(-1, 2).T
    return draw([Line(x, y, 0)], "epoch", name.replace("_", " "), alt=SAID[name])
