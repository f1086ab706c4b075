"""Plots of the report, for the page and as files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape

import numpy as np
from jaxtyping import Float

from holdfast.core.records import Conditions, Curve, Result, Series
from holdfast.report import text
from holdfast.report.comparison.comparable import Group
from holdfast.report.figures.svg import COLOURS, DASHES, PATTERNS, Line, draw

POINTS = 48
"""Points per curve: finer than a screen shows, and the page stays small."""
DISTRIBUTION = "Each curve gives the fraction of images (vertical) whose value is at most the one below it."
CURVE = "Bands are intervals."
REFERENCE = "The uncoloured line is the reference: what the data themselves allow."
AGAINST = {"certified_radius": "attacked_radius", "linear_radius": "attacked_linear_radius"}
"""Series of lower bounds, each with the series of upper bounds of the same quantity."""
TIGHTNESS = "One dot per image; on the uncoloured line the certificate reaches all the way to the attack."
SHADED = f"{REFERENCE} An encoder's score is its shaded area, as a fraction of the area under that line."
CLOUD = "One dot per image: the brighter, the larger what it is coloured by."
DOTS = 1000
"""Largest number of points of a cloud; more hide each other and enlarge the page."""


@dataclass(frozen=True)
class Panel:
    """One drawing under its title."""

    title: str
    svg: str


@dataclass(frozen=True)
class Plate:
    """The drawings of one quantity, and what the dashes in them mean."""

    title: str
    caption: str
    panels: tuple[Panel, ...]
    dashes: tuple[tuple[str, str], ...]
    """Each attack with its dash, where there is more than one."""


@dataclass(frozen=True)
class _Part:
    title: str
    quantity: str
    name: str
    """The quantity in print."""
    conditions: Conditions
    labels: tuple[str, str]
    line: Line
    share: bool
    reference: Line | None = None
    caption: str = DISTRIBUTION


def plates(group: Group, colours: Sequence[str]) -> tuple[Plate, ...]:
    """Return all drawings of one evaluation; an encoder's colour is its place in ``colours``."""
    drawn = [(colours.index(name), result) for name, result in group.items()]
    series = [_distribution(part, place) for place, result in drawn for part in result.series if _telling(part)]
    curves = [
        part
        for place, result in drawn
        for curve in result.findings.curves
        if curve.colours or curve.x
        for part in (_clouds(curve, place, result.encoder.name) if curve.colours else [_curve(curve, place)])
    ]
    bounds = [part for place, result in drawn for part in _tightness(result, place)]
    return (*_plates(bounds, group.encoders), *_plates(curves, group.encoders), *_plates(series, group.encoders))


def _plates(parts: Sequence[_Part], encoders: Sequence[str]) -> list[Plate]:
    plates_of_quantities = []
    for quantity in dict.fromkeys(part.quantity for part in parts):
        plots = [part for part in parts if part.quantity == quantity]
        attacks = list(dict.fromkeys(part.conditions.get("attack", "") for part in plots))
        dashes = {attack: DASHES[place % len(DASHES)] for place, attack in enumerate(reversed(attacks))}
        titles = dict.fromkeys(text.conditions(part.conditions, ("attack",)) for part in plots)
        panels = [_panel(title, plots, dashes, encoders) for title in titles]
        shown = tuple(dashes.items())[::-1] if len(dashes) > 1 else ()
        plates_of_quantities.append(Plate(plots[0].title, plots[0].caption, tuple(panels), shown))
    return plates_of_quantities


def _panel(title: str, parts: Sequence[_Part], dashes: dict[str, str], encoders: Sequence[str]) -> Panel:
    plots = [part for part in parts if text.conditions(part.conditions, ("attack",)) == title]
    lines = [replace(part.line, dash=dashes[part.conditions.get("attack", "")]) for part in plots]
    references = [part.reference for part in plots if part.reference]
    lines += {(*line.x, *line.y): line for line in references}.values()
    alt = f"{plots[0].name} of {text.listed(encoders)}{f' for {title}' if title else ''}"
    return Panel(title, draw(lines, *plots[0].labels, alt=alt, share=plots[0].share))


def _telling(series: Series) -> bool:
    """Return whether a distribution says more than its mean; one of two values does not."""
    if series.quantity.endswith("_influence"):  # which serves intervals and comparisons
        return False
    # One of many: their table, or the curve over them, says it.
    if series.conditions.keys() & {"rung", "corruption", "surrogate"}:
        return False
    return len({value for value in series.values if np.isfinite(value)} - {0.0, 1.0}) > 0


def _tightness(result: Result, colour: int) -> Iterator[_Part]:
    by_quantity = {series.quantity: series for series in result.series}
    for below, above in AGAINST.items():
        if below not in by_quantity or above not in by_quantity:
            continue
        (y, _), (x, unit) = (_axis(by_quantity[name]) for name in (below, above))
        known = np.isfinite(x) & np.isfinite(y)
        if not known.any():
            continue
        end = np.array([0.0, max(x[known].max(), y[known].max())])
        lower, upper = (text.name_of(by_quantity[name]) for name in (below, above))
        yield _Part(
            title=f"{_capital(lower)} by {upper}",
            quantity=f"{below} against {above}",
            name=f"{lower} against {upper}",
            conditions={},
            labels=(f"{upper} ({unit})", lower),
            line=Line(x[known], y[known], colour, scattered=True),
            share=False,
            reference=Line(end, end, None),
            caption=TIGHTNESS,
        )


def _distribution(series: Series, colour: int) -> _Part:
    """Return the empirical distribution function, thinned; infinite values keep their weight but are not drawn."""
    values, unit = _axis(series)
    values = np.sort(values[~np.isnan(values)])
    rank = np.arange(1, len(values) + 1) / len(values)
    finite = np.isfinite(values)
    x, y = values[finite], rank[finite]
    shown = np.unique(np.linspace(0, len(x) - 1, POINTS).round().astype(int))
    x, y = x[shown], y[shown]
    x, y = np.concatenate([x[:1], x]), np.concatenate([[rank[finite][0] - 1 / len(values)], y])
    name = text.name_of(series)
    return _Part(
        title=f"{_capital(name)}, image by image",
        quantity=series.quantity,
        name=name,
        conditions=series.conditions,
        labels=(f"{name} ({unit})" if unit else name, ""),
        line=Line(x, y, colour, stepped=True),
        share=True,
    )


def _axis(series: Series) -> tuple[Float[np.ndarray, "n"], str]:
    """Return the values of ``series`` and their unit as an axis shows them: radii in l_inf in grey levels."""
    times, behind = text.in_print(text.norm_of(series))
    return times * np.asarray(series.values, dtype=np.float64), _behind(text.words(series.unit), behind)


def _behind(label: str, behind: str) -> str:
    return f"{label} in 1{behind}" if behind else label


def _capital(name: str) -> str:
    return name[:1].upper() + name[1:]


def _clouds(curve: Curve, colour: int, encoder: str) -> Iterator[_Part]:
    for name, values in curve.colours.items():
        order = np.argsort(values, kind="stable")  # the brightest on top
        shown = order[np.unique(np.linspace(0, len(order) - 1, DOTS).round().astype(int))]
        x, y, shades = (np.asarray(part, dtype=np.float64)[shown] for part in (curve.x, curve.y, values))
        yield _Part(
            title=_capital(text.name_of(curve)),
            quantity=curve.quantity,
            name=text.name_of(curve),
            # Two encoders have no axes in common.
            conditions={**curve.conditions, "encoder": encoder, "by": name},
            labels=(text.words(curve.x_label), text.words(curve.y_label)),
            line=Line(x, y, colour, shades=shades),
            share=False,
            caption=CLOUD,
        )


def _curve(curve: Curve, colour: int) -> _Part:
    norm = curve.conditions.get("ball", "")
    times, behind = text.in_print(norm if curve.x_label == f"{norm} radius" else "")
    x, y = times * np.asarray(curve.x), np.asarray(curve.y)
    band = (np.asarray(curve.low), np.asarray(curve.high)) if curve.low and curve.high else None
    if curve.shaded:
        band = (np.zeros_like(y), y)
    x_label, y_label = text.words(curve.x_label), text.words(curve.y_label)
    return _Part(
        title=f"{_capital(y_label)} by {x_label}",
        quantity=curve.quantity,
        name=text.name_of(curve),
        conditions=curve.conditions,
        labels=(_behind(x_label, behind), y_label),
        line=Line(x, y, colour, band=band),
        share=False,
        reference=Line(x, np.asarray(curve.reference), None) if curve.reference else None,
        caption=SHADED if curve.shaded else REFERENCE if curve.reference else CURVE,
    )


PALETTE = ("#0f6b5c", "#c2571a", "#3b6fb6", "#a13670", "#7a7a1f", "#6a51a3", "#3c8f9e", "#8c564b")
"""Colours of the page on white."""
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
