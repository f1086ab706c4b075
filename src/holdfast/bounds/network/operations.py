"""Translation of traced operations into operations of the graph, and graphs in other precisions.

The names are those of ``torch.ops.aten``, and the lists are explicit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._pytree import tree_map_only

from holdfast.bounds.network.composed import COMPOSED, group_norm, matmul
from holdfast.bounds.network.forms import Form
from holdfast.bounds.network.network_graph import Affine, Builder, Convolution, Diagonal, Graph, Node, Value, Var
from holdfast.core.errors import CannotBound

# What each traced operation becomes. The names are those of ``torch.ops.aten``; the lists are explicit.
#
# A function here takes the builder and the operation's own arguments, of which at least one depends on the input (a
# ``Var``); tensors are constants.

Operation = Callable[..., Any]
Number = float | int


def _monotone(name: str) -> Operation:
    """Views, sums and means: affine in one tensor, without negative coefficients."""
    # What cannot be viewed in the batches that bounds are computed in can be copied.
    function = getattr(torch.ops.aten, VIEWS.get(name, name))

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


def _same(builder: Builder, x: Var | Tensor, *args: Any, **kwargs: Any) -> Var | Tensor:
    return x.to(builder.dtype) if isinstance(x, Tensor) else x


def _dropout(builder: Builder, x: Var, p: Number, train: bool) -> Var:
    if train:
        raise CannotBound("dropout in training mode", "it is random", fix="call eval() on the module")
    return x


def _cat(builder: Builder, tensors: list[Var | Tensor], dim: int = 0, stack: bool = False) -> Var:
    join = torch.stack if stack else torch.cat

    def function(*values: Tensor) -> Tensor:
        moving = iter(values)
        return join([part if isinstance(part, Tensor) else next(moving) for part in tensors], dim)

    return builder.monotone(function, *(part for part in tensors if isinstance(part, Var)))


def _where(builder: Builder, condition: Any, x: Any, y: Any) -> Var:
    """Entries of one or of the other, chosen whatever the input."""
    if isinstance(condition, Var):
        raise CannotBound("where", "its condition depends on the input", fix="use maximum or clamp")
    parts = [part if isinstance(part, Var) else builder.constant(part) for part in (x, y)]
    shape = torch.broadcast_shapes(condition.shape, *(part.shape for part in parts))
    factors: list[Tensor | Number] = []
    moving, offset = list[Var](), torch.zeros(shape, dtype=builder.dtype, device=builder.device)
    for kept, part in zip((condition, ~condition), parts, strict=True):
        if isinstance(part, Var):
            factors.append(kept.to(builder.dtype))
            moving.append(builder.expand(part, tuple(shape)))
        else:
            offset = torch.where(kept, part, offset)
    return builder.combine(factors, *moving, offset=offset)


def _add(builder: Builder, x: Any, y: Any, alpha: Number = 1) -> Var:
    if isinstance(x, Var) and isinstance(y, Var):
        return builder.combine([1.0, float(alpha)], x, y)
    if isinstance(x, Var):
        return builder.combine([1.0], x, offset=builder.constant(y) * alpha)
    return builder.combine([float(alpha)], y, offset=builder.constant(x))


def _mul(builder: Builder, x: Any, y: Any) -> Var:
    if isinstance(x, Var) and isinstance(y, Var):
        return builder.nonlinear("square", x) if x == y else builder.nonlinear("product", x, y)
    var, factor = (x, y) if isinstance(x, Var) else (y, x)
    return builder.combine([builder.constant(factor)], var)


def _div(builder: Builder, x: Any, y: Any, rounding_mode: str | None = None) -> Var:
    if rounding_mode is not None:
        raise CannotBound(f"div with rounding_mode={rounding_mode!r}", "it jumps", fix="divide without rounding")
    if isinstance(y, Var):
        return _mul(builder, x, builder.nonlinear("reciprocal", y))
    return _mul(builder, x, 1 / builder.constant(y))


def _addmm(builder: Builder, x: Any, y: Any, z: Any, beta: Number = 1, alpha: Number = 1) -> Var:
    """``beta * x + alpha * y z``."""
    scaled = beta * x if isinstance(x, Tensor) else builder.combine([beta], x)
    return _add(builder, scaled, matmul(builder, y, z), alpha)


def _fixed(weight: Any, of: str) -> Tensor:
    if not isinstance(weight, Tensor):
        raise CannotBound(of, "its weights depend on the input", fix="keep its weights fixed")
    return weight


def _pair(value: Any) -> tuple[int, int]:
    first, last = (value, value) if isinstance(value, int) else (value[0], value[-1])
    return int(first), int(last)


def _conv2d(builder: Builder, x: Var, weight: Any, bias: Tensor | None = None, *settings: Any) -> Var:
    defaults: tuple[Any, ...] = (1, 0, 1, 1)
    stride, padding, dilation, groups = settings + defaults[len(settings) :]
    if isinstance(padding, str) or len(x.shape) != 4 or x.shape[0] != 1:  # windows are those of a single image
        return _weighted(functional.conv2d)(builder, x, weight, bias, *settings)
    pairs = _pair(stride), _pair(padding), _pair(dilation)
    convolution = Convolution(_fixed(weight, "conv2d"), bias, x.shape, *pairs, groups)
    example = torch.zeros((1, *x.shape), dtype=builder.dtype, device=builder.device)
    return builder.append(tuple(convolution.forward(example).shape[1:]), [x], convolution)


def _weighted(function: Callable[..., Tensor], of: str = "a convolution") -> Operation:
    """Products of the input with constant weights, and a constant."""

    def build(builder: Builder, x: Var, weight: Any, bias: Tensor | None = None, *settings: Any) -> Var:
        fixed = _fixed(weight, of)
        return builder.affine(
            lambda v: function(v, fixed, bias, *settings),
            x,
            absolute=lambda r: function(r, fixed.abs(), None, *settings),
        )

    return build


def _batch_norm(builder: Builder, x: Var, *arguments: Any) -> Var:
    """Normalisation by stored statistics: one factor and one constant per channel."""
    weight, bias, mean, variance, batch_statistics, _momentum, eps, _cudnn = arguments
    if batch_statistics or mean is None or variance is None:
        raise CannotBound(
            "batch norm without running statistics", "embeddings depend on the batch", fix="track running statistics"
        )
    column = (-1,) + (1,) * (len(x.shape) - 2)
    factor = torch.rsqrt(variance + eps) * (1 if weight is None else weight)
    offset = (0 if bias is None else bias) - mean * factor
    return builder.combine([factor.reshape(column)], x, offset=offset.reshape(column))


def _batch_norm_in_eval(builder: Builder, x: Var, *arguments: Any) -> list[Var]:
    """The first of the results that torch's own form has, the others of which no one asks for."""
    return [_batch_norm(builder, x, *arguments[:4], False, *arguments[4:], False)]


def _instance_norm(builder: Builder, x: Var, *arguments: Any) -> Var:
    """Normalisation by the input's statistics, channel by channel, or by stored ones."""
    weight, bias, _mean, _variance, input_statistics, _momentum, eps, _cudnn = arguments
    if input_statistics:
        return group_norm(builder, x, x.shape[1], weight, bias, eps)
    return _batch_norm(builder, x, *arguments)


VIEWS = {"view": "reshape", "_unsafe_view": "reshape"}
MONOTONE = (
    *("view", "_unsafe_view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "permute", "transpose", "t"),
    *("expand", "repeat", "tile", "repeat_interleave", "select", "slice", "narrow", "flip", "roll"),
    *("index", "index_select", "gather"),  # at places that are constant
    *("pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "im2col", "pad", "constant_pad_nd"),
    *("sum", "mean", "avg_pool1d", "avg_pool2d", "avg_pool3d"),
    *("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d"),
    *("upsample_nearest1d", "upsample_nearest2d"),
    *("upsample_linear1d", "upsample_bilinear2d", "_upsample_bilinear2d_aa", "upsample_trilinear3d"),
)
CONVOLUTIONS = ("conv1d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
SAME = (
    *("alias", "clone", "contiguous", "detach", "lift_fresh_copy"),
    *("_to_copy", "to", "type_as"),  # to single or double precision: tracing refuses every result of another type
)
OPERATIONS: dict[str, Operation] = {
    **{name: _monotone(name) for name in MONOTONE},
    **dict.fromkeys(SAME, _same),
    "_assert_tensor_metadata": lambda builder, *args, **kwargs: None,
    "split": _parts(torch.split),
    "split_with_sizes": _parts(torch.split),
    "chunk": _parts(torch.chunk),
    "unbind": _parts(torch.unbind),
    "dropout": _dropout,
    "cat": _cat,
    "stack": lambda builder, tensors, dim=0: _cat(builder, tensors, dim, stack=True),
    # Nowhere: of real numbers none is, and where a bound is none, nothing is claimed.
    "isnan": lambda builder, x: torch.zeros(x.shape, dtype=torch.bool, device=builder.device),
    "where": _where,
    "add": _add,
    "sub": lambda builder, x, y, alpha=1: _add(builder, x, y, -alpha),
    "rsub": lambda builder, x, y, alpha=1: _add(builder, y, x, -alpha),
    "neg": lambda builder, x: builder.combine([-1.0], x),
    "mul": _mul,
    "div": _div,
    **dict.fromkeys(("matmul", "mm", "bmm", "mv", "dot"), matmul),
    **dict.fromkeys(("addmm", "baddbmm"), _addmm),
    "linear": _weighted(functional.linear, "linear"),
    **{name: _weighted(getattr(functional, name)) for name in CONVOLUTIONS},
    "conv2d": _conv2d,
    "batch_norm": _batch_norm,
    "_native_batch_norm_legit_no_training": _batch_norm_in_eval,
    "instance_norm": _instance_norm,
    **COMPOSED,
}


@dataclass(frozen=True)
class Cast(Affine):
    """An operation that computes in the precision it was made for, between values of another."""

    inner: Affine
    dtype: torch.dtype
    inner_dtype: torch.dtype

    @property
    def offset(self) -> Tensor | None:
        return None if self.inner.offset is None else self.inner.offset.to(self.dtype)

    def forward(self, *inputs: Value) -> Value:
        return self.inner.forward(*(x.to(self.inner_dtype) for x in inputs)).to(self.dtype)

    def magnitude(self, *radii: Value) -> Value:
        return self.inner.magnitude(*(r.to(self.inner_dtype) for r in radii)).to(self.dtype)

    def transpose(self, form: Form) -> Sequence[Form]:
        forms = self.inner.transpose(form.like(form.coef.to(self.inner_dtype)))
        return [part.like(part.coef.to(self.dtype)) for part in forms]


def cast(graph: Graph, dtype: torch.dtype) -> Graph:
    """Return ``graph`` for values of ``dtype``; convolutions and scalings, which take the time, compute in it too."""
    nodes = [
        replace(node, operation=_cast(node, graph.dtype, dtype)) if isinstance(node.operation, Affine) else node
        for node in graph.nodes
    ]
    return Graph(tuple(nodes), dtype, graph.device)


def _cast(node: Node, inner: torch.dtype, dtype: torch.dtype) -> Affine:
    operation = node.operation
    if isinstance(operation, Convolution):
        bias = None if operation.bias is None else operation.bias.to(dtype)
        return replace(operation, weight=operation.weight.to(dtype), bias=bias)
    if isinstance(operation, Diagonal):
        return Diagonal(*tree_map_only(Tensor, lambda v: v.to(dtype), (operation.factors, operation.offset)))
    assert isinstance(operation, Affine)
    return Cast(operation, dtype, inner)
