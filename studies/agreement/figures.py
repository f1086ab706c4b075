"""The figures of the study's page as SVG: plain text, the same bytes for the same numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from math import isfinite

from studies.agreement.conclusions import Agreement

INK, RULE, PAPER = "#333333", "#bbbbbb", "#ffffff"
LOW, HIGH = (178, 73, 35), (0, 105, 120)
"""The colours of -1 and 1; 0 is white."""
MARKS = {
    "published": "#0b6e99",
    "supervised": "#b24923",
    "simclr": "#4f772d",
    "moco": "#7b2d8e",
    "distilled": "#c08a00",
}
MARKS |= {"self-distilled": "#2a9d8f", "redundancy": "#8d5524", "clusters": "#5c677d", "masked": "#d0006f"}
CELL, HEIGHT, LEFT, TOP = 92, 24, 150, 44
WIDE, HIGH_PLOT, MARGIN = 200, 150, 34


def svg_head(width: float, height: float, title: str) -> Iterator[str]:
    """Yield the lines that begin a figure: its size, its title, white paper."""
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img" '
        f'font-family="sans-serif" font-size="11" fill="{INK}">'
    )
    yield f"<title>{escape(title)}</title>"
    yield f'<rect width="{width:g}" height="{height:g}" fill="{PAPER}"/>'


def label(x: float, y: float, said: str, anchor: str = "start", size: float = 11) -> str:
    """Return text at a place."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size:g}">{escape(said)}</text>'


def colour(value: float) -> str:
    """Return the colour of an agreement between -1 and 1.

    Example:
        >>> colour(0.0), colour(1.0)
        ('#ffffff', '#006978')
    """
    end, share = (HIGH if value > 0 else LOW), min(1.0, abs(value))
    return "#" + "".join(f"{round(255 + share * (part - 255)):02x}" for part in end)


def heat_map(found: Mapping[tuple[str, str], Agreement]) -> str:
    """Return tau of each measure (rows) with each reference (columns), hatched where its interval contains 0."""
    measures, references = ([*dict.fromkeys(key[place] for key in found)] for place in (0, 1))
    width, height = LEFT + CELL * len(references) + 10, TOP + HEIGHT * len(measures) + 10
    lines = [
        *svg_head(width, height, "Agreement (tau) of measures with references; hatched where the interval contains 0")
    ]
    lines.append(
        '<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        f'<line x1="0" y1="0" x2="0" y2="6" stroke="{INK}" stroke-width="1" stroke-opacity="0.35"/></pattern></defs>'
    )
    for column, name in enumerate(references):
        head, _, rest = name.partition(" ")
        middle = LEFT + CELL * (column + 0.5)
        lines += [label(middle, 18, head, "middle"), label(middle, 32, rest, "middle")]
    for row, name in enumerate(measures):
        y = TOP + HEIGHT * row
        lines.append(label(LEFT - 8, y + 16, name, "end"))
        for column, reference in enumerate(references):
            lines += _cell(LEFT + CELL * column, y, found[name, reference])
    return "\n".join([*lines, "</svg>"]) + "\n"


def _cell(x: float, y: float, one: Agreement) -> Iterator[str]:
    box = f'<rect x="{x:g}" y="{y:g}" width="{CELL - 2}" height="{HEIGHT - 2}"'
    if not isfinite(one.tau):
        yield f'{box} fill="none" stroke="{RULE}"/>'
        yield label(x + CELL / 2, y + 15, "missing", "middle", 9)
        return
    yield f'{box} fill="{colour(one.tau)}"/>'
    if not one.sure:
        yield f'{box} fill="url(#hatch)"/>'
    said = f"{one.tau:+.2f} [{one.over_both.low:.1f}, {one.over_both.high:.1f}]"
    yield label(x + CELL / 2, y + 15, said, "middle", 9.5)


def scatters(
    panels: Sequence[tuple[str, Sequence[tuple[float, float, str, str]]]], y_label: str, columns: int = 4
) -> str:
    """Return one panel for each measure: what it says (x) against the reference (y), points coloured by family.

    Each point is x, y, family and data set; the second data set has open marks.
    """
    rows = -(-len(panels) // columns)
    width, height = columns * WIDE + 10, rows * HIGH_PLOT + 60
    lines = [*svg_head(width, height, f"Each measure against {y_label}, one point for each encoder")]
    for place, (name, points) in enumerate(panels):
        lines += _panel((place % columns) * WIDE, (place // columns) * HIGH_PLOT, name, points)
    for place, (family, shade) in enumerate(MARKS.items()):
        x, y = 12 + (place % 5) * 150, rows * HIGH_PLOT + 20 + 18 * (place // 5)
        lines += [f'<circle cx="{x}" cy="{y - 4}" r="4" fill="{shade}"/>', label(x + 9, y, family)]
    return "\n".join([*lines, "</svg>"]) + "\n"


def _panel(left: float, top: float, name: str, points: Sequence[tuple[float, float, str, str]]) -> Iterator[str]:
    known = [point for point in points if isfinite(point[0]) and isfinite(point[1])]
    x0, y0, x1, y1 = left + MARGIN, top + 22, left + WIDE - 8, top + HIGH_PLOT - 18
    yield f'<rect x="{x0:g}" y="{y0:g}" width="{x1 - x0:g}" height="{y1 - y0:g}" fill="none" stroke="{RULE}"/>'
    yield label(x0, y0 - 5, name)
    if not known:
        yield label((x0 + x1) / 2, (y0 + y1) / 2, "missing", "middle")
        return
    low, high = (pick(point[0] for point in known) for pick in (min, max))
    span = (high - low) or 1.0
    top_value = max(point[1] for point in known) or 1.0
    for value, at, anchor in ((low, x0, "start"), (high, x1, "end")):
        yield label(at, y1 + 12, f"{value:.3g}", anchor, 9)
    yield from (label(x0 - 3, at, said, "end", 9) for at, said in ((y1, "0"), (y0 + 8, f"{top_value:.2f}")))
    first = known[0][3]
    for x, y, family, dataset in known:
        cx, cy = x0 + 4 + (x - low) / span * (x1 - x0 - 8), y1 - 4 - y / top_value * (y1 - y0 - 8)
        shade = MARKS.get(family, INK)
        fill = shade if dataset == first else PAPER
        yield f'<circle cx="{cx:.1f}" cy="{cy:.1f}" r="3" fill="{fill}" stroke="{shade}"/>'


Ends = tuple[float, float, float]
"""A number and the two ends of its interval."""


def twice(rows: Sequence[tuple[str, Ends, Ends, str]], heads: tuple[str, str]) -> str:
    """Return each measure's tau among two sets of encoders, one bar above the other; the second is what came after.

    A row is a name, both numbers with their intervals, and what became of the advice.
    """
    step, left, span, top = 30, 150, 420, 46
    width, height = left + span + 150, top + step * len(rows) + 24

    def x(tau: float) -> float:
        return left + span * (tau + 1) / 2

    lines = [*svg_head(width, height, f"Tau with robust area: {heads[0]} and {heads[1]}")]
    for place, (head, shade) in enumerate(zip(heads, ("#999999", "#0b6e99"), strict=True)):
        lines += [f'<rect x="{left + 215 * place}" y="10" width="16" height="6" fill="{shade}"/>']
        lines += [label(left + 22 + 215 * place, 17, head)]
    for tau in (-1, -0.5, 0, 0.5, 1):
        dash = "" if tau == 0 else ' stroke-dasharray="2 3"'
        lines += [f'<path d="M{x(tau):g} {top - 10}V{height - 20}" stroke="{RULE}"{dash}/>']
        lines += [label(x(tau), height - 6, f"{tau:+g}" if tau else "0", "middle", 9)]
    for place, (name, before, after, outcome) in enumerate(rows):
        y = top + step * place + 6
        lines += [label(left - 8, y + 6, name, "end"), label(left + span + 10, y + 6, outcome)]
        for (tau, low, high), shade, down in ((before, "#999999", -3), (after, "#0b6e99", 6)):
            if isfinite(tau + low + high):
                lines += [f'<path d="M{x(low):.1f} {y + down}H{x(high):.1f}" stroke="{shade}" stroke-width="3"/>']
                lines += [f'<circle cx="{x(tau):.1f}" cy="{y + down}" r="4" fill="{shade}"/>']
    return "\n".join([*lines, "</svg>"]) + "\n"
