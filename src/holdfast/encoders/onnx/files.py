"""Reading ONNX files: checked, functions inlined, in an operator set that the import knows, weights in memory.

Also here: the input of an ONNX graph, its element type and its shape with or without a batch axis.
"""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from holdfast.core.errors import HoldfastError, explained, first_line
from holdfast.encoders.by_name import require
from holdfast.encoders.onnx.graph import Graph, Node
from holdfast.encoders.wrappers import Around

OLDEST_OPSET = 13
"""Operator sets before this one are converted to it."""
OLDEST_CONVERTED = 7
"""Before this one operators broadcast by other rules, which the converter does not always keep."""


def read_model(path: Path, name: str) -> Any:
    """ONNX model, possibly compressed (``.gz``), checked and ready to import.

    Raises:
        HoldfastError: The file is damaged, or its operator set cannot be converted.
    """
    onnx = require("onnx", "onnx")
    with explained(f"{name!r} is not a whole ONNX model", "export it again"):
        if path.suffix == ".gz":
            model = onnx.load_model_from_string(gzip.decompress(path.read_bytes()))
            onnx.checker.check_model(model)
        else:
            # By path: the checker serialises a model in memory, and no message may exceed 2 GiB.
            onnx.checker.check_model(str(path))
            model = onnx.load(path, load_external_data=False)
    if model.functions:
        model = onnx.inliner.inline_local_functions(model)
    old = opset(model) < OLDEST_OPSET
    if path.suffix != ".gz":  # after inlining, which serialises, and before conversion, which reads the data
        onnx.external_data_helper.load_external_data_for_model(model, str(path.parent))
    return _converted(model, name) if old else model


def opset(model: Any) -> int:
    """Return the version of ONNX's own operators that ``model`` uses; 0 if it uses none."""
    return max((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), default=0)


def _converted(model: Any, name: str) -> Any:
    onnx, reason = require("onnx", "onnx"), "its operators broadcast by other rules"
    try:
        if opset(model) >= OLDEST_CONVERTED:
            converted = onnx.version_converter.convert_version(model, OLDEST_OPSET)
            if opset(model) < 11:
                _keep_coordinates(converted)
            return converted
    except Exception as error:  # the converter raises RuntimeError, protobuf its own
        reason = first_line(error)
    raise HoldfastError(
        f"{name!r} uses operator set {opset(model)}, which cannot be converted to {OLDEST_OPSET} ({reason}). "
        f"Export it with operator set {OLDEST_OPSET} or later."
    )


def _keep_coordinates(model: Any) -> None:
    """State the coordinates of ``Resize`` before operator set 11, which the converter leaves to today's default."""
    onnx = require("onnx", "onnx")
    constants = {value.name: value for value in model.graph.initializer}
    constants |= {node.output[0]: node.attribute[0].t for node in model.graph.node if node.op_type == "Constant"}
    for node in model.graph.node:
        if node.op_type == "Resize":
            scales = constants.get(node.input[2])
            enlarges = scales is not None and (onnx.numpy_helper.to_array(scales) >= 1).all()
            # What the nearest pixel is when an image shrinks was left open; no name, so that it is refused.
            rounding = "floor" if enlarges else "unknown"
            said = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": rounding}
            node.attribute.extend(onnx.helper.make_attribute(*each) for each in said.items())


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


class Levels(Around):
    """Graph of uint8 pixels as a function of pixels in [0, 1], without rounding."""

    def forward(self, x: Tensor) -> Tensor:
        return self.module(x * LEVELS)


class Unbatched(Around):
    """A graph without a batch axis, as a function of a batch of one."""

    def forward(self, x: Tensor) -> Tensor:
        return self.module(x[0])


class Column(Around):
    """A graph that returns one number per image (b,), as one that returns vectors (b, 1)."""

    def forward(self, x: Tensor) -> Tensor:
        return self.module(x)[:, None]
