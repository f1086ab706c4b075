"""From a module to a graph: ``torch.export`` at batch one, then one rewriting per operation it names.

An operation without a rewriting is refused by name: taken for affine, it would give bounds that do not hold.
"""

from __future__ import annotations

import operator
import warnings
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, fx, nn

from holdfast.bounds.graph import Builder, Graph, Var
from holdfast.bounds.operations import OPERATIONS
from holdfast.encoder import Encoder
from holdfast.errors import HoldfastError

_KNOWN: WeakKeyDictionary[Encoder, dict[tuple[torch.dtype, torch.device], Graph]] = WeakKeyDictionary()


def trace(encoder: Encoder, dtype: torch.dtype = torch.float64, device: str | torch.device = "cpu") -> Graph:
    """Return ``encoder`` as a graph of operations that can be bounded; kept while the encoder lives.

    Raises:
        HoldfastError: it cannot be traced, or uses an operation that cannot be bounded.

    Example:
        >>> from torch import nn
        >>> from holdfast.encoder import Domain
        >>> graph = trace(Encoder(nn.Sequential(nn.Flatten(), nn.Linear(4, 2), nn.ReLU()), "tiny", Domain((1, 2, 2))))
        >>> [node.name for node in graph.nodes]
        ['input', 'view', 'linear', 'relu']
    """
    known = _KNOWN.setdefault(encoder, {})
    key = (dtype, torch.device(device))
    if key not in known:
        known[key] = _trace(encoder.to(device, dtype), *key)
    return known[key]


def _trace(encoder: Encoder, dtype: torch.dtype, device: torch.device) -> Graph:
    shape = (1, *encoder.domain.shape)
    program = _export(encoder.module, encoder.name, torch.zeros(shape, dtype=dtype, device=device))
    builder = Builder(shape, dtype, device)
    values = dict(_placeholders(program, builder))
    for node in program.graph.nodes:
        if node.op == "call_function":
            values[node] = _rewrite(builder, encoder.name, node, values)
        elif node.op == "output":
            (output,) = _filled(node.args[0], values)
    if not isinstance(output, Var) or len(output.shape) != 2 or output.shape[0] != 1:
        got = output.shape if isinstance(output, Var) else "something that does not depend on the input"
        raise HoldfastError(f"{encoder.name} must return one vector per image to be bounded, got {got}")
    return builder.graph(output)


def _export(module: nn.Module, name: str, example: Tensor) -> Any:
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # torch's own, about its own copies
            # Decomposed by no table: all that happens is that in-place operations become functions.
            return torch.export.export(module, (example,), strict=False).run_decompositions({})
    except Exception as error:  # whatever tracing a stranger's module raises is what the reader must hear
        reason = str(error).strip().partition("\n")[0]
        raise HoldfastError(
            f"{name} cannot be traced for bounds ({type(error).__name__}: {reason}); "
            "its forward must not branch on values"
        ) from error


def _placeholders(program: Any, builder: Builder) -> list[tuple[fx.Node, Var | Tensor]]:
    """Return the value of each placeholder: weights and buffers are constants."""
    stored = {**program.state_dict, **program.constants}
    nodes = [node for node in program.graph.nodes if node.op == "placeholder"]
    return [
        (node, Var(0, builder.nodes[0].shape) if spec.target is None else stored[spec.target].detach())
        for node, spec in zip(nodes, program.graph_signature.input_specs, strict=True)
    ]


def _rewrite(builder: Builder, owner: str, node: fx.Node, values: dict[fx.Node, Any]) -> Any:
    args, kwargs = _filled((node.args, node.kwargs), values)
    if node.target is operator.getitem:
        if args[1] >= len(args[0]):
            raise HoldfastError(f"{owner} uses places or statistics of {node.args[0]}, which cannot be bounded")
        return args[0][args[1]]
    assert callable(node.target)
    depends: list[Var] = []
    fx.node.map_aggregate((args, kwargs), lambda value: depends.append(value) if isinstance(value, Var) else None)
    if not depends:
        return node.target(*args, **kwargs)
    builder.naming = _name(node.target)
    if builder.naming not in OPERATIONS:
        raise HoldfastError(
            f"{owner} uses the operation {builder.naming!r} ({node.name}), which cannot be bounded; "
            "docs/bounds.md lists what can"
        )
    kwargs = {key: value for key, value in kwargs.items() if key != "dtype"}  # bounds are in the graph's own
    try:
        result = OPERATIONS[builder.naming](builder, *args, **kwargs)
        _check(result, node.meta.get("val"))
    except HoldfastError:
        raise
    except Exception as error:  # an overload or a setting that no rewriting knows
        reason = str(error).strip().partition("\n")[0]
        raise HoldfastError(
            f"{owner} uses the operation {builder.naming!r} ({node.name}) in a way that cannot be bounded "
            f"({type(error).__name__}: {reason}); docs/bounds.md lists what can"
        ) from error
    return result


def _check(result: Any, traced: Any) -> None:
    """Refuse results that are not those of the traced operation, or that it rounds."""
    if isinstance(result, Var):
        if traced.dtype not in (torch.float32, torch.float64):
            raise HoldfastError(f"a cast to {traced.dtype} rounds and cannot be bounded; compute in float32 or float64")
        assert result.shape == tuple(traced.shape), f"shape {tuple(traced.shape)} expected, got {result.shape}"
    elif isinstance(result, list):
        for part, other in zip(result, traced, strict=False):
            _check(part, other)


def _filled(arguments: Any, values: dict[fx.Node, Any]) -> Any:
    """Return ``arguments`` with each node replaced by its value."""
    return fx.map_arg(arguments, values.__getitem__)


def _name(target: Any) -> str:
    """Return the name of an operation without its library and overload: aten.add_.Tensor is add_."""
    return str(target).removeprefix("aten.").partition(".")[0]
