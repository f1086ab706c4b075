"""What the input of an ONNX graph is: its element type and its shape, with or without a batch axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from holdfast.core.errors import HoldfastError
from holdfast.encoders.loading.reference import require
from holdfast.encoders.onnx.graph import Graph, Node

LEVELS = 255
"""The largest value of a pixel in uint8."""
MOVES = {
    *("Concat", "DepthToSpace", "Expand", "Flatten", "Gather", "GatherElements", "Identity", "Reshape", "Slice"),
    *("SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze"),
}
"""Operators that compute the same in float as in uint8, as they only move entries."""
FLOATS = ("FLOAT", "FLOAT16", "BFLOAT16", "DOUBLE")


def takes_levels(graph: Graph, value: Any, file: str) -> bool:
    """True if the graph takes uint8 pixels (0 to 255), false for floats.

    Args:
        graph: Graph.
        value: Description of the input in the model.
        file: Name of the file in errors.

    Raises:
        HoldfastError: The input has another type, or the graph computes in uint8 before it casts to float.
    """
    onnx = require("onnx", "onnx")
    kind = onnx.TensorProto.DataType.Name(value.type.tensor_type.elem_type)
    if kind in FLOATS:
        return False
    if kind != "UINT8":
        raise HoldfastError(
            f"{file!r} takes {graph.input!r} of type {kind}; an encoder takes pixels as float or uint8. "
            "Export it with a float input."
        )
    levels = {graph.input}
    for node in graph.nodes:
        read = levels.intersection(node.inputs)
        if read and node.operator in MOVES:
            levels.update(node.outputs)
        elif read and not _leaves(node, graph):
            raise HoldfastError(
                f"{file!r} computes {node.operator} in uint8, which rounds or overflows and has no gradient. "
                "Export it with a Cast to float first."
            )
    return True


def _leaves(node: Node, graph: Graph) -> bool:
    """Return whether ``node`` reads uint8 pixels and returns something else, without loss."""
    if node.operator in ("Shape", "Size"):
        return True
    if node.operator == "CastLike":
        like = graph.constants.get(node.inputs[1])
        return like is not None and like.is_floating_point()
    floats = [getattr(require("onnx", "onnx").TensorProto, kind) for kind in FLOATS]
    return node.operator == "Cast" and node.attributes["to"] in floats


def shape_of(value: Any) -> Sequence[int | None]:
    """Return the sizes that the file declares of a value, None where one is free."""
    return tuple(size.dim_value or None for size in value.type.tensor_type.shape.dim)


class Levels(nn.Module):
    """Graph of uint8 pixels as a function of pixels in [0, 1], without rounding."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        return self.module(x * LEVELS)


class Unbatched(nn.Module):
    """A graph without a batch axis, as a function of a batch of one."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        return self.module(x[0])


class Column(nn.Module):
    """A graph that returns one number per image (b,), as one that returns vectors (b, 1)."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        return self.module(x)[:, None]
