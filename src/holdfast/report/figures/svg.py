"""Line plots as inline SVG: text stays text, colours follow the page (light, dark, print), nothing is loaded."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = 8
"""How many colours the style sheet names."""
DASHES = ("solid", "dashed", "dotted", "dashdot")
# Colours that no theme would use, replaced in the drawing by the page's own.
INK, RULE = "#010203", "#010204"
WIDTH, HEIGHT = 3.5, 2.4
"""Of a drawing, in inches."""
FONT = 10.5
DIGIT = 0.64 * FONT / 72
"""Inches that a digit is wide, in the widest of common fonts."""

# Set before the axes are made: each setting after that goes through all ticks again.
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "holdfast",
    "font.size": FONT,
    "text.parse_math": False,  # a dollar sign in a label is a dollar sign
    "axes.titlesize": FONT,
    "axes.titlecolor": INK,
    "axes.labelcolor": INK,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": RULE,
    "grid.linewidth": 0.6,
    **{f"axes.spines.{side}": False for side in ("left", "right", "top", "bottom")},
    **{f"{axis}tick.color": INK for axis in "xy"},
    **{f"{axis}tick.major.size": 0 for axis in "xy"},
    **{f"{axis}tick.major.pad": 4 for axis in "xy"},
}


@dataclass(frozen=True)
class Line:
    """One curve, and the band around it if it has one."""

    x: Float[np.ndarray, "p"]
    y: Float[np.ndarray, "p"]
    colour: int | None
    """The encoder's, or None for a line that belongs to none: it is drawn in ink."""
    dash: str = "solid"
    stepped: bool = False
    band: tuple[Float[np.ndarray, "p"], Float[np.ndarray, "p"]] | None = None
    unseen: Bool[np.ndarray, "p"] | None = None
    """Where the band is a bound for what was not seen: it does not set the scale."""
    scattered: bool = False
    """Whether these are points that no line joins."""
    shades: Float[np.ndarray, "p"] | None = None
    """What colours the points, if not the encoder."""


def draw(lines: Sequence[Line], x_label: str, y_label: str, alt: str, share: bool = False) -> str:
    """Return an ``<svg>`` of the lines, described to screen readers by ``alt``; ``share`` fixes the y axis to [0, 1]."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, HEIGHT))
        axes = figure.add_axes((0.12, 0.22, 0.83, 0.7))
        for line in lines:
            _add(axes, line)
        _dress(axes, lines, x_label, y_label, share)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None}, transparent=True)
    return _inline(buffer.getvalue(), alt)


def _colour(line: Line) -> str:
    return INK if line.colour is None else f"#fe00{line.colour % COLOURS:02x}"


def _add(axes: Axes, line: Line) -> None:
    colour = _colour(line)
    if line.shades is not None:
        axes.scatter(line.x, line.y, c=line.shades, s=4, cmap="viridis", linewidths=0)
        return
    if line.scattered:
        axes.plot(line.x, line.y, color=colour, linestyle="none", marker="o", markersize=3, alpha=0.7)
        return
    step = "steps-post" if line.stepped else "default"
    # Where was measured, if the line only joins points; a reference was not.
    dots = "o" if len(line.x) < 16 and not line.stepped and line.colour is not None else ""
    axes.plot(
        line.x, line.y, color=colour, linestyle=line.dash, linewidth=1.4, drawstyle=step, marker=dots, markersize=3
    )
    if line.band is not None:
        axes.fill_between(line.x, *line.band, color=colour, alpha=0.15, linewidth=0)


def _dress(axes: Axes, lines: Sequence[Line], x_label: str, y_label: str, share: bool) -> None:
    _scale(axes, np.concatenate([line.x for line in lines]))
    axes.set_xlabel(x_label)
    if share:
        axes.set_ylim(-0.02, 1.02)
        axes.set_yticks([0, 0.5, 1], ["0", "½", "1"])
    elif y_label:
        _limit(axes, lines)
        ticks = axes.get_yticks()[1:-1]
        labels = [_tick(tick) for tick in ticks]
        axes.set_yticks(ticks, labels)
        axes.set_title(y_label, loc="left", pad=4)
        left = max(0.12, (0.1 + DIGIT * max(map(len, labels), default=0)) / WIDTH)
        axes.set_position((left, 0.22, 0.95 - left, 0.7))
    axes.minorticks_off()


def _limit(axes: Axes, lines: Sequence[Line]) -> None:
    """Let what was seen set the vertical scale, and mark by an arrow where a band goes on above it."""
    if not any(line.unseen is not None and line.unseen.any() for line in lines):
        return
    values = [line.y for line in lines]
    for line in lines:
        keep = slice(None) if line.unseen is None else ~line.unseen
        values += [end[keep] for end in line.band or ()]
    low, high = float(np.nanmin(np.concatenate(values))), float(np.nanmax(np.concatenate(values)))
    if not low < high:
        return
    margin = 0.05 * (high - low)
    axes.set_ylim(low - margin, high + margin)
    for line in lines:
        if line.band is not None and line.unseen is not None and line.colour is not None:
            above = line.x[line.unseen & (line.band[1] > high + margin)]
            axes.plot(above, np.full(len(above), high), color=_colour(line), linestyle="none", marker="^", markersize=4)


def _scale(axes: Axes, x: Float[np.ndarray, "p"]) -> None:
    """Use a logarithmic axis for values over more than two decades; zeros keep a linear stretch of their own."""
    positive = x[x > 0]
    if len(positive) < 2 or x.min() < 0 or positive.max() < 100 * positive.min():
        axes.locator_params(axis="x", nbins=4)
        inner = axes.get_xticks()[1:-1]
        axes.set_xticks(inner, [_tick(tick) for tick in inner])
        return
    first, last = int(np.floor(np.log10(positive.min()))), int(np.ceil(np.log10(positive.max())))
    powers = range(first, last + 1, 1 + (last - first) // 5)
    ticks = [10.0**power for power in powers]
    if x.min() > 0:
        axes.set_xscale("log")
    else:
        axes.set_xscale("symlog", linthresh=ticks[0], linscale=0.5)
        ticks = [0.0, *ticks]
    axes.set_xticks(ticks, [_tick(tick) for tick in ticks])


def _tick(value: float) -> str:
    """Return a tick's label: 0.001, 1e-7, 20."""
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        return f"{value:.4g}".replace("-", "−")
    mantissa, exponent = f"{value:.2g}".split("e") if "e" in f"{value:.2g}" else f"{value:.0e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def _inline(svg: str, alt: str) -> str:
    """Return matplotlib's document as an element: own ids, page colours, tenths of a point, no foreign addresses."""
    from html import escape

    mark = sha256(svg.encode()).hexdigest()[:8]
    svg = svg[svg.index("<svg") :]
    view = re.search(r'viewBox="[^"]*"', svg)
    assert view is not None, "matplotlib wrote an SVG without a viewBox"
    body = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index(">") + 1 :], flags=re.DOTALL)
    body = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", body, flags=re.DOTALL)
    body = re.sub(r'<g id="[^"]*"', "<g", body)
    body = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{mark}-", body)
    body = re.sub(r"font-family: [^;\"]*;? ?", "", body)
    body = re.sub(r"<[^>]*>", lambda tag: re.sub(r"(\d\.\d)\d+", r"\1", tag[0]), body)
    body = re.sub(r"\s*\n\s*", " ", body)
    body = body.replace(INK, "currentColor").replace(RULE, "var(--rule)")
    body = re.sub(r"#fe00(\w\w)", lambda match: f"var(--e{int(match[1], 16)})", body)
    return f'<svg role="img" aria-label="{escape(alt)}" {view[0]}>{body.strip()}'
