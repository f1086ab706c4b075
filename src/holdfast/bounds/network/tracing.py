"""From a module to a graph: its program at batch one (``program``), then one rewriting per operation it names.

An operation without a rewriting is refused by name: taken for affine, it would give bounds that do not hold. So is a
random one, whatever it draws from: its result would be frozen into a constant.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, final
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_map_only

from holdfast.bounds.network.calls import (
    ENTRIES,
    EXACT,
    FEW,
    check_executed,
    check_precision,
    precision_of,
    rounding,
)
from holdfast.bounds.network.consistency import (
    State,
    call,
    check_graph,
    check_repeatable,
    probes,
    same_program,
    state,
)
from holdfast.bounds.network.graph import Builder, Graph, Var
from holdfast.bounds.network.operations import OPERATIONS
from holdfast.bounds.network.program import check_operations, exported_program, functional_program, operation_name
from holdfast.core.encoder import Codes, Encoder, Pixels
from holdfast.core.errors import HoldfastError

_GRAPHS: WeakKeyDictionary[Encoder, dict[tuple[torch.dtype, torch.device], tuple[State, Graph]]] = WeakKeyDictionary()
"""Of each encoder its graphs, each with the weights and attributes that it was traced with."""

CASTS = frozenset(("_to_copy", "to", "type_as"))
"""Operations that change the type alone."""


def trace(encoder: Encoder, dtype: torch.dtype = torch.float64, device: str | torch.device = "cpu") -> Graph:
    """Return ``encoder`` as a graph of operations that can be bounded; kept while the encoder lives and stays as it is.

    Raises:
        HoldfastError: it cannot be traced, uses an operation that cannot be bounded, or is not executed as it is traced.

    Example:
        >>> from torch import nn
        >>> from holdfast.core.encoder import Domain
        >>> graph = trace(Encoder(nn.Sequential(nn.Flatten(), nn.Linear(4, 2), nn.ReLU()), "tiny", Domain((1, 2, 2))))
        >>> [node.name for node in graph.nodes]
        ['input', 'flatten', 'linear', 'relu']
    """
    graphs = _GRAPHS.setdefault(encoder, {})
    key = (dtype, torch.empty(0, device=device).device)  # "cuda" and "cuda:0" are one device, to be traced for once
    check_precision(encoder, *key)
    kept = graphs.get(key)
    if kept is not None and kept[0] == state(encoder.module):
        return kept[1]
    graph = _trace(encoder, *key)
    graphs[key] = state(encoder.module), graph  # with what the module keeps of its calls
    return graph


def _trace(encoder: Encoder, dtype: torch.dtype, device: torch.device) -> Graph:
    """Return the graph of ``encoder``, moved to ``dtype``, once it is sure that it is what ``encoder`` computes."""
    pixels = probes(encoder.domain, torch.float32, device).to(dtype)  # which both precisions hold
    moved = encoder.to(device, dtype)
    call(moved, pixels[:1])  # before tracing, so that what a module keeps from its first call is there
    exported = exported_program(moved, pixels[:1])
    # Most encoders that cannot be bounded are refused here, before they are called on many images.
    graph = graph_of(moved.name, moved.domain.shape, exported, dtype, device)
    codes = call(moved, pixels)
    if not codes.isfinite().any(0).all():
        raise HoldfastError(
            f"{encoder.name} returns NaN or infinite codes in {dtype}, of which nothing can be proved; check its weights"
        )
    allowed = _coarsest(exported, dtype) ** 0.5  # half of the digits, which rounding never reaches
    check_repeatable(moved, pixels, codes, allowed)
    if not same_program(exported, exported_program(moved, pixels[:1])):
        raise HoldfastError(
            f"{encoder.name} is another function each time it is traced, so it cannot be bounded; "
            "look for randomness and counters in its forward"
        )
    check_graph(moved, graph, pixels, codes, allowed)
    precision, largest = precision_of(encoder), ENTRIES // graph.entries
    check_executed(moved, pixels, codes, allowed, largest if precision == dtype else min(largest, FEW))
    if precision != dtype:
        _check_original(encoder.to(device, precision), pixels.to(precision), codes, allowed, largest)
    return graph


def _check_original(encoder: Encoder, pixels: Pixels, codes: Codes, rounded: float, largest: int) -> None:
    """Raise unless ``encoder``, in the precision it is executed in, returns ``codes`` without rounding in between.

    ``rounded`` is the share of their size by which ``codes`` themselves may be off, since the coarser precision may be
    that of the bounds.
    """
    exported = exported_program(encoder, pixels[:1])
    check_operations(encoder.name, exported)
    for value in _values(exported):
        if value.dtype not in EXACT:
            raise HoldfastError(
                f"{encoder.name} casts to {value.dtype} where it is executed in {pixels.dtype}, with rounding that no bound "
                "accounts for; compute in float32 or float64 throughout"
            )
    allowed = max(rounding(pixels.dtype, pixels.device), _coarsest(exported, pixels.dtype)) ** 0.5
    check_repeatable(encoder, pixels, call(encoder, pixels), allowed)
    check_executed(encoder, pixels, codes, max(allowed, rounded), largest)


def _coarsest(exported: Any, dtype: torch.dtype) -> float:
    """Return the largest relative rounding in a program: some modules sum or normalise in float32 whatever they get."""
    return max(torch.finfo(kind).eps for kind in {dtype, *(value.dtype for value in _values(exported))})


def _values(exported: Any) -> list[Tensor]:
    """Return stand-ins for all floating-point values in a program."""
    values = (node.meta.get("val") for node in exported.graph.nodes)
    return [value for value in values if isinstance(value, Tensor) and value.is_floating_point()]


@final
class Program:
    """A module traced once, whose graph can be made again for the weights that training has made of it since.

    Where ``trace`` takes weights for constants, gradients pass from what is computed of this graph to the weights.
    """

    def __init__(self, encoder: Encoder, example: Pixels) -> None:
        """Trace ``encoder`` as it is, in the mode it is in; ``example`` is one image (1, *shape), on its device.

        Raises:
            HoldfastError: it cannot be traced, or uses an operation that cannot be bounded.
        """
        self.name, self.shape = encoder.name, encoder.domain.shape
        self.exported = functional_program(self.name, exported_program(encoder, example))
        self.graph(encoder.module, example.dtype)

    def graph(self, module: nn.Module, dtype: torch.dtype) -> Graph:
        """Return the graph with the weights and buffers that ``module`` has now."""
        named = (
            *module.named_parameters(remove_duplicate=False),
            *module.named_buffers(remove_duplicate=False),
        )
        values = {f"module.{name}": value for name, value in named}
        device = next(iter(values.values())).device
        constants = {
            name: value.to(device) if isinstance(value, Tensor) else value
            for name, value in self.exported.constants.items()
        }
        return _rewritten(self.name, self.shape, self.exported, {**constants, **values}, dtype, device)


def graph_of(
    name: str,
    shape: tuple[int, ...],
    exported: Any,
    dtype: torch.dtype,
    device: torch.device,
    record: Recorder | None = None,
) -> Graph:
    """Return the graph of an exported program; ``record`` notes what it rounds."""
    program = functional_program(name, exported)
    constants = {
        target: value.detach() if isinstance(value, Tensor) else value
        for target, value in {**program.state_dict, **program.constants}.items()
    }
    return _rewritten(name, shape, program, constants, dtype, device, record)


Recorder = Callable[[Builder, fx.Node, Any, Any, Any], None]
"""Notes what an operation that depends on the input rounds: from its node, its arguments and its result."""


def _rewritten(
    name: str,
    shape: tuple[int, ...],
    program: Any,
    stored: Mapping[str, Any],
    dtype: torch.dtype,
    device: torch.device,
    record: Recorder | None = None,
) -> Graph:
    """Return the graph of a program whose weights, buffers and constants are those ``stored``.

    With ``record``, the program may be in any precision: what it rounds is noted.
    """
    builder = Builder((1, *shape), dtype, device)
    values = dict(_placeholders(program, builder, stored))
    for node in program.graph.nodes:
        if node.op == "call_function" and node.users:
            values[node] = _rewrite(builder, name, node, values, record)
        elif node.op == "output":
            (output,) = _filled(node.args[0], values)
    if not isinstance(output, Var) or len(output.shape) != 2 or output.shape[0] != 1:
        returned = output.shape if isinstance(output, Var) else "something that does not depend on the input"
        raise HoldfastError(f"{name} must return one vector per image to be bounded, got {returned}")
    return builder.graph(output)


def _placeholders(program: Any, builder: Builder, stored: Mapping[str, Any]) -> list[tuple[fx.Node, Var | Tensor]]:
    """Return the value of each placeholder: weights and buffers are those ``stored``."""
    nodes = [node for node in program.graph.nodes if node.op == "placeholder"]
    return [
        (node, Var(0, builder.nodes[0].shape) if spec.target is None else stored[spec.target])
        for node, spec in zip(nodes, program.graph_signature.input_specs, strict=True)
    ]


def _rewrite(
    builder: Builder, owner: str, node: fx.Node, values: dict[fx.Node, Any], record: Recorder | None = None
) -> Any:
    args, kwargs = _filled((node.args, node.kwargs), values)
    if node.target is operator.getitem:
        if args[1] >= len(args[0]):
            raise HoldfastError(f"{owner} uses indices or statistics of {node.args[0]}, which cannot be bounded")
        return args[0][args[1]]
    assert callable(node.target)
    name = operation_name(node.target)
    depends: list[Var] = []
    fx.node.map_aggregate((args, kwargs), lambda value: depends.append(value) if isinstance(value, Var) else None)
    if depends and name not in OPERATIONS:
        raise HoldfastError(
            f"{owner} uses the operation {name!r} ({node.name}), which cannot be bounded; docs/bounds.md lists what can"
        )
    builder.naming = name
    try:
        if not depends:
            if record:
                record(builder, node, args, kwargs, None)
            return _constant(node.target, name, args, kwargs)
        if record:
            args, kwargs = tree_map_only(Tensor, builder.widened, (args, kwargs))
        # Bounds are in the graph's own precision.
        result = OPERATIONS[name](builder, *args, **{key: value for key, value in kwargs.items() if key != "dtype"})
        if record and name in CASTS and isinstance(result, Var):
            result = builder.combine([1.0], result)  # what is cast differs from what is not
        if record:
            record(builder, node, args, kwargs, result)
        else:
            _check(result, node.meta.get("val"))
    except HoldfastError:
        raise
    except Exception as error:  # an overload or a setting that no rewriting knows
        reason = str(error).strip().partition("\n")[0]
        raise HoldfastError(
            f"{owner} uses the operation {name!r} ({node.name}) in a way that cannot be bounded "
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


def _constant(function: Callable[..., Any], name: str, args: Any, kwargs: Any) -> Any:
    """Return what does not depend on the input; memory that nothing has set yet is unknown."""
    value = function(*args, **kwargs)
    if "empty" in name:
        value.fill_(torch.nan if value.is_floating_point() else torch.iinfo(value.dtype).max)
    return value


def _filled(arguments: Any, values: dict[fx.Node, Any]) -> Any:
    """Return ``arguments`` with each node replaced by its value."""
    return fx.map_arg(arguments, values.__getitem__)
