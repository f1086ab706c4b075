"""What each traced operation becomes. The names are those of ``torch.ops.aten``; the lists are explicit.

A function here takes the builder and the operation's own arguments, of which at least one depends on the input (a
``Var``); tensors are constants.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from holdfast.bounds.affine import Convolution
from holdfast.bounds.composed import COMPOSED, products
from holdfast.bounds.graph import Builder, Var
from holdfast.errors import HoldfastError

Operation = Callable[..., Any]
Number = float | int


def _monotone(function: Callable[..., Tensor]) -> Operation:
    """Views, sums and means: affine in one tensor, without negative coefficients."""

    def build(builder: Builder, x: Var, *args: Any, **kwargs: Any) -> Var:
        return builder.monotone(lambda value: function(value, *args, **kwargs), x)

    return build


def _parts(function: Callable[..., Any]) -> Operation:
    """Views that return several tensors."""

    def build(builder: Builder, x: Var, *args: Any, **kwargs: Any) -> list[Var]:
        count = len(function(torch.empty(x.shape, device="meta"), *args, **kwargs))
        return [
            builder.monotone(lambda value, part=part: function(value, *args, **kwargs)[part], x)
            for part in range(count)
        ]

    return build


def _same(builder: Builder, x: Var, *args: Any, **kwargs: Any) -> Var:
    return x


def _cast(builder: Builder, x: Var, *args: Any, dtype: torch.dtype | None = None, **kwargs: Any) -> Var:
    """A cast is no function that is bounded, unless it keeps at least single precision."""
    for kind in (dtype, *args):
        if isinstance(kind, torch.dtype) and kind not in (torch.float32, torch.float64):
            raise HoldfastError(f"a cast to {kind} rounds and cannot be bounded; compute in float32 or float64")
    return x


def _dropout(builder: Builder, x: Var, p: Number, train: bool) -> Var:
    if train:
        raise HoldfastError("dropout in training mode is random and cannot be bounded; call eval() on the module")
    return x


def _cat(builder: Builder, tensors: list[Var | Tensor], dim: int = 0, stack: bool = False) -> Var:
    join = torch.stack if stack else torch.cat

    def function(*values: Tensor) -> Tensor:
        moving = iter(values)
        return join([part if isinstance(part, Tensor) else next(moving) for part in tensors], dim)

    return builder.monotone(function, *(part for part in tensors if isinstance(part, Var)))


def _constant(builder: Builder, value: Tensor | Number) -> Tensor:
    return torch.as_tensor(value, dtype=builder.dtype, device=builder.device)


def _add(builder: Builder, x: Any, y: Any, alpha: Number = 1) -> Var:
    if isinstance(x, Var) and isinstance(y, Var):
        return builder.combine([1.0, float(alpha)], x, y)
    if isinstance(x, Var):
        return builder.combine([1.0], x, offset=_constant(builder, y) * alpha)
    return builder.combine([float(alpha)], y, offset=_constant(builder, x))


def _sub(builder: Builder, x: Any, y: Any, alpha: Number = 1) -> Var:
    return _add(builder, x, y, alpha=-alpha)


def _rsub(builder: Builder, x: Any, y: Any, alpha: Number = 1) -> Var:
    return _add(builder, y, x, alpha=-alpha)


def _mul(builder: Builder, x: Any, y: Any) -> Var:
    if isinstance(x, Var) and isinstance(y, Var):
        return builder.nonlinear("square", x) if x == y else builder.nonlinear("product", x, y)
    var, factor = (x, y) if isinstance(x, Var) else (y, x)
    return builder.combine([_constant(builder, factor)], var)


def _div(builder: Builder, x: Any, y: Any) -> Var:
    if isinstance(y, Var):
        return _mul(builder, x, builder.nonlinear("reciprocal", y))
    return _mul(builder, x, 1 / _constant(builder, y))


def _matmul(builder: Builder, x: Any, y: Any) -> Var:
    if isinstance(x, Var) and isinstance(y, Var):
        return products(builder, x, y)
    if isinstance(x, Var):
        return builder.affine(lambda v: torch.matmul(v, y), x, absolute=lambda r: torch.matmul(r, y.abs()))
    return builder.affine(lambda v: torch.matmul(x, v), y, absolute=lambda r: torch.matmul(x.abs(), r))


def _addmm(builder: Builder, bias: Tensor, x: Any, y: Any) -> Var:
    return _add(builder, _matmul(builder, x, y), bias)


def _fixed(weight: Any, of: str) -> Tensor:
    if not isinstance(weight, Tensor):
        raise HoldfastError(f"{of} with weights that depend on the input cannot be bounded; keep its weights fixed")
    return weight


def _linear(builder: Builder, x: Var, weight: Any, bias: Tensor | None = None) -> Var:
    fixed = _fixed(weight, "linear")
    return builder.affine(
        lambda v: functional.linear(v, fixed, bias), x, absolute=lambda r: functional.linear(r, fixed.abs())
    )


def _pair(value: Any) -> tuple[int, int]:
    first, last = (value, value) if isinstance(value, int) else (value[0], value[-1])
    return int(first), int(last)


def _conv2d(
    builder: Builder,
    x: Var,
    weight: Any,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Var:
    if isinstance(padding, str):
        return _conv(functional.conv2d)(builder, x, weight, bias, stride, padding, dilation, groups)
    settings = (_pair(stride), _pair(padding), _pair(dilation), groups)
    convolution = Convolution(_fixed(weight, "conv2d"), bias, x.shape, *settings)
    example = torch.zeros((1, *x.shape), dtype=builder.dtype, device=builder.device)
    return builder.local(convolution, x, tuple(convolution.forward(example).shape[1:]))


def _conv(function: Callable[..., Tensor]) -> Operation:
    def build(builder: Builder, x: Var, weight: Any, bias: Tensor | None = None, *settings: Any) -> Var:
        fixed = _fixed(weight, "a convolution")
        return builder.affine(
            lambda v: function(v, fixed, bias, *settings),
            x,
            absolute=lambda r: function(r, fixed.abs(), None, *settings),
        )

    return build


def _batch_norm(
    builder: Builder,
    x: Var,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    variance: Tensor | None,
    momentum: Number,
    eps: Number,
) -> list[Var]:
    """Normalisation by stored statistics: one factor and one constant per channel."""
    if mean is None or variance is None:
        raise HoldfastError("batch norm without running statistics cannot be bounded: codes depend on the batch")
    column = (-1,) + (1,) * (len(x.shape) - 2)
    factor = torch.rsqrt(variance + eps) * (1 if weight is None else weight)
    offset = (0 if bias is None else bias) - mean * factor
    return [builder.combine([factor.reshape(column)], x, offset=offset.reshape(column))]


VIEWS: dict[str, Callable[..., Tensor]] = {
    "view": torch.reshape,  # a view of a batch need not be one: its axes may lie apart in memory
    "reshape": torch.reshape,
    "_unsafe_view": torch.reshape,
    "flatten": torch.flatten,
    "unflatten": torch.unflatten,
    "squeeze": torch.squeeze,
    "unsqueeze": torch.unsqueeze,
    "permute": torch.permute,
    "transpose": torch.transpose,
    "t": torch.t,
    "expand": lambda x, shape, implicit=False: x.expand(shape),
    "repeat": lambda x, sizes: x.repeat(sizes),
    "select": torch.select,
    "slice": torch.ops.aten.slice,
    "narrow": torch.narrow,
    "flip": torch.flip,
    "roll": torch.roll,
}
MEANS: dict[str, Callable[..., Tensor]] = {
    "sum": torch.sum,
    "mean": torch.mean,
    "avg_pool1d": functional.avg_pool1d,
    "avg_pool2d": functional.avg_pool2d,
    "adaptive_avg_pool1d": functional.adaptive_avg_pool1d,
    "adaptive_avg_pool2d": functional.adaptive_avg_pool2d,
    "pad": functional.pad,
    "constant_pad_nd": functional.pad,
    "upsample_nearest2d": torch.ops.aten.upsample_nearest2d,
}
SAME = ("alias", "clone", "contiguous", "detach", "lift_fresh_copy", "_assert_tensor_metadata")
OPERATIONS: dict[str, Operation] = {
    **{name: _monotone(function) for name, function in {**VIEWS, **MEANS}.items()},
    **dict.fromkeys(SAME, _same),
    **dict.fromkeys(("_to_copy", "to", "type_as"), _cast),
    "split": _parts(torch.split),
    "split_with_sizes": _parts(torch.split),
    "chunk": _parts(torch.chunk),
    "unbind": _parts(torch.unbind),
    "dropout": _dropout,
    "cat": _cat,
    "stack": lambda builder, tensors, dim=0: _cat(builder, tensors, dim, stack=True),
    "add": _add,
    "sub": _sub,
    "rsub": _rsub,
    "neg": lambda builder, x: builder.combine([-1.0], x),
    "mul": _mul,
    "div": _div,
    "matmul": _matmul,
    "mm": _matmul,
    "bmm": _matmul,
    "addmm": _addmm,
    "linear": _linear,
    "conv1d": _conv(functional.conv1d),
    "conv2d": _conv2d,
    "conv3d": _conv(functional.conv3d),
    "conv_transpose2d": _conv(functional.conv_transpose2d),
    "_native_batch_norm_legit_no_training": _batch_norm,
    **COMPOSED,
}
