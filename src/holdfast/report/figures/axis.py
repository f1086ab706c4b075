"""One axis of a plot: where numbers stand on it, and which of them are labelled.

Linear; logarithmic for values over more than two decades; and logarithmic with a linear stretch of its own for zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, inf, log10
from typing import final

import numpy as np
from jaxtyping import Float

MARGIN = 0.05
"""The share of an axis that is free before the first and after the last value."""
STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
"""Between labelled values, times a power of ten."""
WIDE = 100
"""How many times the smallest positive value the largest is on a logarithmic axis."""
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
    def linear(cls, low: float, high: float, steps: int, margin: float = MARGIN) -> Axis:
        """Return a linear axis that holds ``low`` and ``high``, with labels at round numbers at most ``steps`` apart.

        Example:
            >>> Axis.linear(0.0, 0.012, steps=4).labels
            ('0', '0.005', '0.01')
        """
        if high - low <= 1e-12 * max(abs(low), abs(high)):
            low, high = low - (MARGIN * abs(low) or MARGIN), high + (MARGIN * abs(high) or MARGIN)
        low, high = low - margin * (high - low), high + margin * (high - low)
        step = _step((high - low) / steps)
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
        """Return where ``values`` stand, as a share of the axis.

        Example:
            >>> Axis.of(np.array([0.01, 1.0, 100.0])).places(np.array([1.0]))
            array([0.5])
        """
        return (self.scaled(values) - self.low) / (self.high - self.low)


def _step(least: float) -> float:
    """Return the smallest round number that is not below ``least``."""
    power = 10.0 ** floor(log10(least))
    return power * next(step for step in STEPS if step * power >= least * (1 - 1e-9))


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
