"""The page's drawings as files that stand alone: their own colours, their own key, no page around them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import escape

from holdfast.report.comparison.protocol import Group
from holdfast.report.figures.plots import Panel, Plate
from holdfast.report.figures.svg import COLOURS, PATTERNS

PALETTE = ("#0f6b5c", "#c2571a", "#3b6fb6", "#a13670", "#7a7a1f", "#6a51a3", "#3c8f9e", "#8c564b")
"""Those of the page on white."""
INK, RULE = "#1d2724", "#e2e0d8"
LINE = 14
"""Points between two lines of text."""


def drawings(groups: Sequence[Group], plates: Mapping[str, Sequence[Plate]], encoders: Sequence[str]) -> dict[str, str]:
    """Return every drawing as an SVG document, by a name made of its evaluation, its quantity and its condition."""
    documents: dict[str, str] = {}
    for group in groups:
        for plate in plates[group.key]:
            for panel in plate.panels:
                name = _slug(f"{group.first.evaluation} {plate.title} {panel.title}")
                # Another protocol of the same evaluation draws the same again.
                name = f"{name}-{group.key}" if name in documents else name
                documents[name] = document(panel, plate, group.encoders, encoders)
    return documents


def document(panel: Panel, plate: Plate, shown: Sequence[str], encoders: Sequence[str]) -> str:
    """Return one drawing with its title above and the key of the encoders ``shown`` below."""
    opening, _, body = panel.svg.partition(">")
    box = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', opening)
    label = re.search(r'aria-label="[^"]*"', opening)
    assert box is not None, "a drawing without a size"
    assert label is not None, "a drawing without a description"
    width, height = float(box[1]), float(box[2])
    # In a cloud of points colours belong to no encoder.
    places = {name: encoders.index(name) for name in shown if "var(--e" in panel.svg}
    key = [(name, _colour(place), "solid") for name, place in places.items()]
    key += [(attack or "no attack", INK, dash) for attack, dash in plate.dashes]
    top, bottom = LINE * (1 + bool(panel.title)) + 4, LINE * len(key) + 6
    titles = [_text(6, LINE, plate.title, bold=True), _text(6, 2 * LINE, panel.title)]
    lines = [
        f'<path d="M 8 {y - 4} h 18" fill="none" stroke="{colour}" stroke-width="2" '
        f'stroke-dasharray="{PATTERNS[dash]}"/>{_text(32, y, name)}'
        for y, (name, colour, dash) in zip(range(int(top + height) + LINE, 10**6, LINE), key, strict=False)
    ]
    body = re.sub(r"var\(--e(\d)\)", lambda match: _colour(int(match[1])), body)
    body = body.replace("currentColor", INK).replace("var(--rule)", RULE)
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" role="img" '
        f'{label[0]} viewBox="0 0 {width:g} {top + height + bottom:g}" width="{2 * width:g}" '
        f'font-family="sans-serif" stroke-linejoin="round">'
        f'<rect width="100%" height="100%" fill="#ffffff"/>{"".join(titles)}'
        f'<g transform="translate(0 {top})">{body.removesuffix("</svg>")}</g>{"".join(lines)}</svg>\n'
    )


def _colour(place: int) -> str:
    return PALETTE[place % COLOURS]


def _text(x: int, y: int, words: str, bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x}" y="{y}" font-size="10.5" fill="{INK}"{weight}>{escape(words)}</text>' if words else ""


def _slug(words: str) -> str:
    """Return a file's name.

    Example:
        >>> _slug("breakaway Breakaway risk by ℓ∞ radius ℓ∞ · l2")
        'breakaway-breakaway-risk-by-linf-radius-linf-l2'
    """
    plain = words.lower().replace("ℓ∞", "linf").replace("ℓ", "l")
    return re.sub(r"[^a-z0-9.]+", "-", plain).strip("-.")
