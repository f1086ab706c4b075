"""Linear bounds of nonlinear operations over boxes and balls.

Each operation has an interval, and linear functions below and above it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from math import exp, inf, log1p, pi, sqrt
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

# Relaxations as data: for each nonlinear operation its interval, and linear bounds below and above it.
#
# Over a box of inputs each operation satisfies ``sum_i lower_i x_i + floor <= f(x) <= sum_i upper_i x_i + ceiling``,
# entry by entry. Sources: Zhang et al. 2018 (CROWN), https://arxiv.org/abs/1811.00866; products, McCormick 1976.
# A box that is not finite gives linear bounds that are not finite, never bounds that hold by accident.

Values = Float[Tensor, "b ..."]


class Box(NamedTuple):
    """Bounds on a node's values."""

    lower: Values
    upper: Values


class LinearRelaxation(NamedTuple):
    """Linear bounds on an operation's output: one slope for each input, and constants (None: zero).

    Slopes may have one entry for each value of the node, or for each coefficient of the form that they multiply.
    """

    lower: tuple[Float[Tensor, "..."], ...]
    upper: tuple[Float[Tensor, "..."], ...]
    floor: Float[Tensor, "..."] | None
    ceiling: Float[Tensor, "..."] | None
    unstable: Bool[Tensor, "..."] | None = None
    """Mask of unstable ReLUs, where every lower slope in [0, 1] through the origin is sound."""


@dataclass(frozen=True)
class Rule:
    """Rule of bound propagation for a nonlinear operation."""

    function: Callable[..., Tensor]
    interval: Callable[..., Box]
    relax: Callable[..., LinearRelaxation]
    nonlinear: Callable[[Box], Tensor] = lambda box: box.lower < box.upper
    """Mask of entries that are not affine over the box, so that a tighter box changes their relaxation."""


def relu_relaxation(box: Box) -> LinearRelaxation:
    """The chord above; below, the line through the origin of slope 1 or 0 that leaves the smaller triangle."""
    low, high = box
    active, dead = low >= 0, high <= 0
    # A box that overflows, or whose width does, has no chord.
    width = high - low
    # Where there is no chord the width may be 0, and would make gradients of the others not a number.
    chord = torch.where(active, 1.0, torch.where(dead, 0.0, high / torch.where(active | dead, 1.0, width)))
    chord = torch.where(width.isfinite(), chord, torch.nan)
    ceiling = torch.where(active | dead, 0.0, -chord * low)
    below = torch.where(active | dead | chord.isnan(), chord, (high > -low).to(low.dtype))
    return LinearRelaxation((below,), (chord,), None, ceiling, unstable=~(active | dead | chord.isnan()))


def product_box(x: Box, y: Box) -> Box:
    corners = torch.stack([a * b for a in x for b in y])
    return Box(corners.amin(0), corners.amax(0))


def product_relaxation(x: Box, y: Box) -> LinearRelaxation:
    """The mean of McCormick's two planes below, and that of his two above."""
    middle = [(box.lower + box.upper) / 2 for box in (x, y)]
    below = -(x.lower * y.lower + x.upper * y.upper) / 2
    above = -(x.upper * y.lower + x.lower * y.upper) / 2
    return LinearRelaxation((middle[1], middle[0]), (middle[1], middle[0]), below, above)


RELU = Rule(
    function=torch.relu,
    interval=lambda box: Box(box.lower.clamp_min(0), box.upper.clamp_min(0)),
    relax=relu_relaxation,
    nonlinear=lambda box: ~((box.lower >= 0) | (box.upper <= 0)),
)
PRODUCT = Rule(torch.mul, product_box, product_relaxation)


# Smooth functions of one variable, bounded by two lines over an interval.
#
# A line of any slope ``k`` lies below ``f`` once its constant is ``min f(x) - k x``, which is attained at an end or
# where ``f' = k``; between two inflections ``f'`` is monotone, so bisection finds the only such point. The slopes
# themselves need no proof: they are those of the concave (convex) envelope on a grid, which minimise the area between
# the lines. Kinks are inflections one of whose sides is a line: there every extreme is at an end. Mish: Misra 2019,
# https://arxiv.org/abs/1908.08681; Hardswish: Howard et al. 2019, https://arxiv.org/abs/1905.02244.

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
        return Rule(self.function, self.interval, self.relax)

    def interval(self, box: Box) -> Box:
        turns = (torch.full_like(box.lower, turn) for turn in self.turns)
        values = torch.stack([self._at(point.clamp(*box)) for point in (*box, *turns)])
        return Box(*_outward(values.amin(0) - self.jump, values.amax(0) + self.jump, torch.zeros_like(box.lower)))

    def relax(self, box: Box) -> LinearRelaxation:
        lower, upper = self._slopes(box, -1), self._slopes(box, 1)
        largest = torch.maximum(box.lower.abs(), box.upper.abs())
        # The constants inherit the rounding of ``slope * x``.
        floor, _ = _outward(*self._extremes(box, lower), lower.abs() * largest)
        _, ceiling = _outward(*self._extremes(box, upper), upper.abs() * largest)
        return LinearRelaxation((lower,), (upper,), floor, ceiling)

    def _at(self, x: Values) -> Values:
        """Return the function's values, NaN outside its domain."""
        return torch.where(x >= self.domain, self.function(x), torch.nan)

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
        ends = [torch.full_like(box.lower, bend).clamp(*box) for bend in (-inf, *self.bends, inf)]
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


def _gelu_slope(x: Tensor) -> Tensor:
    share, density = (1 + torch.erf(x / sqrt(2))) / 2, torch.exp(-x * x / 2) / sqrt(2 * pi)
    return share + x * density


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
    "gelu": Curve(functional.gelu, _gelu_slope, (-sqrt(2), sqrt(2)), (-0.7517915246935646,)),
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


# Averages weighted by a softmax, as attention computes them: their exact range over boxes of scores and of values.
#
# Over scores ``l <= s <= u``, ``sum_i v_i softmax_i(s)`` is least at a vertex: each score moves the average towards
# its own value, so that values below the least average have their score at ``u``, the others at ``l``. Sorted by
# value, that leaves n + 1 thresholds to try (https://arxiv.org/abs/2605.10974). Weights are never negative, so over
# boxes of values the least average is that of the least values: together the range is exact, which the box of a sum
# of products is far from, because it does not know that weights sum to 1.

FAR = 1000.0
"""Scores that are so much lower than others have no weight in float64."""


def least_averages(
    low: Float[Tensor, "... q k"], high: Float[Tensor, "... q k"], values: Float[Tensor, "... k d"]
) -> Float[Tensor, "... q d"]:
    """Return the least ``softmax(s) @ values`` over all scores ``s`` from ``low`` to ``high``, or a little less.

    Scores of minus infinity take no part. Where a score may be anything, the least value is returned.

    Example:
        >>> box = torch.tensor([[-1.0, 0.0]]), torch.tensor([[1.0, 0.0]])
        >>> least_averages(*box, torch.tensor([[0.0], [1.0]]))  # 1 / (1 + e)
        tensor([[0.2689]])
    """
    least = values.amin(-2, keepdim=True)
    ordered, order = (values - least).sort(-2)
    # One weight for each query, key and feature, keys in the order of the feature's values; as logarithms, for scores
    # far below others decide where those are left out.
    shape = torch.broadcast_shapes(low.shape[:-2], values.shape[:-2])
    queries, place = low.shape[-2], order.mT.expand(*shape, *order.mT.shape[-2:])[..., None, :, :]
    place = place.expand(*shape, queries, *place.shape[-2:])
    tiny = torch.finfo(low.dtype).tiny
    heights = (ordered.mT + tiny).log()[..., None, :, :]  # zero has a logarithm without a derivative
    small, large = (
        end.expand(*shape, *end.shape[-2:])[..., :, None, :].expand_as(place).gather(-1, place) for end in (low, high)
    )
    total = torch.logaddexp(_before(large), _after(small))
    ratio = torch.exp(torch.logaddexp(_before(large + heights), _after(small + heights)) - total)
    spread = torch.where(small.isfinite(), small, large).abs().amax((-2, -1)) + large.abs().amax((-2, -1))
    room = 8 * (low.shape[-1] + 8 + spread[..., None]) * torch.finfo(low.dtype).eps
    average = least + ratio.amin(-1) * (1 - room)
    average = average - room * (least.abs() + average.abs()) - 2 * tiny
    return torch.where(average.isfinite() & ratio.isfinite().all(-1), average, least.expand_as(average))


def _before(terms: Float[Tensor, "... k"]) -> Float[Tensor, "... k1"]:
    """Return the logarithms of the sums of the first 0, 1, ... k terms, of which the logarithms are given."""
    return torch.cat([torch.full_like(terms[..., :1], -torch.inf), terms.logcumsumexp(-1)], -1)


def _after(terms: Float[Tensor, "... k"]) -> Float[Tensor, "... k1"]:
    """Return the same of the last k, k - 1, ... 0 terms, added up themselves, since differences of sums lose digits."""
    return _before(terms.flip(-1)).flip(-1)


def averages_box(scores: Box, values: Box, kept: Bool[Tensor, "... q k"] | None = None) -> Box:
    """Return the range of ``softmax(s) @ v`` over boxes of scores and values; ``kept`` are the scores that take part."""
    if kept is not None:
        # Of weight zero beside any other, yet finite, so that gradients are.
        lowest = scores.lower.detach().amin(-1, keepdim=True) - FAR
        scores = Box(*(torch.where(kept, end, lowest) for end in scores))
    return Box(least_averages(*scores, values.lower), -least_averages(*scores, -values.upper))


def average_rule(kept: Bool[Tensor, "... q k"] | None) -> Rule:
    """Return the rule of an average that is there already, and is known to lie in the range that its parts allow.

    Below, the value itself, or the end of the range where that is nearer to the middle of what is known without it.
    """

    def interval(average: Box, scores: Box, values: Box) -> Box:
        box = averages_box(scores, values, kept)
        low, high = box.lower.nan_to_num(nan=-torch.inf), box.upper.nan_to_num(nan=torch.inf)
        # Where products overflow, what scores and values say remains.
        return Box(torch.fmax(average.lower, low), torch.fmin(average.upper, high))

    def relax(average: Box, scores: Box, values: Box) -> LinearRelaxation:
        low, high = interval(average, scores, values)
        below = (low - average.lower) <= (high - low)
        above = (average.upper - high) <= (high - low)
        slopes = [side.to(low.dtype) for side in (below, above)]
        # An average that is not finite stays so, whatever is known of it.
        floor, ceiling = (
            torch.where(side, 0.0, end) + 0.0 * average.lower * average.upper
            for side, end in ((below, low), (above, high))
        )
        return LinearRelaxation((slopes[0],), (slopes[1],), floor, ceiling)

    return Rule(lambda average, *_: average, interval, relax)


# ReLUs over a ball of their inputs: the constant of a linear bound of many neurons together.
#
# For ``z`` in a box ``[l, u]`` and in a ball ``|z - c| <= r``, any slopes ``g`` and any multiplier ``t > 0``,
#
#     a . relu(z) >= g . z + sum_i m_i(t) - t r^2 / 2,   m_i(t) = min over z_i in [l_i, u_i] of
#                                                        a_i relu(z_i) - g_i z_i + t/2 (z_i - c_i)^2.
#
# Proof: ``t/2 (|z - c|^2 - r^2)`` is not positive in the ball, so that adding it to ``a . relu(z) - g . z`` can only
# lower that; the sum falls apart into neurons, and a minimum of a sum over a box is the sum of minima. Without the
# box,
#
#     m_i(t) = t c_i^2 / 2 - min(a_i - g_i - t c_i, g_i + t c_i, 0)^2 / (2 t),
#
# which is the constant of SDP-CROWN (Chiu et al. 2025, https://arxiv.org/abs/2506.06665, theorem 4.1). With the box,
# the limit ``t -> 0`` is the constant that CROWN has for the same slopes, so that the best ``t`` serves as the
# tighter of the two or better. On either side of zero ``m_i`` is the minimum of a parabola over an interval: its
# vertex, clamped. The sum is concave in ``t``; its slope, ``(|z - c|^2 - r^2) / 2`` at the minimiser ``z``, falls,
# and bisection finds where it is zero.

OFFSET_BISECTIONS = 13
SMALLEST = 1e-9
"""The smallest multiplier, as a fraction of the one at which the ball no longer binds: as good as none."""


class ReluForm(NamedTuple):
    """``a . relu(z) - g . z`` of the inputs ``z`` of ReLUs in a ``box``, looked at around a ``centre``."""

    a: Float[Tensor, "*f n"]
    g: Float[Tensor, "*f n"]
    box: Box
    centre: Float[Tensor, "*#f n"]

    def least(self, radius: Float[Tensor, "*#f"], rounding: float = 0.0) -> Float[Tensor, "*f"]:
        """Return a lower bound over the ``z`` in the box and in a ball; minus infinity or nan claims nothing.

        Its gradients by ``a`` and ``g`` are those at the best multiplier.

        Args:
            radius: of the ball around the centre.
            rounding: what rounding may add to the sum, as a fraction of the sizes of its terms: it is subtracted.
        """
        a, g, box, centre = self
        with torch.no_grad():
            t = self.best_multiplier(radius)[..., None]
            z = self.minimiser(t)
        far = (z - centre) * (z - centre)
        total = (a * z.clamp_min(0) - g * z + t / 2 * far).sum(-1) - t[..., 0] / 2 * radius * radius
        with torch.no_grad():
            largest = torch.maximum(box.lower.abs(), box.upper.abs())
            sizes = ((a.abs() + g.abs()) * largest + t * (largest + centre.abs()) ** 2).sum(-1)
            sizes = sizes + t[..., 0] * radius * radius
        return total - rounding * sizes

    def best_multiplier(self, radius: Float[Tensor, "*#f"]) -> Float[Tensor, "*f"]:
        """Return the multiplier that makes the constant largest, or one close to it: every choice is sound."""
        # Where no neuron gains more by moving than the parabola takes, the minimiser lies in the ball.
        steepest = torch.maximum((self.a - self.g).abs(), self.g.abs()).norm(dim=-1)
        least = torch.finfo(self.a.dtype).eps * (1 + self.centre.norm(dim=-1))
        high = (2 * steepest / torch.maximum(radius, least)).clamp_min(torch.finfo(self.a.dtype).tiny ** 0.5)
        low = high * SMALLEST
        for _ in range(OFFSET_BISECTIONS):
            middle = low.sqrt() * high.sqrt()
            outside = (self.minimiser(middle[..., None]) - self.centre).norm(dim=-1) > radius
            low, high = torch.where(outside, middle, low), torch.where(outside, high, middle)
        return low.sqrt() * high.sqrt()

    def minimiser(self, t: Float[Tensor, "*#f 1"]) -> Float[Tensor, "*f n"]:
        """Return for each neuron where ``a relu(z) - g z + t/2 (z - c)^2`` is smallest in its box."""
        low, high = self.box

        def lowest(slope: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
            """Return the minimiser of ``slope z + t/2 (z - c)^2`` between ``low`` and ``high``, and the minimum."""
            z = torch.minimum(torch.maximum(self.centre - slope / t, low), high)
            return z, slope * z + t / 2 * (z - self.centre) ** 2

        above, value_above = lowest(self.a - self.g, low.clamp_min(0), high)
        below, value_below = lowest(-self.g, low, high.clamp_max(0))
        return torch.where((value_above < value_below) & (high > 0) | (low >= 0), above, below)
