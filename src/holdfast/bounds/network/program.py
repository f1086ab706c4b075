"""Programs of ``torch.export``: a module at batch one as named operations without side effects and random draws."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export.graph_signature import OutputKind

from holdfast.bounds.network.operations import OPERATIONS
from holdfast.core.copies import copied
from holdfast.core.encoder import Encoder
from holdfast.core.errors import CannotBound


class _Held(nn.Module):
    """A module one level down: at the top, parts called ``graph`` or ``code`` clash with what torch.fx calls so."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        return self.module(x)


def exported_program(encoder: Encoder, example: Tensor) -> Any:
    """Return the ``torch.export`` program of an encoder's module for one image, the ``example``.

    Raises:
        HoldfastError: it cannot be traced, or is made of TorchScript.
    """
    if any(isinstance(part, torch.jit.ScriptModule) for part in encoder.module.modules()):
        raise CannotBound(
            encoder.name,
            "TorchScript hides its operations",
            fix="load the torch.nn.Module that it was made of, or its ONNX export",
        )
    # A copy, since tracing leaves its own stand-ins for tensors wherever a module keeps one; the weights are shared.
    module = copied(encoder.module, {id(weight): weight for weight in encoder.module.parameters()})
    with _reasons(encoder.name), torch.no_grad():
        return torch.export.export(_Held(module), (example.clone(),), strict=False)


@contextmanager
def _reasons(name: str) -> Iterator[None]:
    """Turn whatever tracing raises into one sentence."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # torch's own, about its own copies
            yield
    except Exception as error:  # whatever tracing a stranger's module raises is what the reader must hear
        reason = str(error).strip().partition("\n")[0]
        raise CannotBound(
            name, f"it cannot be traced ({type(error).__name__}: {reason})", fix="let its forward not branch on values"
        ) from error


def functional_program(name: str, exported: Any) -> Any:
    """Return the program with functions for in-place operations.

    Raises:
        HoldfastError: an operation in it is random or changes anything.
    """
    check_operations(name, exported)
    program = exported
    if not _is_functional(exported):
        with _reasons(name), torch.no_grad():
            # Decomposed by no table: all that happens is that in-place operations become functions.
            program = exported.run_decompositions({})
        check_operations(name, program)
    _check_effects(name, program)
    return program


def _is_functional(exported: Any) -> bool:
    """Return whether no operation changes a value in place, by torch's own schemas.

    Most programs are so, and making functions of a program's operations takes torch longer than tracing it.
    """
    return all(
        node.target is operator.getitem
        or (
            node.users
            and operation_name(node.target) in OPERATIONS
            and not node.target._schema.is_mutable
            and not _updates(node)
        )
        for node in exported.graph.nodes
        if node.op == "call_function"
    )


def _updates(node: fx.Node) -> bool:
    """Return whether a normalisation uses its input's statistics and may update its stored ones."""
    # In place, of which its schema says nothing.
    return operation_name(node.target) in ("batch_norm", "instance_norm") and node.args[5:6] != (False,)


def check_operations(name: str, program: Any) -> None:
    """Raise if any operation draws random numbers, on the input or not, or casts what float64 happens to be spared."""
    for node in program.graph.nodes:
        if _draws(node):
            raise CannotBound(
                name,
                f"it uses the random operation {operation_name(node.target)!r} ({node.name})",
                fix="call eval() on the module, or leave the operation out",
            )
        if str(node.target) == "wrap_with_autocast" and node.args[2]:
            raise CannotBound(
                name, f"it computes under autocast in {node.args[1]}, which rounds", fix="compute in float32 or float64"
            )


def _check_effects(name: str, program: Any) -> None:
    """Raise unless the embedding is all that the program leaves behind."""
    for output in program.graph_signature.output_specs:
        if output.kind is OutputKind.USER_INPUT_MUTATION:
            raise CannotBound(name, "it changes its input in place", fix="write x = x - mean for x.sub_(mean)")
        if output.kind is not OutputKind.USER_OUTPUT:
            raise CannotBound(
                name,
                f"each call changes its own {output.target.removeprefix('module.')!r}",
                fix="keep no state in forward",
            )


IDLE = {"train": False, "training": False, "dropout_p": 0.0}
"""Arguments that keep an operation from drawing random numbers."""


def _draws(node: fx.Node) -> bool:
    """Return whether an operation draws random numbers, by torch's own tags."""
    operation: Any = node.target
    if torch.Tag.nondeterministic_seeded not in getattr(operation, "tags", ()):
        return False
    arguments = operation._schema.arguments
    positional = dict(zip((argument.name for argument in arguments), node.args, strict=False))
    settings = {argument.name: argument.default_value for argument in arguments} | positional | node.kwargs
    return not any(name in settings and settings[name] == idle for name, idle in IDLE.items())


def operation_name(target: Any) -> str:
    """Return the name of an operation without its library and overload: aten.add_.Tensor is add_."""
    return str(target).removeprefix("aten.").partition(".")[0]
