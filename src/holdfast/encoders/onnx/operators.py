"""The operator table of the ONNX import: each entry is a function of a ``Call`` and the input tensors.

Semantics follow the operator specification (https://onnx.ai/onnx/operators/), operator sets 13 and later. The attributes of
each operator are listed too; a node with an unknown attribute is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from holdfast.encoders.onnx import layers as layers
from holdfast.encoders.onnx.layers import Call, Setting

__all__ = ["OPERATORS", "SETTINGS", "Call"]

Operator = Callable[..., Any]


def _unary(function: Callable[[Tensor], Tensor]) -> Operator:
    return lambda call, x: function(x)


def _binary(function: Callable[[Tensor, Tensor], Tensor]) -> Operator:
    return lambda call, a, b: function(a, b)


def _many(function: Callable[[Tensor, Tensor], Tensor]) -> Operator:
    def fold(call: Call, first: Tensor, *others: Tensor) -> Tensor:
        for other in others:
            first = function(first, other)
        return first

    return fold


def _reduction(function: Callable[[Tensor, list[int], bool], Tensor]) -> Operator:
    def reduce(call: Call, x: Tensor, axes: Setting | None = None) -> Tensor:
        over = call.integers("axes", axes)
        if not over and call.get("noop_with_empty_axes", 0):
            return function(x[..., None], [-1], False)  # of single entries: ReduceSumSquare still squares
        if 0 in (x.shape[axis] for axis in over or range(x.ndim)):
            raise call.refuse("nothing to reduce")
        return function(x, over or list(range(x.ndim)), bool(call.get("keepdims", 1)))

    return reduce


def _softmax(function: Callable[..., Tensor]) -> Operator:
    return lambda call, x: function(x, dim=call.get("axis", -1))


def _matrix(call: Call, a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
    a = a.T if call.get("transA", 0) else a
    b = b.T if call.get("transB", 0) else b
    product = call.get("alpha", 1.0) * (a @ b)
    return product if c is None else product + call.get("beta", 1.0) * c


def _dropout(
    call: Call, x: Tensor, ratio: Setting | None = None, training: Setting | None = None
) -> tuple[Tensor, ...]:
    if training is not None and training.item() and (ratio is None or ratio.item()):
        raise call.refuse("training_mode=True (it would drop entries at random)")
    return x, torch.ones_like(x, dtype=torch.bool)


def _selu(call: Call, x: Tensor) -> Tensor:
    alpha, gamma = call.get("alpha", 1.6732632423543772), call.get("gamma", 1.0507009873554805)
    return gamma * torch.where(x > 0, x, alpha * torch.expm1(x.clamp_max(0)))


def _prelu(call: Call, x: Tensor, slope: Tensor) -> Tensor:
    """``x`` above zero, ``slope * x`` below, by one ReLU: that can be bounded, and a choice by the input cannot."""
    above = torch.relu(x)
    return above + slope * (x - above)


# Called in torch as in ONNX.
SAME = (
    *("Abs", "Ceil", "Cos", "Erf", "Exp", "Floor", "Log", "Neg", "Reciprocal", "Relu", "Round", "Sigmoid", "Sign"),
    *("Sin", "Sqrt", "Tanh"),
)
SAME_OF_TWO = ("Add", "MatMul", "Mul", "Sub")

OPERATORS: Mapping[str, Operator] = {
    **{name: _unary(getattr(torch, name.lower())) for name in SAME},
    **{name: _binary(getattr(torch, name.lower())) for name in SAME_OF_TWO},
    "And": _binary(torch.logical_and),
    "AveragePool": layers.average_pool,
    "BatchNormalization": layers.batch_norm,
    "Cast": layers.cast,
    "CastLike": lambda call, x, like: x.to(like.dtype),
    "Celu": lambda call, x: functional.celu(x, call.get("alpha", 1.0)),
    "Clip": lambda call, x, low=None, high=None: x if low is None and high is None else torch.clamp(x, low, high),
    "Concat": lambda call, *inputs: torch.cat(inputs, call.attributes["axis"]),
    "ConstantOfShape": layers.constant_of_shape,
    "Conv": layers.convolution,
    "ConvTranspose": layers.transposed_convolution,
    "DepthToSpace": layers.depth_to_space,
    "Div": _binary(lambda a, b: a / b if a.is_floating_point() else torch.div(a, b, rounding_mode="trunc")),
    "Dropout": _dropout,
    "Einsum": lambda call, *inputs: torch.einsum(call.attributes["equation"], *inputs),
    "Elu": lambda call, x: functional.elu(x, call.get("alpha", 1.0)),
    "Equal": _binary(torch.eq),
    "Expand": layers.expand,
    "Flatten": layers.flatten,
    "Gather": layers.gather,
    "GatherElements": layers.gather_elements,
    "Gelu": lambda call, x: functional.gelu(x, approximate=call.get("approximate", "none")),
    "Gemm": _matrix,
    "GlobalAveragePool": lambda call, x: x.mean(tuple(range(2, x.ndim)), keepdim=True),
    "GlobalMaxPool": lambda call, x: x.amax(tuple(range(2, x.ndim)), keepdim=True),
    "Greater": _binary(torch.gt),
    "GreaterOrEqual": _binary(torch.ge),
    "GroupNormalization": layers.group_norm,
    "HardSigmoid": lambda call, x: (call.get("alpha", 0.2) * x + call.get("beta", 0.5)).clamp(0, 1),
    "HardSwish": _unary(functional.hardswish),
    "Identity": _unary(lambda x: x),
    "InstanceNormalization": layers.instance_norm,
    "IsNaN": _unary(torch.isnan),
    "LRN": layers.local_response_norm,
    "LayerNormalization": layers.layer_norm,
    "LeakyRelu": lambda call, x: functional.leaky_relu(x, call.get("alpha", 0.01)),
    "Less": _binary(torch.lt),
    "LessOrEqual": _binary(torch.le),
    "LogSoftmax": _softmax(torch.log_softmax),
    "LpNormalization": layers.lp_norm,
    "Max": _many(torch.maximum),
    "MaxPool": layers.max_pool,
    "Mean": lambda call, *inputs: torch.stack(torch.broadcast_tensors(*inputs)).mean(0),
    "Min": _many(torch.minimum),
    "Mish": _unary(functional.mish),
    "Mod": lambda call, a, b: (torch.fmod if call.get("fmod", 0) else torch.remainder)(a, b),
    "Not": _unary(torch.logical_not),
    "Or": _binary(torch.logical_or),
    "PRelu": _prelu,
    "Pad": layers.pad,
    "Pow": _binary(lambda x, exponent: torch.pow(x, exponent).to(x.dtype)),  # torch promotes both; ONNX keeps that of x
    "Range": layers.range_,
    "ReduceL1": _reduction(lambda x, axes, keep: x.abs().sum(axes, keepdim=keep)),
    "ReduceL2": _reduction(lambda x, axes, keep: torch.linalg.vector_norm(x, dim=axes, keepdim=keep)),
    "ReduceMax": _reduction(lambda x, axes, keep: x.amax(axes, keepdim=keep)),
    "ReduceMean": _reduction(lambda x, axes, keep: x.mean(axes, keepdim=keep)),
    "ReduceMin": _reduction(lambda x, axes, keep: x.amin(axes, keepdim=keep)),
    "ReduceProd": _reduction(layers.product),
    "ReduceSum": _reduction(lambda x, axes, keep: x.sum(axes, keepdim=keep)),
    "ReduceSumSquare": _reduction(lambda x, axes, keep: x.square().sum(axes, keepdim=keep)),
    "Reshape": layers.reshape,
    "Resize": layers.resize,
    "Selu": _selu,
    "Shape": layers.shape,
    "Size": lambda call, x: torch.tensor(math.prod(x.shape), device=call.device),
    "Slice": layers.slice_,
    "Softmax": _softmax(torch.softmax),
    "Softplus": _unary(functional.softplus),
    "Softsign": _unary(functional.softsign),
    "SpaceToDepth": layers.space_to_depth,
    "Split": layers.split,
    "Squeeze": layers.squeeze,
    "Sum": _many(torch.add),
    "ThresholdedRelu": lambda call, x: functional.threshold(x, call.get("alpha", 1.0), 0.0),
    "Tile": lambda call, x, repeats: x.repeat(repeats.tolist()),
    "Transpose": layers.transpose,
    "Unsqueeze": layers.unsqueeze,
    "Where": lambda call, condition, a, b: torch.where(condition, a, b),
}
SETTINGS: Mapping[str, int] = {
    **dict.fromkeys(
        ("Dropout", "Expand", "Pad", "Reshape", "Resize", "Slice", "Split", "Squeeze", "Tile", "Unsqueeze"), 1
    ),
    **{name: 1 for name in OPERATORS if name.startswith("Reduce")},
}
"""The first input that says how an operator computes rather than what of: sizes, axes, ends."""


WINDOW = ("auto_pad", "dilations", "kernel_shape", "pads", "strides")
REDUCTION = ("keepdims", "noop_with_empty_axes")

ATTRIBUTES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("Celu", "Elu", "LeakyRelu", "ThresholdedRelu"), ("alpha",)),
    **dict.fromkeys(("Concat", "Flatten", "Gather", "GatherElements", "LogSoftmax", "Softmax"), ("axis",)),
    "AveragePool": (*WINDOW, "ceil_mode", "count_include_pad"),
    "BatchNormalization": ("epsilon", "momentum", "training_mode"),
    "Cast": ("round_mode", "saturate", "to"),
    "CastLike": ("round_mode", "saturate"),
    "Constant": ("value", "value_float", "value_floats", "value_int", "value_ints"),
    "ConstantOfShape": ("value",),
    "Conv": (*WINDOW, "group"),
    "ConvTranspose": (*WINDOW, "group", "output_padding", "output_shape"),
    "Dropout": ("seed",),
    "Einsum": ("equation",),
    "Gelu": ("approximate",),
    "Gemm": ("alpha", "beta", "transA", "transB"),
    "GroupNormalization": ("epsilon", "num_groups", "stash_type"),
    "HardSigmoid": ("alpha", "beta"),
    "InstanceNormalization": ("epsilon",),
    "LRN": ("alpha", "beta", "bias", "size"),
    "LayerNormalization": ("axis", "epsilon", "stash_type"),
    "LpNormalization": ("axis", "p"),
    "MaxPool": (*WINDOW, "ceil_mode", "storage_order"),
    "Mod": ("fmod",),
    "Pad": ("mode",),
    "Range": ("stash_type",),
    **{f"Reduce{name}": (*REDUCTION, "axes") for name in ("L1", "L2", "Max", "Mean", "Min", "Prod", "SumSquare")},
    "ReduceSum": REDUCTION,
    "Reshape": ("allowzero",),
    "Resize": (
        *("antialias", "axes", "coordinate_transformation_mode", "cubic_coeff_a", "exclude_outside"),
        *("extrapolation_value", "keep_aspect_ratio_policy", "mode", "nearest_mode"),
    ),
    "Selu": ("alpha", "gamma"),
    "Shape": ("end", "start"),
    **dict.fromkeys(("DepthToSpace", "SpaceToDepth"), ("blocksize", "mode")),
    "Split": ("axis", "num_outputs"),
    "Transpose": ("perm",),
}
"""Operators that are not listed have none. Those that change no result of the variants imported here are listed and not
read: ``seed``, ``momentum``, ``saturate``, ``round_mode``, ``stash_type``, ``storage_order``, ``extrapolation_value``."""
