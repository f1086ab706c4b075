"""``onnx:encoder.onnx?output=NAME&pool=mean``: an ONNX graph, rebuilt from torch operations so that it has gradients.

``output`` may name any value of the graph, so that a classification head can be left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from holdfast.core.encoder import Encoder
from holdfast.core.errors import HoldfastError, did_you_mean
from holdfast.encoders.loading.inputs import InputSettings, encoder_of
from holdfast.encoders.loading.reference import Options, existing, first_line, require, split
from holdfast.encoders.onnx.graph import OnnxModule, parse
from holdfast.encoders.wrappers import Pooled, for_batches

SOURCE = "onnx"
OLDEST_OPSET = 13


@dataclass(frozen=True)
class Settings(InputSettings):
    """Settings of an ONNX reference."""

    output: str | None = None
    """The value that holds the codes; by default the graph's only output."""
    pool: str | None = None
    """``cls`` or ``mean``, where the output is tokens (b, t, d) or a feature map (b, d, height, width)."""


def load(name: str, options: Options) -> Encoder:
    """Return the graph in the file ``name``; ``?mean=...&std=...`` states the normalisation that it expects."""
    name, settings = split(name, Settings)
    path = existing(name)
    onnx = require("onnx", "onnx")
    try:
        model = onnx.load(path)
        onnx.checker.check_model(model)
    except Exception as error:  # protobuf, the checker and missing data files each raise their own
        raise HoldfastError(f"{name!r} is not a whole ONNX model ({first_line(error)}); export it again") from error
    if model.functions:
        model = onnx.inliner.inline_local_functions(model)
    opset = max((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), default=0)
    if opset < OLDEST_OPSET:
        raise HoldfastError(
            f"{name!r} uses operator set {opset}, older than {OLDEST_OPSET}; "
            f"raise it with onnx.version_converter.convert_version(model, {OLDEST_OPSET})"
        )
    graph = parse(model, _output(model, settings.output, name), name)
    batch, *shape = _input_shape(model, graph.input, name)
    module = for_batches(OnnxModule(graph), batch, name, "export it with a dynamic batch axis, or for one image")
    if settings.pool:
        module = Pooled(module, settings.pool)
    return encoder_of(module, name, settings, tuple(shape), options.size)


def _output(model: Any, wanted: str | None, name: str) -> str:
    offered = [value.name for value in model.graph.output]
    inner = [value for node in model.graph.node for value in node.output if value]
    if wanted is None and len(offered) == 1:
        return str(offered[0])
    if wanted is None:
        raise HoldfastError(f"{name!r} has {len(offered)} outputs; choose one: ?output={'|'.join(offered)}")
    if wanted not in (*offered, *inner):
        raise HoldfastError(f"{name!r} computes no value {wanted!r}; {did_you_mean(wanted, offered + inner[-20:])}")
    return wanted


def _input_shape(model: Any, name: str, file: str) -> tuple[int | None, ...]:
    """Return the shape of the graph's input, batch first, None where it is free."""
    value = next(value for value in model.graph.input if value.name == name)
    sizes = tuple(size.dim_value or None for size in value.type.tensor_type.shape.dim)
    if len(sizes) < 2:
        raise HoldfastError(f"{file!r} takes {name!r} of shape {sizes}; an encoder takes a batch of pixels")
    return sizes
