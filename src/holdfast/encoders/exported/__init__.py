"""``exported:encoder.pt2?trust=yes``: a program saved by ``torch.export.save``.

To torch's reader such a file is code: it evaluates expressions, unpickles objects and runs guards from the file. So
nothing is read unless the reference states that the file is trusted. As a second protection, torch is given only what is
on a list of everything that may appear, and guards are not run.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import torch

from holdfast.core.encoder import Encoder
from holdfast.core.errors import HoldfastError, existing, explained
from holdfast.encoders.by_name import Options, split
from holdfast.encoders.exported.program import checked_archive
from holdfast.encoders.loading.inputs import InputSettings, encoder_of
from holdfast.encoders.wrappers import Traced, for_batches

SOURCE = "exported"


@dataclass(frozen=True)
class Settings(InputSettings):
    """Settings of an exported reference: inputs, and permission to read the file."""

    trust: bool = False
    """True if you trust the author of the file: reading it can run code."""


def load(name: str, options: Options) -> Encoder:
    """Exported torch program; its graph decides the shape of the inputs."""
    name, settings = split(name, Settings)
    path = existing(name)
    if not settings.trust:
        raise HoldfastError(
            f"{name!r} is not read: opening an exported program can run code. If you trust its author, write "
            f"{SOURCE}:{name}?trust=yes. ONNX (onnx:FILE) or safetensors (checkpoint:FILE with --arch) need no trust."
        )
    program = _read(checked_archive(path), name)
    batch, *shape = _input_shape(program, name)
    module = for_batches(
        Traced(_unguarded(program)),
        batch,
        name,
        "export it with dynamic_shapes=({0: torch.export.Dim('b')},), or with one image",
    )
    return encoder_of(module, name, settings, tuple(shape), options.size)


def _read(archive: BytesIO, name: str) -> torch.export.ExportedProgram:
    fix = "export it again with this version of torch"
    with explained(f"{name!r} cannot be read as an exported program", fix):  # a damaged archive fails in many ways
        return torch.export.load(archive)


def _unguarded(program: torch.export.ExportedProgram) -> torch.nn.Module:
    """Return the program's module without its guards: they are code from the file; shapes are checked here."""
    takes = inspect.signature(program.module).parameters
    return program.module(**{"check_guards": False} if "check_guards" in takes else {})


def _input_shape(program: torch.export.ExportedProgram, name: str) -> tuple[int | None, ...]:
    """Return the shape of the only input, batch first, None where it is free."""
    inputs = program.graph_signature.user_inputs
    if len(inputs) != 1:
        raise HoldfastError(f"{name!r} takes {len(inputs)} inputs {list(inputs)}; an encoder takes pixels alone")
    value: Any = next(node for node in program.graph.nodes if node.name == inputs[0]).meta["val"]
    if not isinstance(value, torch.Tensor) or value.ndim < 2:
        raise HoldfastError(f"{name!r} takes {value}; an encoder takes a batch of pixels")
    return tuple(size if isinstance(size, int) else None for size in value.shape)
