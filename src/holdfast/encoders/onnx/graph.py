"""An ONNX graph as a torch module: its nodes in order, each an entry of the operator table.

Values that follow from shapes and constants alone (sizes to reshape to, axes, ranges) are computed on the CPU, outside of
any tracing. A traced graph then has known sizes, and no device must be waited for.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from holdfast.core.errors import HoldfastError
from holdfast.encoders.loading.reference import require
from holdfast.encoders.onnx.operators import ATTRIBUTES, OPERATORS, SETTINGS, Call

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
    return Node(
        operator, tuple(proto.input), tuple(each if each in needed else "" for each in proto.output), attributes
    )


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
