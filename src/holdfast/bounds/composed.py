"""Nonlinear layers written in ReLUs, curves and products, whose rules then bound, optimise and split them.

``max(a, b) = b + relu(a - b)``; ``softmax_i = 1 / sum_j exp(x_j - x_i)``; a norm is a square, a sum and a root.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod, sqrt
from typing import Any

import torch
from torch import Tensor

from holdfast.bounds.graph import Builder, Var
from holdfast.errors import HoldfastError

Number = float | int


def _curve(name: str) -> Callable[..., Var]:
    def build(builder: Builder, x: Var) -> Var:
        return builder.nonlinear(name, x)

    return build


def _gelu(builder: Builder, x: Var, approximate: str = "none") -> Var:
    return builder.nonlinear("gelu" if approximate == "none" else "gelu_tanh", x)


def _leaky_relu(builder: Builder, x: Var, slope: Number = 0.01) -> Var:
    return builder.combine([1 - slope, slope], builder.nonlinear("relu", x), x)


def _abs(builder: Builder, x: Var) -> Var:
    return builder.combine([2.0, -1.0], builder.nonlinear("relu", x), x)


def at_least(builder: Builder, x: Var, low: Any) -> Var:
    """``max(x, low) = low + relu(x - low)``."""
    low = torch.as_tensor(low, dtype=builder.dtype, device=builder.device)
    return builder.combine([1.0], builder.nonlinear("relu", builder.combine([1.0], x, offset=-low)), offset=low)


def at_most(builder: Builder, x: Var, high: Any) -> Var:
    """``min(x, high) = high - relu(high - x)``."""
    high = torch.as_tensor(high, dtype=builder.dtype, device=builder.device)
    return builder.combine([-1.0], builder.nonlinear("relu", builder.combine([-1.0], x, offset=high)), offset=high)


def _clamp(builder: Builder, x: Var, low: Any = None, high: Any = None) -> Var:
    x = x if low is None else at_least(builder, x, low)
    return x if high is None else at_most(builder, x, high)


def _larger(builder: Builder, x: Any, y: Any) -> Var:
    if not isinstance(x, Var) or not isinstance(y, Var):
        return at_least(builder, *((x, y) if isinstance(x, Var) else (y, x)))
    above = builder.nonlinear("relu", builder.combine([1.0, -1.0], x, y))
    return builder.combine([1.0, 1.0], y, above)


def _max_pool2d(
    builder: Builder, x: Var, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil: bool = False
) -> Var:
    """Pairwise maxima of the window's entries, each a view of the input."""
    height, width = x.shape[2:]
    where = torch.arange(height * width, dtype=torch.float64).reshape(1, 1, height, width)
    if ceil or dilation not in (1, [1], [1, 1]):
        raise HoldfastError("max_pool2d with ceil_mode or dilation cannot be bounded; use neither")
    places = _windows(where, *(_pair(setting) for setting in (kernel, stride or kernel, padding)))
    parts = [
        builder.monotone(lambda v, at=at: v.flatten(2)[..., at].unflatten(2, places.shape[1:]), x)
        for at in (place.flatten().to(builder.device) for place in places)
    ]
    while len(parts) > 1:
        odd = parts[len(parts) // 2 * 2 :]
        parts = [_larger(builder, a, b) for a, b in zip(parts[::2], parts[1::2], strict=False)] + odd
    return parts[0]


def _pair(value: Any) -> tuple[int, int]:
    first, last = (value, value) if isinstance(value, int) else (value[0], value[-1])
    return int(first), int(last)


def _windows(where: Tensor, kernel: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int]) -> Tensor:
    """Return the input position of each entry of each window, (entries, y, x); outside ones repeat one inside."""
    axes = []
    for size, k, s, p in zip(where.shape[2:], kernel, stride, padding, strict=True):
        corners = torch.arange(0, size + 2 * p - k + 1, s) - p
        axes.append((corners[None] + torch.arange(k)[:, None]).clamp(0, size - 1))
    rows, columns = axes
    places = rows[:, None, :, None] * where.shape[3] + columns[None, :, None, :]
    return places.flatten(0, 1)


def _softmax(builder: Builder, x: Var, dim: int, dtype: Any = None) -> Var:
    axis = dim % len(x.shape)
    mine = builder.monotone(lambda v: v.unsqueeze(axis + 1), x)
    theirs = builder.monotone(lambda v: v.unsqueeze(axis), x)
    ratios = builder.nonlinear("exp", builder.combine([1.0, -1.0], theirs, mine))
    # The sum has a term exp(x_i - x_i) = 1, which its interval does not know.
    total = at_least(builder, builder.monotone(lambda v: v.sum(axis + 1), ratios), 1.0)
    return builder.nonlinear("reciprocal", total)


def products(builder: Builder, x: Var, y: Var) -> Var:
    """Products of entries, summed: (..., i, j, 1) times (..., 1, j, k)."""
    left = builder.monotone(lambda v: v.unsqueeze(-1), x)
    right = builder.monotone(lambda v: v.unsqueeze(-3), y)
    return builder.monotone(lambda v: v.sum(-2), builder.nonlinear("product", left, right))


def _attention(
    builder: Builder,
    query: Var,
    key: Var,
    value: Var,
    mask: Tensor | None = None,
    dropout: Number = 0.0,
    causal: bool = False,
    *,
    scale: Number | None = None,
) -> Var:
    """``softmax(scale * query key^T + mask) value``."""
    if dropout or causal or (mask is not None and not mask.is_floating_point()):
        raise HoldfastError("scaled_dot_product_attention with dropout, causality or a boolean mask cannot be bounded")
    factor = 1 / sqrt(query.shape[-1]) if scale is None else scale
    turned = builder.monotone(lambda v: v.mT, key)
    scores = builder.combine([factor], products(builder, query, turned), offset=mask)
    return products(builder, _softmax(builder, scores, -1), value)


def _normalised(builder: Builder, x: Var, axes: tuple[int, ...], eps: Number) -> Var:
    """``(x - mean) / sqrt(variance + eps)`` over ``axes``."""
    centred = builder.affine(
        lambda v: v - v.mean(axes, keepdim=True), x, absolute=lambda r: _centred_magnitude(r, axes)
    )
    variance = builder.monotone(lambda v: v.mean(axes, keepdim=True) + eps, builder.nonlinear("square", centred))
    # A variance is never below eps, which the relaxed squares alone would not say.
    scale = builder.nonlinear("rsqrt", at_least(builder, variance, eps))
    # Nor is any of n centred values above sqrt(n) of their deviation.
    most = sqrt(prod(x.shape[axis] for axis in axes))
    return _clamp(builder, builder.nonlinear("product", centred, scale), -most, most)


def _centred_magnitude(radius: Tensor, axes: tuple[int, ...]) -> Tensor:
    mean = radius.mean(axes, keepdim=True)
    count = radius.numel() // mean.numel()
    return radius * (1 - 2 / count) + mean


def _layer_norm(
    builder: Builder,
    x: Var,
    shape: list[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: Number = 1e-5,
    cudnn: bool = False,
) -> Var:
    normal = _normalised(builder, x, tuple(range(-len(shape), 0)), eps)
    return builder.combine([1.0 if weight is None else weight], normal, offset=bias)


def _group_norm(
    builder: Builder,
    x: Var,
    groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: Number = 1e-5,
    cudnn: bool = False,
) -> Var:
    grouped = builder.monotone(lambda v: v.unflatten(1, (groups, -1)).flatten(2), x)
    normal = builder.monotone(lambda v: v.reshape(x.shape), _normalised(builder, grouped, (-1,), eps))
    column = (-1,) + (1,) * (len(x.shape) - 2)
    return builder.combine(
        [1.0 if weight is None else weight.reshape(column)],
        normal,
        offset=None if bias is None else bias.reshape(column),
    )


def _vector_norm(builder: Builder, x: Var, order: Number = 2, dim: Any = None, keepdim: bool = False, **_: Any) -> Var:
    if order != 2:
        raise HoldfastError(f"a vector norm of order {order} cannot be bounded; use 2")
    squares = builder.nonlinear("square", x)
    total = builder.monotone(lambda v: v.sum(dim, keepdim=keepdim) if dim is not None else v.sum(), squares)
    return builder.nonlinear("sqrt", at_least(builder, total, 0.0))


def _power(builder: Builder, x: Var, exponent: Any) -> Var:
    rules = {2: "square", 0.5: "sqrt", -1: "reciprocal", -0.5: "rsqrt"}
    if exponent not in rules:
        raise HoldfastError(f"pow with the exponent {exponent} cannot be bounded; supported: {sorted(rules)}")
    return builder.nonlinear(rules[exponent], x)


COMPOSED: dict[str, Callable[..., Any]] = {
    **{
        name: _curve(name)
        for name in ("relu", "sigmoid", "tanh", "silu", "exp", "square", "sqrt", "rsqrt", "reciprocal")
    },
    "gelu": _gelu,
    "leaky_relu": _leaky_relu,
    "abs": _abs,
    "clamp": _clamp,
    "clamp_min": at_least,
    "clamp_max": at_most,
    "hardtanh": lambda builder, x, low=-1.0, high=1.0: _clamp(builder, x, low, high),
    "relu6": lambda builder, x: _clamp(builder, x, 0.0, 6.0),
    "maximum": _larger,
    "max_pool2d": _max_pool2d,
    "softmax": _softmax,
    "_softmax": lambda builder, x, dim, half=False: _softmax(builder, x, dim),
    "scaled_dot_product_attention": _attention,
    "layer_norm": _layer_norm,
    "group_norm": _group_norm,
    "linalg_vector_norm": _vector_norm,
    "pow": _power,
}
