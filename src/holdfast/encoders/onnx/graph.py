"""An ONNX graph as a torch module: its nodes in order, each an entry of the operator table.

Values that follow from shapes and constants alone (sizes to reshape to, axes, ranges) are computed on the CPU, outside of
any tracing. A traced graph then has known sizes, and no device must be waited for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import _disable_current_modes

from holdfast.core.errors import HoldfastError
from holdfast.encoders.by_name import require
from holdfast.encoders.onnx import layers
from holdfast.encoders.onnx.layers import Call, Setting

# The operator table of the ONNX import: each entry is a function of a ``Call`` and the input tensors.
#
# Semantics follow the operator specification (https://onnx.ai/onnx/operators/), operator sets 13 and later. The
# attributes of each operator are listed too; a node with an unknown attribute is refused.


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


ELEMENTS = (
    *("FLOAT", "DOUBLE", "FLOAT16", "BFLOAT16", "BOOL"),
    *("INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64"),
)
"""Types of constants; numbers of 8 bits and fewer other than these are for quantised graphs."""


@dataclass(frozen=True)
class Node:
    """One operation: values by name, an empty name where an optional input is left out."""

    operator: str
    inputs: tuple[str, ...]
    """Names of the inputs; empty where an optional input is left out."""
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        attributes = ", ".join(f"{key}={value}" for key, value in sorted(self.attributes.items()))
        return f"{', '.join(self.outputs)} = {self.operator}({', '.join(self.inputs)}) {{{attributes}}}"


@dataclass(frozen=True)
class Graph:
    """The nodes that lead from one input to one output, and the constants they read."""

    input: str
    output: str
    nodes: tuple[Node, ...]
    constants: Mapping[str, Tensor]


def parse(model: Any, output: str, name: str) -> Graph:
    """Part of an ONNX model that one output needs.

    Raises:
        HoldfastError: It needs several inputs, none, or unknown operators.
    """
    needed, nodes = {output}, []
    for proto in reversed(model.graph.node):
        if not needed.isdisjoint(proto.output):
            nodes.append(_node(proto, needed))
            needed.update(filter(None, proto.input))
    nodes.reverse()
    constants = {value.name: _tensor(value) for value in model.graph.initializer if value.name in needed}
    unknown = sorted({node.operator for node in nodes} - OPERATORS.keys() - {"Constant"})
    if unknown:
        raise HoldfastError(
            f"{name!r} uses operators that cannot be imported: {', '.join(unknown)}; "
            f"supported: {', '.join(sorted({*OPERATORS, 'Constant'}))}"
        )
    for node in nodes:
        _check_attributes(node)
        if node.operator == "Constant":
            constants[node.outputs[0]] = _constant(node.attributes)
    inputs = [value.name for value in model.graph.input if value.name in needed and value.name not in constants]
    if len(inputs) != 1:
        raise HoldfastError(f"{name!r} needs {len(inputs)} inputs {inputs}; an encoder takes pixels alone")
    if lost := sorted(needed - {*inputs, *constants, *(value for node in nodes for value in node.outputs)}):
        raise HoldfastError(
            f"{name!r} computes no value {lost[0]!r}, which it reads (sparse weights are not imported). Export it again."
        )
    return Graph(inputs[0], output, tuple(node for node in nodes if node.operator != "Constant"), constants)


def _node(proto: Any, needed: Set[str]) -> Node:
    """Return a node, outputs that nothing reads without a name."""
    onnx = require("onnx", "onnx")
    operator = proto.op_type if proto.domain in ("", "ai.onnx") else f"{proto.domain}.{proto.op_type}"
    attributes = {entry.name: _attribute(onnx.helper.get_attribute_value(entry)) for entry in proto.attribute}
    return Node(operator, tuple(proto.input), tuple(out if out in needed else "" for out in proto.output), attributes)


def _check_attributes(node: Node) -> None:
    unknown = sorted(node.attributes.keys() - set(ATTRIBUTES.get(node.operator, ())))
    if unknown:
        raise HoldfastError(
            f"the ONNX operator {node.operator} with attribute {', '.join(unknown)} is not supported; export without it"
        )


def _attribute(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode()
    if hasattr(value, "raw_data"):
        return _tensor(value)
    return list(value) if isinstance(value, (list, tuple)) else value


def _tensor(proto: Any) -> Tensor:
    onnx = require("onnx", "onnx")
    kind = onnx.TensorProto.DataType.Name(proto.data_type)
    if kind not in ELEMENTS:
        raise HoldfastError(f"the ONNX value {proto.name!r} has element type {kind}, which is not supported")
    array = onnx.numpy_helper.to_array(proto)
    if kind == "BFLOAT16":  # numpy has no such type; float32 holds each of its numbers
        array = array.astype(np.float32)
    return torch.from_numpy(array.copy())


def _constant(attributes: Mapping[str, Any]) -> Tensor:
    (value,) = attributes.values()
    return value if isinstance(value, Tensor) else torch.tensor(value)


class OnnxModule(nn.Module):
    """Module that runs a graph; floating constants are parameters."""

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self.graph = Graph(graph.input, graph.output, graph.nodes, {})
        self.slots = {name: f"c{place}" for place, name in enumerate(graph.constants)}
        for name, value in graph.constants.items():
            if value.is_floating_point() and value.ndim:
                self.register_parameter(self.slots[name], nn.Parameter(value.float(), requires_grad=False))
            else:
                self.register_buffer(self.slots[name], value.float() if value.is_floating_point() else value)
        settings = {
            name for node in graph.nodes for name in node.inputs[SETTINGS.get(node.operator, len(node.inputs)) :]
        }
        self.known = {
            name: value
            for name, value in graph.constants.items()
            if name in settings or not value.is_floating_point() or value.numel() == 1
        }
        self.last_use = _last_use(graph)

    def extra_repr(self) -> str:
        return "\n".join(map(str, (self.slots, *self.graph.nodes)))

    def forward(self, x: Tensor) -> Tensor:
        values = {name: getattr(self, slot) for name, slot in self.slots.items()}
        values[self.graph.input] = x
        with _disable_current_modes():
            known = {
                name: value.to(x.dtype) if value.is_floating_point() else value for name, value in self.known.items()
            }
        for place, node in enumerate(self.graph.nodes):
            if node.operator in ("Shape", "Size") or all(name in known for name in node.inputs if name):
                with _disable_current_modes():
                    inputs = [known.get(name, values.get(name)) for name in node.inputs]
                    known.update(_results(node, inputs, x.dtype, torch.device("cpu")))
            else:
                values.update(_results(node, _inputs(node, values, known, x), x.dtype, x.device))
            for name in self.last_use.get(place, ()):  # what nothing reads any more need not stay in memory
                values.pop(name, None)
        return {**known, **values}[self.graph.output].to(x.device)


def _inputs(node: Node, values: Mapping[str, Tensor], known: Mapping[str, Tensor], x: Tensor) -> list[Any]:
    """Return what a node reads: settings as arrays, which no tracing sees, and all else where the pixels are."""
    first = SETTINGS.get(node.operator, len(node.inputs))
    arrays: list[Any] = []
    for place, name in enumerate(node.inputs):
        if place >= first and name in known:
            with _disable_current_modes():
                arrays.append(known[name].numpy())
        else:
            arrays.append(values[name] if name in values else known[name].to(x.device) if name else None)
    return arrays


def _results(node: Node, inputs: list[Any], dtype: torch.dtype, device: torch.device) -> dict[str, Tensor]:
    call = Call(node.operator, node.attributes, len(node.outputs), dtype, device)
    results = OPERATORS[node.operator](call, *inputs)
    results = results if isinstance(results, tuple) else (results,)
    if any(node.outputs[len(results) :]):
        raise call.refuse("more outputs than the first")
    return {name: value for name, value in zip(node.outputs, results, strict=False) if name}


def _last_use(graph: Graph) -> dict[int, list[str]]:
    last = {name: place for place, node in enumerate(graph.nodes) for name in node.inputs if name}
    last.pop(graph.output, None)
    ends: dict[int, list[str]] = {}
    for name, place in last.items():
        ends.setdefault(place, []).append(name)
    return ends
