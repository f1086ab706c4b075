"""Line plots as inline SVG, and the axes they are drawn on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from math import ceil, floor, inf, log10
from typing import final

import numpy as np
from jaxtyping import Float

MARGIN = 0.05
"""The fraction of an axis that is free before the first and after the last value."""
STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
"""Between labelled values, times a power of ten."""
WIDE = 100
"""Ratio of largest to smallest positive value from which an axis is logarithmic."""
POWERS = 5
"""Labelled powers of ten, about, at most."""
STRETCH = 0.5 / 0.9
"""The length of the linear stretch of an axis that holds zeros, in decades."""
ACROSS, UP = 4, 5
"""Steps at most between labelled values of a horizontal and a vertical axis: for as many there is room."""


@final
@dataclass(frozen=True)
class Axis:
    """Numbers from ``low`` to ``high``, on a scale of their own, with ``ticks`` labelled."""

    low: float
    high: float
    ticks: tuple[float, ...]
    labels: tuple[str, ...]
    first: float = inf
    """The value below which a logarithmic axis is linear; infinite for a linear axis, 0 where nothing lies so low."""

    @classmethod
    def linear(cls, low: float, high: float, steps: int) -> Axis:
        """Return a linear axis that holds ``low`` and ``high``, with labels at round numbers at most ``steps`` apart.

        Example:
            >>> Axis.linear(0.0, 0.012, steps=4).labels
            ('0', '0.005', '0.01')
        """
        if high - low <= 1e-12 * max(abs(low), abs(high)):
            low, high = low - (MARGIN * abs(low) or MARGIN), high + (MARGIN * abs(high) or MARGIN)
        low, high = low - MARGIN * (high - low), high + MARGIN * (high - low)
        least = (high - low) / steps
        power = 10.0 ** floor(log10(least))
        step = power * next(step for step in STEPS if step * power >= least * (1 - 1e-9))
        ticks = tuple(step * k for k in range(ceil(low / step), floor(high / step) + 1))
        return cls(low, high, ticks, tuple(map(label, ticks)))

    @classmethod
    def of(cls, values: Float[np.ndarray, "p"]) -> Axis:
        """Return the axis that suits finite ``values``."""
        positive = values[values > 0]
        if len(positive) < 2 or values.min() < 0 or positive.max() < WIDE * positive.min():
            return cls.linear(float(values.min()), float(values.max()), ACROSS)
        least, most = floor(log10(positive.min())), ceil(log10(positive.max()))
        ticks = [10.0**power for power in range(least, most + 1, 1 + (most - least) // POWERS)]
        zeros = values.min() == 0
        ticks = [0.0, *ticks] if zeros else ticks
        scale = cls(0.0, 0.0, tuple(ticks), tuple(map(label, ticks)), ticks[1] if zeros else 0.0)
        ends = scale.scaled(np.array([values.min(), values.max()]))
        low, high = ends[0] - MARGIN * (ends[1] - ends[0]), ends[1] + MARGIN * (ends[1] - ends[0])
        labelled = scale.scaled(np.array(ticks))
        return cls(min(low, labelled[0]), max(high, labelled[-1]), scale.ticks, scale.labels, scale.first)

    def scaled(self, values: Float[np.ndarray, "p"]) -> Float[np.ndarray, "p"]:
        """Return ``values`` on the scale: themselves, or decades."""
        if self.first == inf:
            return values
        if not self.first:
            return np.log10(values)
        above = STRETCH + np.log10(np.maximum(values, self.first) / self.first)
        return np.where(values < self.first, STRETCH * values / self.first, above)

    def places(self, values: Float[np.ndarray, "p"]) -> Float[np.ndarray, "p"]:
        """Return the positions of ``values``, as a fraction of the axis.

        Example:
            >>> Axis.of(np.array([0.01, 1.0, 100.0])).places(np.array([1.0]))
            array([0.5])
        """
        return (self.scaled(values) - self.low) / (self.high - self.low)


def label(value: float) -> str:
    """Return a tick's label.

    Example:
        >>> label(0.001), label(1e-7), label(20.0), label(-3.0)
        ('0.001', '1e-7', '20', '−3')
    """
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        return f"{value:.4g}".replace("-", "−")
    mantissa, exponent = f"{value:.2g}".split("e") if "e" in f"{value:.2g}" else f"{value:.0e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def span(parts: Sequence[Float[np.ndarray, "p"]]) -> tuple[float, float]:
    """Return the smallest and the largest finite value of all ``parts``; 0 and 1 where there is none."""
    values = np.concatenate(parts)
    values = values[np.isfinite(values)]
    return (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)


# Text stays text, colours follow the page (light, dark, print), and nothing is loaded. Written by hand, in a millisecond
# each: a report of four encoders has hundreds, which took a plotting library a tenth of the time of all measurements.

COLOURS = 8
"""Number of colours in the style sheet."""
DASHES = ("solid", "dashed", "dotted", "dashdot")
PATTERNS = {"solid": "", "dashed": "5.2 2.2", "dotted": "1.4 2.3", "dashdot": "9 2.2 1.4 2.2"}
INK, RULE = "currentColor", "var(--rule)"
WIDTH, HEIGHT = 252.0, 172.8
"""Size of a drawing, in points."""
TOP, RIGHT, BOTTOM, LEFT = 13.8, 239.4, 134.8, 30.2
"""The ends of the axes; labels of many digits move the left one."""
FONT = 10.5
DIGIT = 0.64 * FONT
"""Points that a digit is wide, in the widest of common fonts."""
PAD = 4.0
"""Points between an axis and its labels."""
ASCENT = 0.76 * FONT
"""From the line that text stands on to the top of its capitals."""
FEW = 16
"""Number of points below which each is marked; the line only joins them."""
SHADES = [
    tuple(bytes.fromhex(shade))
    for shade in ("440154", "482878", "3e4a89", "31688e", "26828e", "1f9e89", "35b779", "6dcd59", "b4de2c", "fde725")
]
"""The colour map viridis, at equal distances; colours between are mixed."""
LEVELS = 63
"""Steps of the colour map: more than an eye tells apart in dots, and neighbours share a path."""


@final
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
    scattered: bool = False
    """Whether points are drawn without a line."""
    shades: Float[np.ndarray, "p"] | None = None
    """Source of the points' colour, if not the encoder."""


@final
@dataclass(frozen=True)
class Frame:
    """Two axes, and where they lie in the drawing."""

    across: Axis
    up: Axis
    left: float

    def x(self, values: Float[np.ndarray, "p"]) -> Float[np.ndarray, "p"]:
        """Return the positions of ``values`` in points from the left."""
        return self.left + self.across.places(values) * (RIGHT - self.left)

    def y(self, values: Float[np.ndarray, "p"]) -> Float[np.ndarray, "p"]:
        """Return the positions of ``values`` in points from the top."""
        return BOTTOM - self.up.places(values) * (BOTTOM - TOP)


def draw(lines: Sequence[Line], x_label: str, y_label: str, alt: str, share: bool = False) -> str:
    """Return an ``<svg>`` of the lines, described to screen readers by ``alt``; ``share`` fixes the y axis to [0, 1]."""
    frame = _frame(lines, y_label, share)
    body = "".join(part for line in lines for part in _drawn(line, frame))
    opening = f'<svg role="img" aria-label="{escape(alt)}" viewBox="0 0 {WIDTH:g} {HEIGHT:g}">'
    # Marks are drawn in whole tenths of a point, which take less room; what all lines share is written once.
    marks = f'<g transform="scale(.1)" style="fill:none;stroke-width:14">{_grid(frame)}{body}</g>'
    return f"{opening}{marks}{_words(frame, x_label, y_label, share)}</svg>"


def _frame(lines: Sequence[Line], y_label: str, share: bool) -> Frame:
    x = np.concatenate([line.x for line in lines])
    x = x[np.isfinite(x)]
    across = Axis.of(x if len(x) else np.array([0.0, 1.0]))
    low, high = span([part for line in lines for part in (line.y, *(line.band or ()))])
    if share or not y_label:
        ends = (-0.02, 1.02, (0.0, 0.5, 1.0), ("0", "½", "1")) if share else (low, high, (), ())
        return Frame(across, Axis(*ends), LEFT)
    up = Axis.linear(low, high, UP)
    room = 0.1 * 72 + DIGIT * max(map(len, up.labels), default=0)
    return Frame(across, up, max(LEFT, room))


def _drawn(line: Line, frame: Frame) -> Iterator[str]:
    colour = INK if line.colour is None else f"var(--e{line.colour % COLOURS})"
    if line.shades is not None:
        yield from _dots(line, frame, _shades(line.shades), 1.1)
    elif line.scattered:
        yield from _dots(line, frame, [f"{colour};stroke-opacity:.7"] * len(line.x), 1.9)
    else:
        for start, stop in _runs(line.x, line.y):
            lengths = " ".join(f"{10 * float(length):g}" for length in PATTERNS[line.dash].split())
            dash = f";stroke-dasharray:{lengths}" if lengths else ""
            path = _path(frame.x(line.x[start:stop]), frame.y(line.y[start:stop]), line.stepped)
            yield f'<path d="M{path}" style="stroke:{colour}{dash}"/>'
        if len(line.x) < FEW and not line.stepped and line.colour is not None:
            yield from _dots(line, frame, [colour] * len(line.x), 1.9)
    if line.band is not None:
        low, high = line.band
        for start, stop in _runs(line.x, low, high):
            x = frame.x(line.x[start:stop])
            there, back = _path(x, frame.y(high[start:stop])), _path(x[::-1], frame.y(low[start:stop])[::-1])
            yield f'<path d="M{there}L{back}Z" style="fill:{colour};fill-opacity:.15"/>'


def _dots(line: Line, frame: Frame, colours: Sequence[str], radius: float) -> Iterator[str]:
    """Yield a path for each run of dots of one colour: round ends of strokes without length."""
    dots = zip(colours, frame.x(line.x).tolist(), frame.y(line.y).tolist(), strict=True)
    finite = ((colour, round(10 * x), round(10 * y)) for colour, x, y in dots if np.isfinite(x + y))
    paths = "".join(
        f'<path style="stroke:{colour}" d="{_strokes([(x, y) for _, x, y in run])}"/>'
        for colour, run in groupby(finite, key=lambda dot: dot[0])
    )
    yield f'<g stroke-width="{20 * radius:g}" stroke-linecap="round">{paths}</g>' if paths else ""


def _strokes(dots: Sequence[tuple[int, int]]) -> str:
    """Return strokes without length at places in tenths of a point, each relative to the one before.

    Example:
        >>> _strokes([(1068, 1007), (1059, 1012)])
        'M1068 1007h0m-9 5h0'
    """
    x, y = dots[0]
    parts = [f"M{x} {y}h0"]
    for to_x, to_y in dots[1:]:
        parts.append(f"m{to_x - x} {to_y - y}h0".replace(" -", "-"))
        x, y = to_x, to_y
    return "".join(parts)


def _runs(*values: Float[np.ndarray, "p"]) -> Iterator[tuple[int, int]]:
    """Yield the beginning and end of each stretch of points that are all finite."""
    finite = np.isfinite(values).all(axis=0)
    edges = np.flatnonzero(np.diff(np.concatenate([[0], finite, [0]])))
    yield from zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)


def _path(x: Float[np.ndarray, "p"], y: Float[np.ndarray, "p"], stepped: bool = False) -> str:
    """Return points as a path goes through them, in tenths of a point; a stepped one goes across, then up.

    Steps are relative, counted in whole tenths so that rounding does not add up.
    """
    across, up = (np.round(10 * part).astype(int) for part in (x, y))
    steps = [(a, b) for a, b in zip(np.diff(across).tolist(), np.diff(up).tolist(), strict=True) if a or b]
    if stepped:
        steps = [part for a, b in steps for part in ((a, 0), (0, b)) if any(part)]
    straight: list[tuple[int, int]] = []
    for a, b in steps:  # steps that go on straight across, or straight up, are one
        before = straight[-1] if straight else (0, 0)
        if (not b and not before[1] and a * before[0] > 0) or (not a and not before[0] and b * before[1] > 0):
            straight[-1] = before[0] + a, before[1] + b
        else:
            straight.append((a, b))
    path, last = f"{across[0]} {up[0]}", ""
    for a, b in straight:
        command = "l" if a and b else "h" if a else "v"
        numbers = " ".join(str(part) for part in (a, b) if part)
        # A letter need not be repeated, and a sign separates as well as a space.
        joint = command if command != last else "" if numbers.startswith("-") else " "
        path, last = f"{path}{joint}{numbers}".replace(" -", "-"), command
    return path


def _shades(values: Float[np.ndarray, "p"]) -> list[str]:
    """Return the colour of each value, from the darkest for the smallest to the brightest for the largest."""
    low, high = span([values])
    places = np.round(np.clip((values - low) / ((high - low) or 1.0), 0, 1) * LEVELS) / LEVELS * (len(SHADES) - 1)
    channels = [np.interp(places, np.arange(len(SHADES)), channel) for channel in zip(*SHADES, strict=True)]
    return ["#{:02x}{:02x}{:02x}".format(*colour) for colour in np.stack(channels, 1).round().astype(int).tolist()]


def _grid(frame: Frame) -> str:
    top, bottom, left, right = (round(10 * end) for end in (TOP, BOTTOM, frame.left, RIGHT))
    across = "".join(f"M{round(10 * x)} {top}V{bottom}" for x in frame.x(np.array(frame.across.ticks)).tolist())
    up = "".join(f"M{left} {round(10 * y)}H{right}" for y in frame.y(np.array(frame.up.ticks)).tolist())
    return f'<path d="{across}{up}" style="stroke:{RULE};stroke-width:6"/>'


def _words(frame: Frame, x_label: str, y_label: str, share: bool) -> str:
    below, right = BOTTOM + PAD + ASCENT, frame.left - PAD
    middle = [
        _text(x, below, said)
        for x, said in zip(frame.x(np.array(frame.across.ticks)).tolist(), frame.across.labels, strict=True)
    ]
    middle.append(_text((frame.left + RIGHT) / 2, below + PAD + 1.2 * FONT, x_label))
    end = [
        _text(right, y + ASCENT / 2, said)
        for y, said in zip(frame.y(np.array(frame.up.ticks)).tolist(), frame.up.labels, strict=True)
    ]
    start = [_text(frame.left, TOP - PAD, y_label)] if y_label and not share else []
    anchored = {"middle": middle, "end": end, "start": start}
    groups = (f'<g style="text-anchor:{where}">{"".join(texts)}</g>' for where, texts in anchored.items() if texts)
    return f'<g font-size="{FONT}" style="fill:{INK}">{"".join(groups)}</g>'


def _text(x: float, y: float, words: str) -> str:
    return f'<text x="{round(x, 1):g}" y="{round(y, 1):g}">{escape(words)}</text>' if words else ""
