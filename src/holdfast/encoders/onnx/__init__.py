"""``onnx:encoder.onnx?output=NAME&pool=mean``: an ONNX graph, rebuilt from torch operations so that it has gradients.

``output`` may name any value of the graph, so that a classification head can be left out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from holdfast.core.encoder import Encoder
from holdfast.core.errors import HoldfastError, UnknownName, existing
from holdfast.encoders.by_name import Options, split
from holdfast.encoders.loading.inputs import InputSettings, encoder_of
from holdfast.encoders.onnx.files import Column, Levels, Unbatched, read_model, shape_of, takes_levels
from holdfast.encoders.onnx.graph import OnnxModule, parse
from holdfast.encoders.wrappers import Pooled, for_batches

SOURCE = "onnx"


@dataclass(frozen=True)
class Settings(InputSettings):
    """Settings of an ONNX reference."""

    output: str | None = None
    """Name of the output that holds the embeddings; default: the only output."""
    pool: str | None = None
    """``cls`` or ``mean``, where the output is tokens (b, t, d) or a feature map (b, d, height, width)."""


def load(name: str, options: Options) -> Encoder:
    """ONNX graph as an encoder; ``?mean=...&std=...`` states its normalisation."""
    name, settings = split(name, Settings)
    model = read_model(existing(name), name)
    graph = parse(model, _output(model, settings.output, name), name)
    value = next(value for value in model.graph.input if value.name == graph.input)
    module: nn.Module = OnnxModule(graph)
    if takes_levels(graph, value, name):
        settings = _levels(settings, name)
        module = Levels(module)
    sizes = shape_of(value)
    if not sizes:
        raise HoldfastError(f"{name!r} takes {graph.input!r} of no axes; encoders take pixels. Export it with a shape.")
    if len(sizes) == 1:
        module = Unbatched(module)
    batch, *shape = (1, *sizes) if len(sizes) == 1 else sizes
    if batch is None and any(len(shape_of(o)) == 1 for o in model.graph.output if o.name == graph.output):
        module = Column(module)
    module = for_batches(module, batch, name, "export it with a dynamic batch axis, or for one image")
    if settings.pool:
        module = Pooled(module, settings.pool)
    return encoder_of(module, name, settings, tuple(shape), options.size)


def _levels(settings: Settings, name: str) -> Settings:
    """Return the settings of a graph of uint8 pixels, which normalises them itself."""
    if (settings.mean, settings.std, settings.low, settings.high) != (None, None, 0.0, 1.0):
        raise HoldfastError(f"{name!r} takes uint8 pixels, so it normalises inside; leave out mean, std, low and high")
    return replace(settings, mean="0", std="1")


def _output(model: Any, wanted: str | None, name: str) -> str:
    offered = [value.name for value in model.graph.output]
    inner = [value for node in model.graph.node for value in node.output if value]
    if wanted is None and len(offered) == 1:
        return str(offered[0])
    if wanted is None:
        raise HoldfastError(f"{name!r} has {len(offered)} outputs; choose one: ?output={'|'.join(offered)}")
    if wanted not in (*offered, *inner):
        raise UnknownName(f"values computed by {name!r}", wanted, offered + inner[-20:])
    return wanted
