"""Smooth functions of one variable, bounded by two lines over an interval.

A line of any slope ``k`` lies below ``f`` once its constant is ``min f(x) - k x``, which is attained at an end or where
``f' = k``; between two inflections ``f'`` is monotone, so bisection finds the only such point. The slopes themselves
need no proof: they are those of the concave (convex) envelope on a grid, which minimise the area between the lines.
Kinks are inflections one of whose sides is a line: there every extreme is at an end. Mish: Misra 2019,
https://arxiv.org/abs/1908.08681; Hardswish: Howard et al. 2019, https://arxiv.org/abs/1905.02244.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from math import exp, inf, log1p, pi, sqrt

import torch
from torch import Tensor
from torch.nn import functional

from holdfast.bounds.relaxations.rules import Box, LinearRelaxation, Rule, Values

HALF = 4  # grid cells on either side of the middle
BISECTIONS = 60


@dataclass(frozen=True)
class Curve:
    """``function`` with its ``derivative``, its inflections ``bends`` and the points ``turns`` where its slope is 0."""

    function: Callable[[Tensor], Tensor]
    derivative: Callable[[Tensor], Tensor]
    bends: tuple[float, ...] = ()
    turns: tuple[float, ...] = ()
    domain: float = -inf
    """The function is defined above this value alone."""
    jump: float = 0.0
    """The function may lie this far from one with that derivative."""

    def rule(self) -> Rule:
        return Rule(self.function, self.interval, self.relax, lambda box: box.lower < box.upper)

    def interval(self, box: Box) -> Box:
        ends = [self._at(point.clamp(*box)) for point in (*box, *self._constants(self.turns, box.lower))]
        values = torch.stack(ends)
        return Box(*_outward(values.amin(0) - self.jump, values.amax(0) + self.jump, torch.zeros_like(box.lower)))

    def relax(self, box: Box) -> LinearRelaxation:
        lower, upper = self._slopes(box, -1), self._slopes(box, 1)
        floor, _ = _outward(*self._extremes(box, lower), self._reach(box, lower))
        _, ceiling = _outward(*self._extremes(box, upper), self._reach(box, upper))
        return LinearRelaxation((lower,), (upper,), floor, ceiling)

    @staticmethod
    def _reach(box: Box, slope: Values) -> Values:
        """Return the size of ``slope * x``, whose rounding the constants inherit."""
        return slope.abs() * torch.maximum(box.lower.abs(), box.upper.abs())

    def _at(self, x: Values) -> Values:
        """Return the function's values, NaN outside its domain."""
        return torch.where(x >= self.domain, self.function(x), torch.nan)

    @staticmethod
    def _constants(points: tuple[float, ...], like: Values) -> list[Tensor]:
        return [torch.full_like(like, point) for point in points]

    def _slopes(self, box: Box, sign: int) -> Values:
        """Return the slope at the middle of the concave envelope of ``sign * f`` on a grid (the line above), signed."""
        low, high = box
        steps = torch.linspace(0, 1, 2 * HALF + 1, dtype=low.dtype, device=low.device)
        grid = low[..., None] + (high - low)[..., None] * steps
        values = sign * self._at(grid)
        left, middle, right = values.split([HALF, 1, HALF], -1)
        # The value at the middle of each chord from a grid point on the left to one on the right.
        i, j = steps[:HALF, None], steps[HALF + 1 :]
        rise = right[..., None, :] - left[..., :, None]
        height = left[..., :, None] + rise * (0.5 - i) / (j - i)
        best = height.flatten(-2).max(-1)
        width = (high - low)[..., None]
        slope = (rise / (j - i)).flatten(-2).gather(-1, best.indices[..., None]) / width
        tangent = sign * self.derivative(grid[..., HALF : HALF + 1])
        usable = (best.values[..., None] > middle) & slope.isfinite()
        return sign * torch.where(usable, slope, tangent).squeeze(-1)

    def _extremes(self, box: Box, slope: Values) -> tuple[Values, Values]:
        """Return the least and the greatest value of ``f(x) - slope * x`` over the box."""
        ends = [self._constants((bend,), box.lower)[0].clamp(*box) for bend in (-inf, *self.bends, inf)]
        points = [*ends, *(self._tangent(a, b, slope) for a, b in pairwise(ends))]
        gaps = torch.stack([self._at(x) - slope * x for x in points])
        return gaps.amin(0) - self.jump, gaps.amax(0) + self.jump

    def _tangent(self, low: Values, high: Values, slope: Values) -> Values:
        """Return the point between ``low`` and ``high``, where ``f'`` is monotone, at which ``f' = slope``, or an end."""
        rising = self.derivative(high) >= self.derivative(low)
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            beyond = (self.derivative(middle) > slope) == rising
            low, high = torch.where(beyond, low, middle), torch.where(beyond, middle, high)
        return (low + high) / 2


def _outward(low: Values, high: Values, size: Values) -> tuple[Values, Values]:
    """Return the two moved apart by more than the rounding of evaluating a function plus something of ``size``."""
    slack = 16 * torch.finfo(low.dtype).eps
    return low - slack * (1 + low.abs() + size), high + slack * (1 + high.abs() + size)


def _normal(x: Tensor) -> Tensor:
    return torch.exp(-x * x / 2) / sqrt(2 * pi)


def _normal_share(x: Tensor) -> Tensor:
    return (1 + torch.erf(x / sqrt(2))) / 2


def _silu_slope(x: Tensor) -> Tensor:
    s = torch.sigmoid(x)
    return s * (1 + x * (1 - s))


def _gelu_tanh_slope(x: Tensor) -> Tensor:
    a, b = sqrt(2 / pi), 0.044715
    t = torch.tanh(a * (x + b * x**3))
    return (1 + t) / 2 + x / 2 * (1 - t * t) * a * (1 + 3 * b * x * x)


def _mish_slope(x: Tensor) -> Tensor:
    t = torch.tanh(functional.softplus(x))
    return t + x * (1 - t * t) * torch.sigmoid(x)


def _hardswish_slope(x: Tensor) -> Tensor:
    # At its ends, that of the parabola: the other side of each is a line, where any slope finds an end.
    return torch.where(x < -3, 0.0, torch.where(x > 3, 1.0, x / 3 + 0.5))


def elu(alpha: float) -> Rule:
    """``x`` above zero, ``alpha * (exp(x) - 1)`` below (Clevert et al. 2015, https://arxiv.org/abs/1511.07289)."""

    def slope(x: Tensor) -> Tensor:
        return torch.where(x > 0, 1.0, alpha * torch.exp(x.clamp_max(0)))

    return Curve(partial(functional.elu, alpha=alpha), slope, (0.0,), (0.0,)).rule()


def softplus(threshold: float) -> Rule:
    """``log(1 + exp(x))``, but ``x`` itself above the threshold, as torch computes it."""
    jump = log1p(exp(-threshold))
    return Curve(partial(functional.softplus, threshold=threshold), torch.sigmoid, jump=jump).rule()


CURVES = {
    "sigmoid": Curve(torch.sigmoid, lambda x: torch.sigmoid(x) * torch.sigmoid(-x), (0.0,)),
    "log_sigmoid": Curve(functional.logsigmoid, lambda x: torch.sigmoid(-x)),
    "tanh": Curve(torch.tanh, lambda x: 1 - torch.tanh(x) ** 2, (0.0,)),
    "gelu": Curve(
        functional.gelu, lambda x: _normal_share(x) + x * _normal(x), (-sqrt(2), sqrt(2)), (-0.7517915246935646,)
    ),
    "gelu_tanh": Curve(
        partial(functional.gelu, approximate="tanh"),
        _gelu_tanh_slope,
        (-1.418504008790828, 1.418504008790828),
        (-0.7524614220710163,),
    ),
    "silu": Curve(functional.silu, _silu_slope, (-2.399357280515468, 2.399357280515468), (-1.278464542761074,)),
    "mish": Curve(functional.mish, _mish_slope, (-2.256376396360793, 1.490571179485428), (-1.192431214515495,)),
    "hardswish": Curve(functional.hardswish, _hardswish_slope, (-3.0, 3.0), (-1.5,)),
    "exp": Curve(torch.exp, torch.exp),
    "square": Curve(torch.square, lambda x: 2 * x, turns=(0.0,)),
    "sqrt": Curve(torch.sqrt, lambda x: 0.5 / torch.sqrt(x), domain=0.0),
    "reciprocal": Curve(
        lambda x: torch.where(x > 0, 1 / x, torch.nan), lambda x: -1 / (x * x), domain=torch.finfo(torch.float64).tiny
    ),
    "rsqrt": Curve(
        lambda x: torch.where(x > 0, torch.rsqrt(x), torch.nan),
        lambda x: -0.5 * x**-1.5,
        domain=torch.finfo(torch.float64).tiny,
    ),
}
