"""Nonlinear layers written as ReLUs, curves and products, whose rules then serve for bounds, optimisation and splits.

``max(a, b) = b + relu(a - b)``, ``min(a, b) = a - relu(a - b)``;
``softmax_i = 1 / sum_j exp(x_j - x_i)``; a norm is a square, a sum and a root.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod, sqrt
from typing import Any

import torch
from torch import Tensor

from holdfast.bounds.network.network_graph import Builder, Var
from holdfast.bounds.relaxations import average_rule, elu, softplus
from holdfast.core.errors import CannotBound

Number = float | int
Constant = Tensor | None


def _leaky_relu(builder: Builder, x: Var, slope: Tensor | Number = 0.01) -> Var:
    return builder.combine([1 - slope, slope], builder.nonlinear("relu", x), x)


def _prelu(builder: Builder, x: Var, slope: Tensor) -> Var:
    """A leaky ReLU with a slope for each channel."""
    return _leaky_relu(builder, x, slope.reshape((-1,) + (1,) * (len(x.shape) - 2)))


def _elu(builder: Builder, x: Var, alpha: Number = 1.0, scale: Number = 1.0, stretch: Number = 1.0) -> Var:
    """``scale * x`` above zero, ``scale * alpha * (exp(stretch * x) - 1)`` below."""
    if not stretch > 0:
        raise CannotBound(
            f"{builder.naming} of exp({stretch:g} x)", "it grows too fast", fix="choose settings that let it grow"
        )
    curve = builder.nonlinear(elu(float(alpha * stretch)), builder.combine([stretch], x))
    return builder.combine([scale / stretch], curve)


def _softplus(builder: Builder, x: Var, beta: Number = 1.0, threshold: Number = 20.0) -> Var:
    return builder.combine([1 / beta], builder.nonlinear(softplus(float(threshold)), builder.combine([beta], x)))


def _extreme(sign: float) -> Callable[..., Var]:
    """The larger of two (``sign`` 1) or the smaller (-1): ``y + relu(x - y)`` or ``x - relu(x - y)``."""

    def build(builder: Builder, x: Any, y: Any) -> Var:
        if isinstance(x, Var) and isinstance(y, Var):
            above = builder.nonlinear("relu", builder.combine([1.0, -1.0], x, y))
            return builder.combine([1.0, sign], y if sign > 0 else x, above)
        moving, limit = (x, builder.constant(y)) if isinstance(x, Var) else (y, builder.constant(x))
        beyond = builder.nonlinear("relu", builder.combine([sign], moving, offset=-sign * limit))
        return builder.combine([sign], beyond, offset=limit)

    return build


_larger, _smaller = _extreme(1.0), _extreme(-1.0)


def _clamp(builder: Builder, x: Var, low: Any = None, high: Any = None) -> Var:
    x = x if low is None else _larger(builder, x, low)
    return x if high is None else _smaller(builder, x, high)


def _largest(builder: Builder, x: Var, axis: int, indices: Tensor) -> Var:
    """Return the largest entry of each window along an axis, pair by pair; ``indices`` holds them, (entries, windows)."""
    places = indices.to(builder.device).unbind()
    parts = [builder.monotone(lambda v, at=at: v.index_select(axis, at), x) for at in places]
    while len(parts) > 1:
        odd = parts[len(parts) // 2 * 2 :]
        parts = [_larger(builder, a, b) for a, b in zip(parts[::2], parts[1::2], strict=False)] + odd
    return parts[0]


def _amax(builder: Builder, x: Var, dim: Sequence[int] = (), keepdim: bool = False) -> Var:
    axes = [axis % len(x.shape) for axis in dim or range(len(x.shape))]
    for axis in axes:
        x = _largest(builder, x, axis, torch.arange(x.shape[axis])[:, None])
    return x if keepdim else builder.monotone(lambda v: v.squeeze(axes), x)


def _max_pool(axes: int) -> Callable[..., Var]:
    """The largest entry of a box is the largest, along one axis, of the largest along the others."""

    def build(
        builder: Builder, x: Var, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil: bool = False
    ) -> Var:
        settings = [_each(setting, axes) for setting in (kernel, stride or kernel, padding, dilation)]
        for axis, (k, s, p, d) in reversed(list(enumerate(zip(*settings, strict=True), start=-axes))):
            reach, size = d * (k - 1), x.shape[axis]
            count = (size + 2 * p - reach - 1 + (s - 1) * ceil) // s + 1
            corners = torch.arange(count)[: -(-(size + p) // s)] * s - p  # none begins beyond the padding
            indices = corners + d * torch.arange(k)[:, None]
            x = _largest(builder, x, axis, _repeated(indices, (indices >= 0) & (indices < size)))
        return x

    return build


def _adaptive_max_pool(axes: int) -> Callable[..., list[Var]]:
    def build(builder: Builder, x: Var, counts: Any) -> list[Var]:
        for axis, count in reversed(list(enumerate(_each(counts, axes), start=-axes))):
            size, window = x.shape[axis], torch.arange(count)
            begin, end = window * size // count, ((window + 1) * size + count - 1) // count
            indices = begin + torch.arange(int((end - begin).max()))[:, None]
            x = _largest(builder, x, axis, _repeated(indices, indices < end))
        return [x]

    return build


def _repeated(indices: Tensor, inside: Tensor) -> Tensor:
    """Return the indices of each window with those that are not inside it replaced by its first one that is."""
    first = indices.gather(0, inside.int().argmax(0, keepdim=True))
    return torch.where(inside, indices, first)


def _each(value: Any, axes: int) -> list[int]:
    """Return a setting for each axis, of which one number or a list of one may stand for all."""
    listed = [value] if isinstance(value, int) else list(value)
    return listed * axes if len(listed) == 1 else listed


def _softmax(builder: Builder, x: Var, dim: int, dtype: Any = None, kept: Tensor | None = None) -> Var:
    """``kept`` are the entries that take part; others get nothing."""
    axis = dim % len(x.shape)
    mine = builder.monotone(lambda v: v.unsqueeze(axis + 1), x)
    theirs = builder.monotone(lambda v: v.unsqueeze(axis), x)
    if kept is not None:
        kept = kept.expand(x.shape).to(builder.dtype)
        # Zero where either entry takes no part: exp of a large difference overflows, and infinity times 0 is no number.
        both = kept.unsqueeze(axis) * kept.unsqueeze(axis + 1)
        ratios = builder.nonlinear("exp", builder.combine([both, -both], theirs, mine))
        ratios = builder.combine([kept.unsqueeze(axis)], ratios)
    else:
        ratios = builder.nonlinear("exp", builder.combine([1.0, -1.0], theirs, mine))
    # The sum has a term exp(x_i - x_i) = 1, which its interval does not know.
    total = _larger(builder, builder.monotone(lambda v: v.sum(axis + 1), ratios), 1.0)
    shares = builder.nonlinear("reciprocal", total)
    shares = shares if kept is None else builder.combine([kept], shares)
    if axis == len(x.shape) - 1:
        builder.softmaxes[shares.index] = x, None if kept is None else kept > 0
    return shares


def matmul(builder: Builder, x: Any, y: Any) -> Any:
    """A product of matrices or vectors, of which any may be constant."""
    if isinstance(x, Tensor) and isinstance(y, Tensor):
        return torch.matmul(x, y)
    if isinstance(y, Tensor):
        return builder.affine(lambda v: torch.matmul(v, y), x, absolute=lambda r: torch.matmul(r, y.abs()))
    if isinstance(x, Tensor):
        return builder.affine(lambda v: torch.matmul(x, v), y, absolute=lambda r: torch.matmul(x.abs(), r))
    if len(y.shape) == 1:
        return _view(builder, matmul(builder, x, _view(builder, y, lambda v: v[:, None])), lambda v: v[..., 0])
    # Products of entries, summed: (..., i, j, 1) times (..., 1, j, k), without the axis of i if ``x`` is a vector.
    right = y if len(x.shape) == 1 else _view(builder, y, lambda v: v.unsqueeze(-3))
    left = _view(builder, x, lambda v: v.unsqueeze(-1))
    total = _view(builder, builder.nonlinear("product", left, right), lambda v: v.sum(-2))
    # Weights that were rounded before need not sum to 1, so that their average may lie outside of that range.
    if x.index in builder.softmaxes and len(x.shape) == len(y.shape) and not builder.steps:
        scores, kept = builder.softmaxes[x.index]
        return builder.known(average_rule(kept), total, scores, y)
    return total


def _view(builder: Builder, x: Any, function: Callable[[Tensor], Tensor]) -> Any:
    return function(x) if isinstance(x, Tensor) else builder.monotone(function, x)


def _attention(
    builder: Builder,
    query: Any,
    key: Any,
    value: Any,
    mask: Tensor | None = None,
    dropout: Number = 0.0,
    causal: bool = False,
    *,
    scale: Number | None = None,
    enable_gqa: bool = False,
) -> Var:
    """``softmax(scale * query key^T + mask) value`` over the keys that the mask keeps."""
    if dropout:
        raise CannotBound("attention with dropout", "it is random", fix="call eval() on the module")
    if enable_gqa:  # several heads of queries share one of keys and values
        heads = query.shape[-3]
        key, value = (_view(builder, x, lambda v: v.repeat_interleave(heads // v.shape[-3], -3)) for x in (key, value))
    factor = 1 / sqrt(query.shape[-1]) if scale is None else scale
    scores = matmul(builder, query, _view(builder, key, lambda v: v.mT))
    if causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=builder.device).tril()
    kept = None
    if mask is not None:
        kept = mask if mask.dtype == torch.bool else mask > -torch.inf
        mask = None if mask.dtype == torch.bool else mask.masked_fill(~kept, 0.0)
        if not bool(kept.any(-1).all()):
            raise CannotBound("attention", "its mask leaves a query without a key", fix="leave at least one key")
    weights = _softmax(builder, builder.combine([factor], scores, offset=mask), -1, kept=kept)
    return matmul(builder, weights, value)


def _normalised(builder: Builder, x: Var, axes: tuple[int, ...], eps: Number) -> Var:
    """``(x - mean) / sqrt(variance + eps)`` over ``axes``."""
    centred = builder.affine(
        lambda v: v - v.mean(axes, keepdim=True), x, absolute=lambda r: _centred_magnitude(r, axes)
    )
    variance = builder.monotone(lambda v: v.mean(axes, keepdim=True) + eps, builder.nonlinear("square", centred))
    # A variance is never below eps, which the relaxed squares alone would not say.
    scale = builder.nonlinear("rsqrt", _larger(builder, variance, eps))
    # Nor is any of n centred values above sqrt(n) of their deviation.
    most = sqrt(prod(x.shape[axis] for axis in axes))
    return _clamp(builder, builder.nonlinear("product", centred, scale), -most, most)


def _centred_magnitude(radius: Tensor, axes: tuple[int, ...]) -> Tensor:
    mean = radius.mean(axes, keepdim=True)
    count = radius.numel() // mean.numel()
    return radius * (1 - 2 / count) + mean


def _layer_norm(
    builder: Builder, x: Var, shape: Any, weight: Constant = None, bias: Constant = None, eps: Number = 1e-5, *_: Any
) -> Var:
    normal = _normalised(builder, x, tuple(range(-len(shape), 0)), eps)
    return builder.combine([1.0 if weight is None else weight], normal, offset=bias)


def group_norm(
    builder: Builder, x: Var, groups: int, weight: Constant = None, bias: Constant = None, eps: Number = 1e-5, *_: Any
) -> Var:
    grouped = builder.monotone(lambda v: v.unflatten(1, (groups, -1)).flatten(2), x)
    normal = builder.monotone(lambda v: v.reshape(x.shape), _normalised(builder, grouped, (-1,), eps))
    column = (-1,) + (1,) * (len(x.shape) - 2)
    weight, bias = (None if part is None else part.reshape(column) for part in (weight, bias))
    return builder.combine([1.0 if weight is None else weight], normal, offset=bias)


def _vector_norm(builder: Builder, x: Var, order: Number = 2, dim: Any = None, keepdim: bool = False, **_: Any) -> Var:
    if order != 2:
        raise CannotBound(f"a vector norm of order {order}", "no rule for it", fix="use order 2")
    squares = builder.nonlinear("square", x)
    total = builder.monotone(lambda v: v.sum(dim, keepdim=keepdim), squares)
    return builder.nonlinear("sqrt", _larger(builder, total, 0.0))


def _power(builder: Builder, x: Var, exponent: Any) -> Var:
    rules = {2: "square", 0.5: "sqrt", -1: "reciprocal", -0.5: "rsqrt"}
    if exponent not in rules:
        raise CannotBound(f"pow with the exponent {exponent}", "no rule for it", fix=f"use one of {sorted(rules)}")
    return builder.nonlinear(rules[exponent], x)


COMPOSED: dict[str, Callable[..., Any]] = {
    **{
        name: lambda builder, x, *, name=name: builder.nonlinear(name, x)
        for name in (
            *("relu", "sigmoid", "log_sigmoid", "tanh", "silu", "mish", "hardswish"),
            *("exp", "square", "sqrt", "rsqrt", "reciprocal"),
        )
    },
    "gelu": lambda builder, x, approximate="none": builder.nonlinear(
        "gelu" if approximate == "none" else "gelu_tanh", x
    ),
    "leaky_relu": _leaky_relu,
    "prelu": _prelu,
    "elu": _elu,
    "selu": lambda builder, x: _elu(builder, x, 1.6732632423543772, 1.0507009873554805),
    "celu": lambda builder, x, alpha=1.0: _elu(builder, x, alpha, stretch=1 / alpha),
    "softplus": _softplus,
    "abs": lambda builder, x: builder.combine([2.0, -1.0], builder.nonlinear("relu", x), x),
    "clamp": _clamp,
    "clip": _clamp,
    "clamp_min": _larger,
    "clamp_max": _smaller,
    "hardtanh": lambda builder, x, low=-1.0, high=1.0: _clamp(builder, x, low, high),
    "relu6": lambda builder, x: _clamp(builder, x, 0.0, 6.0),
    "hardsigmoid": lambda builder, x: _clamp(
        builder, builder.combine([1 / 6], x, offset=builder.constant(0.5)), 0.0, 1.0
    ),
    "maximum": _larger,
    "minimum": _smaller,
    "amax": _amax,
    **{f"max_pool{axes}d": _max_pool(axes) for axes in (1, 2, 3)},
    "max_pool2d_with_indices": lambda builder, x, *settings: [_max_pool(2)(builder, x, *settings)],
    **{f"adaptive_max_pool{axes}d": _adaptive_max_pool(axes) for axes in (1, 2, 3)},
    "softmax": _softmax,
    "_softmax": lambda builder, x, dim, half=False: _softmax(builder, x, dim),
    "scaled_dot_product_attention": _attention,
    "layer_norm": _layer_norm,
    "group_norm": group_norm,
    "linalg_vector_norm": _vector_norm,
    "pow": _power,
}
