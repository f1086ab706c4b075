"""From a module to its graph, and a check that the encoder as executed computes what the graph computes.

An operation without a rule is refused by name.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import Any, final
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_map_only

from holdfast.bounds.network.consistency import (
    State,
    call,
    check_graph,
    check_repeatable,
    probes,
    same_program,
    slack,
    state,
    unlike,
)
from holdfast.bounds.network.network_graph import Builder, Graph, Var
from holdfast.bounds.network.operations import OPERATIONS
from holdfast.bounds.network.program import check_operations, exported_program, functional_program, operation_name
from holdfast.core.encoder import Codes, Encoder, Pixels
from holdfast.core.errors import CannotBound, Described, HoldfastError, OutOfRange
from holdfast.core.run_settings import factors_are_rounded

# Whether an encoder, as it is executed, is the function that bounds are of.
#
# Bounds are of a copy in the precision of the specifications, called on single images without gradients. The encoder
# itself runs in a precision of its own, in batches of many sizes, with gradients while it is attacked, and on images
# whose memory is laid out in other ways. A module may ask about any of these, so it is called in all of them.

EXACT = (torch.float32, torch.float64)
"""Precisions whose rounding certificates may leave out."""
ALONE = (1, 3)
"""Batches that are tried of a network which is called with one image at a time."""
SIZES = (*range(1, 65), 96, 98, 100, 125, 128, 150, 192, 196, 200, 224, 250, 256, 300, 400, 500, 512, 600, 800, 1000)
"""Batches that are tried, as far as ``ENTRIES`` reach: those of up to 64 images, and usual larger ones."""
ENTRIES = 2**25  # of nodes in a batch: encoders of up to a hundred thousand are tried in batches of 256
FEW = 32
"""The largest batch that is tried of a copy, which attacks and witnesses alone are computed with."""
TENSOR_CORES = 2.0**-11
"""The rounding of factors in float32 on GPUs, unless torch is set otherwise."""

Execute = Callable[[Encoder, Pixels], Codes]


def check_precision(encoder: Encoder, dtype: torch.dtype, device: torch.device) -> None:
    """Raise if the bound or the encoder, now or by its weights, computes in less than float32."""
    if dtype not in EXACT:
        raise HoldfastError(f"bounds are computed in float32 or float64, got {dtype}; convert the specifications")
    if torch.is_autocast_enabled(device.type):
        raise HoldfastError(
            f"{encoder.name} would be executed under autocast in {torch.get_autocast_dtype(device.type)}, whose rounding "
            "no bound accounts for; leave torch.autocast to ask for bounds"
        )
    for name, value in (*encoder.module.named_parameters(), *encoder.module.named_buffers()):
        if value.is_floating_point() and value.dtype not in EXACT:
            raise HoldfastError(
                f"{encoder.name} has weights in {value.dtype} ({name}): it is executed with rounding that no bound accounts "
                "for and that moves embeddings past what is proved; bound and run it in float32, or certify it by smoothing"
            )


def precision_of(encoder: Encoder) -> torch.dtype:
    """Return the precision an encoder is executed in: that of its first weights, float32 where it has none."""
    weights = (*encoder.module.parameters(), *encoder.module.buffers())
    return next((weight.dtype for weight in weights if weight.is_floating_point()), torch.float32)


def rounding(dtype: torch.dtype, device: torch.device) -> float:
    """Return the largest relative rounding of an operation in ``dtype``."""
    if device.type == "cuda" and dtype == torch.float32 and factors_are_rounded():
        return TENSOR_CORES
    return torch.finfo(dtype).eps


def check_executed(encoder: Encoder, pixels: Pixels, codes: Codes, allowed: float, largest: int) -> None:
    """Raise unless ``encoder`` returns ``codes`` of ``pixels`` in every mode in which it is executed.

    Args:
        encoder: in the precision to bound.
        pixels: images, in the same.
        codes: those that bounds are of, in any precision.
        allowed: by how much they may differ, as a fraction of their size.
        largest: batch to try.
    """
    room = slack(codes, allowed)
    _compare(encoder, call(encoder, pixels), codes, room, "")
    usual = [size for size in SIZES if size <= max(len(pixels), largest)]
    sizes = ALONE if calls_one_by_one(encoder.module) else usual
    batches = [(f" in a batch of {size}", [row % len(pixels) for row in range(size)], call) for size in sizes]
    modes = [(f" {mode}", list(range(len(pixels))), execute) for mode, execute in MODES.items()]
    for mode, rows, execute in batches + modes:
        executed = codes[rows]
        with suppress(Exception):  # no one takes a failure for a code
            executed = execute(encoder, pixels[rows])
        _compare(encoder, executed, codes[rows], room, mode)


def calls_one_by_one(module: nn.Module) -> bool:
    """Return whether a network inside wrappers of Holdfast gets one image at a time, for any batch."""
    while type(module).__module__.startswith("holdfast."):
        if getattr(module, "one_by_one", False):
            return True
        inner = getattr(module, "module", None)
        if not isinstance(inner, nn.Module):
            return False
        module = inner
    return False


def _compare(encoder: Encoder, executed: Tensor, codes: Codes, room: Float[Tensor, "d"], mode: str) -> None:
    if executed.shape != codes.shape:
        raise CannotBound(
            encoder.name,
            f"it returns {executed.shape[1]} features{mode} and {codes.shape[1]} when it is traced",
            fix="return equally many features for every image",
        )
    unequal = unlike(executed.detach().to(codes), codes, room)
    if unequal.any():
        raise HoldfastError(
            f"{encoder.name} gives other embeddings in {str(executed.dtype)[6:]}{mode} than its traced graph, for "
            f"{int(unequal.sum())} of {len(unequal)} images, so no proof would hold. Its forward must not depend on "
            "precision, batch size, gradients or memory layout, nor lose digits to rounding."
        )


def _within(
    context: Callable[[], AbstractContextManager[object]], arrange: Callable[[Pixels], Pixels] = torch.clone
) -> Execute:
    """Call an encoder on images whose memory ``arrange`` lays out."""

    def execute(encoder: Encoder, pixels: Pixels) -> Codes:
        with context():
            return encoder.forward(arrange(pixels))

    return execute


def _leaf(pixels: Pixels) -> Pixels:
    return pixels.clone().requires_grad_()


def _in_a_thread(encoder: Encoder, pixels: Pixels) -> Codes:
    with ThreadPoolExecutor(1) as other:
        return other.submit(call, encoder, pixels).result()


@contextmanager
def _default(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _transposed(pixels: Pixels) -> Pixels:
    axes = tuple(reversed(range(pixels.ndim)))
    return pixels.permute(axes).contiguous().permute(axes)


MODES: dict[str, Execute] = {
    "where gradients are on": _within(torch.enable_grad),
    "where images need gradients": _within(torch.enable_grad, _leaf),
    "where images need gradients that are off": _within(torch.no_grad, _leaf),
    "where images are computed from others": _within(torch.enable_grad, lambda pixels: _leaf(pixels) * 1),
    "in inference mode": _within(torch.inference_mode),
    "in another thread": _in_a_thread,
    "where the default type is float64": _within(partial(_default, torch.float64)),
    "where the default type is float32": _within(partial(_default, torch.float32)),
    "with channels last in memory": _within(torch.no_grad, lambda x: x.movedim(1, -1).contiguous().movedim(-1, 1)),
    "with images transposed in memory": _within(torch.no_grad, _transposed),
    "with images that are parts of others in memory": _within(torch.no_grad, lambda x: torch.stack([x, x], -1)[..., 1]),
}


# From a module to a graph: its program at batch one (``program``), then one rewriting per operation it names.
#
# An operation without a rewriting is refused by name: taken for affine, it would give bounds that do not hold. So is a
# random one, whatever it draws from: its result would be frozen into a constant.

_GRAPHS: WeakKeyDictionary[Encoder, dict[tuple[torch.dtype, torch.device], tuple[State, Graph]]] = WeakKeyDictionary()
"""Graphs of each encoder, with the weights and attributes they were traced with."""

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
    graph = graph_of(moved, exported, dtype, device)
    codes = call(moved, pixels)
    if not codes.isfinite().any(0).all():
        raise CannotBound(encoder.name, f"it returns NaN or infinite embeddings in {dtype}", fix="check its weights")
    allowed = _coarsest(exported, dtype) ** 0.5  # half of the digits, which rounding never reaches
    check_repeatable(moved, pixels, codes, allowed)
    if not same_program(exported, exported_program(moved, pixels[:1])):
        raise CannotBound(
            encoder.name, "each tracing gives another function", fix="remove randomness and counters from its forward"
        )
    check_graph(moved, graph, pixels, codes, allowed)
    precision, largest = precision_of(encoder), ENTRIES // graph.entries
    check_executed(moved, pixels, codes, allowed, largest if precision == dtype else min(largest, FEW))
    if precision != dtype:
        _check_original(encoder.to(device, precision), pixels.to(precision), codes, allowed, largest)
    return graph


def _check_original(encoder: Encoder, pixels: Pixels, codes: Codes, rounded: float, largest: int) -> None:
    """Raise unless ``encoder``, in the precision it is executed in, returns ``codes`` without rounding in between.

    ``rounded`` is the fraction of their size by which ``codes`` themselves may be off, since the coarser precision may be
    that of the bounds.
    """
    exported = exported_program(encoder, pixels[:1])
    check_operations(encoder.name, exported)
    for value in _values(exported):
        if value.dtype not in EXACT:
            raise CannotBound(
                encoder.name,
                f"it casts to {value.dtype} where it is executed in {pixels.dtype}",
                fix="compute in float32 or float64 throughout",
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
        named = (*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False))
        values = {f"module.{name}": value for name, value in named}
        device = next(iter(values.values())).device
        constants = tree_map_only(Tensor, lambda value: value.to(device), dict(self.exported.constants))
        return _rewritten(Builder((1, *self.shape), dtype, device), self.name, self.exported, {**constants, **values})


def graph_of(
    encoder: Encoder, exported: Any, dtype: torch.dtype, device: torch.device, record: Recorder | None = None
) -> Graph:
    """Return the graph of an exported program; ``record`` notes what it rounds."""
    program = functional_program(encoder.name, exported)
    constants = tree_map_only(Tensor, Tensor.detach, {**program.state_dict, **program.constants})
    return _rewritten(Builder((1, *encoder.domain.shape), dtype, device), encoder.name, program, constants, record)


Recorder = Callable[[Builder, fx.Node, Any, Any, Any], None]
"""Notes what an operation that depends on the input rounds: from its node, its arguments and its result."""


def _rewritten(
    builder: Builder, name: str, program: Any, stored: Mapping[str, Any], record: Recorder | None = None
) -> Graph:
    """Return the graph of a program whose weights, buffers and constants are those ``stored``.

    With ``record``, the program may be in any precision: what it rounds is noted.
    """
    placeholders = [node for node in program.graph.nodes if node.op == "placeholder"]
    values: dict[fx.Node, Any] = {
        node: Var(0, builder.nodes[0].shape) if spec.target is None else stored[spec.target]
        for node, spec in zip(placeholders, program.graph_signature.input_specs, strict=True)
    }
    for node in program.graph.nodes:
        if node.op == "call_function" and node.users:
            values[node] = _rewrite(builder, name, node, values, record)
        elif node.op == "output":
            (output,) = _filled(node.args[0], values)
    if not isinstance(output, Var) or len(output.shape) != 2 or output.shape[0] != 1:
        returned = output.shape if isinstance(output, Var) else "something that does not depend on the input"
        raise OutOfRange(f"what {name} returns", Described(returned), "one vector per image to be bounded")
    return builder.graph(output)


def _rewrite(
    builder: Builder, owner: str, node: fx.Node, values: dict[fx.Node, Any], record: Recorder | None = None
) -> Any:
    args, kwargs = _filled((node.args, node.kwargs), values)
    if node.target is operator.getitem:
        if args[1] >= len(args[0]):
            raise CannotBound(owner, f"it uses indices or statistics of {node.args[0]}")
        return args[0][args[1]]
    assert callable(node.target)
    name = operation_name(node.target)
    depends: list[Var] = []
    fx.node.map_aggregate((args, kwargs), lambda value: depends.append(value) if isinstance(value, Var) else None)
    if depends and name not in OPERATIONS:
        raise CannotBound(
            owner,
            f"it uses the operation {name!r} ({node.name})",
            fix="see docs/bounds.md for those that can be bounded",
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
        raise CannotBound(
            owner,
            f"it uses the operation {name!r} ({node.name}) in an unsupported way ({type(error).__name__}: {reason})",
            fix="see docs/bounds.md for what can be bounded",
        ) from error
    return result


def _check(result: Any, traced: Any) -> None:
    """Refuse results that are not those of the traced operation, or that it rounds."""
    if isinstance(result, Var):
        if traced.dtype not in (torch.float32, torch.float64):
            raise CannotBound(f"a cast to {traced.dtype}", "it rounds", fix="compute in float32 or float64")
        assert result.shape == tuple(traced.shape), f"shape {tuple(traced.shape)} expected, got {result.shape}"
    elif isinstance(result, list):
        for part, other in zip(result, traced, strict=False):
            _check(part, other)


def _constant(function: Callable[..., Any], name: str, args: Any, kwargs: Any) -> Any:
    """Return a value that does not depend on the input; uninitialised memory is unknown."""
    value = function(*args, **kwargs)
    if "empty" in name:
        value.fill_(torch.nan if value.is_floating_point() else torch.iinfo(value.dtype).max)
    return value


def _filled(arguments: Any, values: dict[fx.Node, Any]) -> Any:
    """Return ``arguments`` with each node replaced by its value."""
    return fx.map_arg(arguments, values.__getitem__)
