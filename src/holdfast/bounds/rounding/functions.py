"""Functions of single entries, softmax and normalisation: as accurate as torch's are said and tested to be."""

from __future__ import annotations

from collections.abc import Callable
from math import exp, inf, log1p, prod
from typing import Any

import torch
from torch import Tensor

from holdfast.bounds.rounding.steps import Execution, Values
from holdfast.bounds.rounding.sums import batch_norm, entries_of

ULPS: dict[str, tuple[int, Callable[[Values, Values], Values]]] = {
    "exp": (4, lambda x, y: y),
    "sigmoid": (8, lambda x, y: y),
    "tanh": (8, lambda x, y: y),
    "log_sigmoid": (8, lambda x, y: y),
    "softplus": (8, lambda x, y: y),
    "gelu": (16, lambda x, y: y + x),
    "silu": (8, lambda x, y: y + x),
    "mish": (32, lambda x, y: y + x),
    "hardswish": (8, lambda x, y: y + x),
    "hardsigmoid": (8, lambda x, y: y + 1),
    "elu": (8, lambda x, y: y + 1),
    "selu": (8, lambda x, y: y + 2),
    "celu": (8, lambda x, y: y + 1),
    "sqrt": (2, lambda x, y: y),
    "rsqrt": (4, lambda x, y: y),
    "reciprocal": (3, lambda x, y: y),
    "square": (2, lambda x, y: y),
    "pow": (6, lambda x, y: y),
    "leaky_relu": (3, lambda x, y: y),
    "prelu": (3, lambda x, y: y),
}
"""Of each function of single entries how many unit roundoffs its result may be off, of a size made of |x| and |f(x)|.

For functions whose factor ``alpha`` scales what is below zero, and whose ``beta`` their input, the size grows with these.
"""


BETWEEN = ("rsqrt", "pow")
"""Functions whose intermediate results torch rounds to half precision in some of its loops."""
ROOM = 16
"""How many times the largest number a function may hold on the way to its result."""


def function(x: Execution) -> Values:
    roundings, scale = ULPS[x.step.name]
    entries = x.operand(0)
    assert isinstance(entries, Tensor)
    values, factor, jump = x.values, 1.0, 0.0
    if x.step.name in ("elu", "celu"):
        factor = 1 + sum(abs(float(v)) for v in (*x.step.arguments[1:], *x.step.settings.values()))
    if x.step.name == "softplus":
        beta, threshold = x.argument(1, "beta", 1.0), x.argument(2, "threshold", 20.0)
        jump = log1p(exp(-threshold * 0.99)) / beta  # the side of the threshold is decided in rounded numbers
        # A rounded product with beta moves the argument of the exponential.
        factor = 1 + abs(float(beta)) + 1 / abs(float(beta))
        values = values + entries
    if x.step.name == "celu":
        factor = factor + 1 / abs(float(x.argument(1, "alpha", 1.0)))
        values = values + entries
    if x.step.name in ("elu", "selu"):
        values = values + entries
    # Products on the way to a result may overflow before it does.
    overflow = torch.where(ROOM * entries > x.sums.largest, inf, 0.0)
    worst = x.sums.gamma(roundings) * factor * scale(entries, values)
    if x.step.name in BETWEEN and x.sums != x.result:
        worst = worst + x.result.gamma(2) * x.values
    return x.rounded(worst + overflow + jump + (roundings + 1) * max(x.sums.tiny, x.result.tiny))


def softmax(x: Execution) -> Values:
    """Maximum, differences, exponentials, their sum, a quotient: all but the first are rounded."""
    low, high = x.box(x.argument(0))
    axis = int(x.argument(1, "dim", -1)) % (low.ndim - 1) + 1
    span = high.amax(axis, keepdim=True) - low.amin(axis, keepdim=True)
    n = low.shape[axis]
    share = 2 * (x.sums.unit * span * 1.01 + x.sums.gamma(8)) + x.sums.gamma(n + 4)
    share = torch.where(share < 0.25, share / (1 - 2 * share), inf)
    return x.rounded(share * x.values + (n + 4) * max(x.sums.tiny, x.result.tiny))


def norm(x: Execution) -> Values:
    """``sqrt(sum of squares)``; squares that underflow are lost, and may not overflow."""
    n = entries_of(x)
    error = x.sums.gamma(n + 6) * x.values + (2 * n * x.sums.tiny) ** 0.5
    error = torch.where((x.values + error) ** 2 * 1.01 > x.sums.largest, inf, error)
    return x.rounded(error)


def _normalised(x: Execution, axes: tuple[int, ...], eps: float, groups: int = 0) -> Values:
    """``(x - mean) / sqrt(variance + eps)``, the variance perhaps as the difference of two moments."""
    box = x.box(x.argument(0))
    low, high = box
    if groups:
        low, high = (end.unflatten(2, (groups, -1)).flatten(3) for end in box)
        axes = (-1,)
    largest = torch.maximum(low.abs(), high.abs()).amax(axes, keepdim=True)
    n = prod(low.shape[axis] for axis in axes)
    below, above = low - high.mean(axes, keepdim=True), high - low.mean(axes, keepdim=True)
    inside = (below <= 0) & (above >= 0)
    least = torch.where(inside, 0.0, torch.minimum(below.abs(), above.abs()).square()).mean(axes, keepdim=True) * 0.999
    moved = 4 * x.sums.gamma(n + 8) * largest.square() + n * x.sums.tiny
    room = least + eps
    share = torch.where(moved < room / 2, moved / room + x.sums.gamma(8), inf)
    scale = (room - moved).clamp_min(0).rsqrt() * (1 + 2.0**-10)
    # No centred value exceeds sqrt(n) deviations.
    error = share * n**0.5 + x.sums.gamma(n + 8) * 2 * largest * scale + 4 * x.sums.tiny
    error = torch.where(2 * n * largest.square() > x.sums.largest, inf, error).expand_as(low)
    if groups:
        error = error.reshape(box.lower.shape)
    return error


def _affine_after(x: Execution, normal: Values, weight: Any, bias: Any, most: float) -> Values:
    """Return the error after a factor and a constant for each entry, ``normal`` being that of what they are applied to."""
    factor = 1.0 if weight is None else weight.abs()
    constant = 0.0 if bias is None else bias.abs()
    error = normal * factor + x.sums.gamma(6) * (most * factor + constant)
    return x.rounded(error, x.values + constant)


def layer_norm(x: Execution) -> Values:
    shape, weight, bias = x.argument(1, "normalized_shape"), x.argument(2, "weight"), x.argument(3, "bias")
    normal = _normalised(x, tuple(range(-len(shape), 0)), float(x.argument(4, "eps", 1e-5)))
    return _affine_after(x, normal, weight, bias, prod(shape) ** 0.5)


def group_norm(x: Execution) -> Values:
    groups, weight, bias = (x.argument(k, name) for k, name in ((1, "num_groups"), (2, "weight"), (3, "bias")))
    return _by_groups(x, int(groups), weight, bias, float(x.argument(4, "eps", 1e-5)))


def _by_groups(x: Execution, groups: int, weight: Any, bias: Any, eps: float) -> Values:
    normal = _normalised(x, (), eps, groups)
    axes = (-1,) + (1,) * (x.values.ndim - 3)
    weight, bias = (None if part is None else part.reshape(axes) for part in (weight, bias))
    n = prod(x.values.shape[2:]) / groups
    return _affine_after(x, normal, weight, bias, n**0.5)


def instance_norm(x: Execution) -> Values:
    weight, bias, statistics, eps = (x.argument(k) for k in (1, 2, 5, 7))
    if not statistics:
        return batch_norm(x)
    return _by_groups(x, int(x.argument(0).shape[1]), weight, bias, float(eps))


def interpolated(x: Execution) -> Values:
    """Between neighbours, at positions that are themselves computed, each in the order of the size of the map."""
    entries = x.operand(0)
    assert isinstance(entries, Tensor)
    largest = entries.flatten(1).amax(1).reshape(-1, *(1,) * (entries.ndim - 1))
    reach = sum((*x.argument(0).shape[2:], *x.step.output.shape[2:])) + 8
    return x.rounded((8 * reach * x.sums.unit + x.sums.gamma(16)) * largest + 16 * x.sums.tiny)
