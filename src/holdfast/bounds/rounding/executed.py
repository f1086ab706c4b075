"""An encoder as executed in a precision: the same graph, with the rounding of each of its operations.

The graph is that of exact arithmetic with the weights in that precision: an encoder converted to bfloat16 has bfloat16
weights, and so has its graph. Inputs are rounded when they are converted. Rounding is monotone, so the rounded inputs of
a box lie in the box with rounded ends.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, fx

from holdfast.bounds.methods.base import Crown, vacuous_unless_finite
from holdfast.bounds.methods.interval import node_box
from holdfast.bounds.network.consistency import State, call, check_graph, check_repeatable, probes, state
from holdfast.bounds.network.network_graph import Builder, Graph, Step, Var
from holdfast.bounds.network.program import check_operations, exported_program, operation_name
from holdfast.bounds.network.tracing import CASTS, ENTRIES, check_executed, graph_of, trace
from holdfast.bounds.regions import Region, region
from holdfast.bounds.relaxations import Box
from holdfast.bounds.rounding.arithmetic import Arithmetic
from holdfast.bounds.rounding.errors import EXACT, local_error, rounds
from holdfast.bounds.rounding.formats import HALF, NAMES, Format, size
from holdfast.core.balls import Linf
from holdfast.core.encoder import Codes, Domain, Encoder, Pixels
from holdfast.core.errors import HoldfastError, UnknownName
from holdfast.core.run_settings import factors_are_rounded

_EXECUTED: WeakKeyDictionary[
    Encoder, dict[tuple[torch.dtype, torch.device, torch.dtype | None], tuple[State, ExecutedEncoder]]
] = WeakKeyDictionary()
"""Executed programs of each encoder, with the weights and attributes they were traced with."""
DETERMINED = frozenset(("add", "sub", "rsub", "mul", "div", "sqrt", "reciprocal"))
"""Operations of constants alone that every machine rounds alike: once, to the nearest number."""
ARITHMETICS = ("real", "executed")
COLUMNS = 256
"""Features of an embedding whose bounds are taken together."""


@dataclass(frozen=True)
class ExecutedEncoder:
    """An encoder in a precision, and the real function that it rounds.

    ``graph`` is that function with the rounding of each operation, in float64; half precisions sum in ``sums``.
    """

    encoder: Encoder
    """In the precision to bound."""
    reference: Encoder
    """In float64, with the same weights."""
    graph: Graph
    format: Format

    def forward(self, pixels: Pixels) -> Codes:
        """Return this machine's embeddings of ``pixels``, converted first, as float64."""
        return self.encoder.forward(pixels.to(self.format.dtype)).double()

    def codes(self, pixels: Pixels) -> Box:
        """Return bounds of the embeddings of ``pixels`` as executed, converted first, (b, d) each, on any machine.

        Raises:
            HoldfastError: a value may exceed the largest number of its type, or rounding may lose all digits.
        """
        around = self._around(pixels)
        self.check_finite(pixels)
        d = self.graph.nodes[-1].shape[-1]
        eye = torch.eye(d, dtype=torch.float64, device=pixels.device)
        rows = torch.cat([eye, -eye]).expand(len(pixels), -1, -1)
        parts = [Crown()(self.graph, around, some) for some in rows.split(COLUMNS, 1)]
        lower, upper = vacuous_unless_finite(torch.cat(parts, 1)).chunk(2, 1)
        return Box(lower, -upper)

    def check_finite(self, pixels: Pixels, range_alone: bool = False) -> None:
        """Raise if on one of the images a value may exceed the largest number of its type, or lose all digits.

        With ``range_alone`` it may lose them.
        """
        around, boxes, arithmetic = self._around(pixels), list[Box](), self.graph.arithmetic
        assert arithmetic is not None
        for node in self.graph.nodes:
            boxes.append(node_box(node, boxes, around))
            for step in (step for step in self.graph.steps if step.output.index == node.index):
                error = local_error(self.graph, step, boxes, arithmetic.sums_of(step.dtype))
                largest, kind = float(size(boxes[-1]).max()), Format(step.dtype)
                if bool(error.isfinite().all()) or (range_alone and not largest > kind.largest * 0.999):
                    continue
                otherwise = "" if range_alone else " or rounding may lose all digits"
                raise HoldfastError(
                    f"{self.encoder.name} cannot be certified as executed in {self.format.name}: values of "
                    f"{step.name!r} ({step.place}) may reach {largest:.3g} on an image itself, where {kind.name} ends at "
                    f"{kind.largest:.3g}{otherwise}; execute it in a wider type, or certify it by noisy copies "
                    "(method smoothing)"
                )
            boxes[-1] = arithmetic.account(self.graph, node, around, boxes, {}, {})

    def _around(self, pixels: Pixels) -> Region:
        still = torch.zeros(len(pixels), dtype=torch.float64, device=pixels.device)
        domain = Domain(tuple(pixels.shape[1:]), -torch.inf, torch.inf)
        return region(pixels.double(), Linf, still, domain, inputs=self.format)


def check_arithmetic(name: str) -> None:
    """Raise unless certificates can be of arithmetic called ``name``."""
    if name not in ARITHMETICS:
        raise UnknownName("arithmetic", name, ARITHMETICS)


def stated(precision: torch.dtype, sums: torch.dtype | None = torch.float32) -> str:
    """Return in words what an encoder is executed with.

    Example:
        >>> stated(torch.bfloat16)
        'executed in bfloat16, sums in float32'
    """
    wider = f", sums in {NAMES[sums]}" if precision in HALF and sums is not None else ""
    return f"executed in {NAMES[precision]}{wider}"


def executes(arithmetic: str, precision: torch.dtype) -> bool:
    """Return whether an encoder is certified as executed: on request, and always in half precision.

    Raises:
        HoldfastError: nothing is called so.
    """
    check_arithmetic(arithmetic)
    return arithmetic == "executed" or precision in HALF


def executed_encoder(
    encoder: Encoder, precision: torch.dtype, device: str | torch.device, sums: torch.dtype | None = torch.float32
) -> ExecutedEncoder:
    """Return ``encoder`` as it is executed in ``precision``, half precisions with sums in ``sums`` (None: their own).

    Raises:
        HoldfastError: it cannot be bounded, or nothing is known of the rounding of an operation.
    """
    device = torch.empty(0, device=device).device
    _check_sums(encoder.name, precision, device, sums)
    kept, key = _EXECUTED.setdefault(encoder, {}), (precision, device, sums)
    if key not in kept or kept[key][0] != state(encoder.module):
        built = _executed(encoder, precision, device, sums)
        kept[key] = state(encoder.module), built
    _check_convolutions(kept[key][1], precision, device)
    return kept[key][1]


def _executed(
    encoder: Encoder, precision: torch.dtype, device: torch.device, sums: torch.dtype | None
) -> ExecutedEncoder:
    if torch.is_autocast_enabled(device.type):
        raise HoldfastError(
            f"{encoder.name} would be executed under autocast, whose casts are not traced; leave it first"
        )
    executed = encoder.to(device, precision)
    if executed is encoder:  # which what is known of it must not keep alive
        executed = copy(encoder)
    reference = executed.to(device, torch.float64)
    real = trace(reference, torch.float64, device)  # which makes sure that it is a function of the image
    pixels = probes(encoder.domain, torch.float32, device).to(precision)
    call(executed, pixels[:1])
    exported = exported_program(executed, pixels[:1])
    check_operations(executed.name, exported)
    graph = graph_of(executed, exported, torch.float64, device, partial(_record, executed.name))
    arithmetic = Arithmetic(Format(precision), None if sums is None else Format(sums))
    built = ExecutedEncoder(executed, reference, replace(graph, arithmetic=arithmetic), Format(precision))
    built.check_finite(pixels.double(), range_alone=True)
    codes, allowed = call(reference, pixels.double()), torch.finfo(precision).eps ** 0.5
    check_repeatable(executed, pixels, call(executed, pixels), allowed)
    check_graph(reference, graph, pixels.double(), codes, allowed)
    check_executed(executed, pixels, codes, allowed, ENTRIES // real.entries)
    return built


def _check_convolutions(executed: ExecutedEncoder, precision: torch.dtype, device: torch.device) -> None:
    """Raise if torch may compute convolutions by NNPACK, whose transforms (Winograd, Fourier) round more than is bounded.

    Without oneDNN it does so in batches of 16 or more images.
    """
    if (
        device.type != "cpu"
        or precision != torch.float32
        or not any("conv" in step.name for step in executed.graph.steps)
    ):
        return
    nnpack: Any = torch.backends.nnpack
    onednn: Any = torch.backends.mkldnn
    by_onednn = onednn.is_available() and onednn.enabled
    if nnpack.is_available() and torch._C._get_nnpack_enabled() and not by_onednn:
        raise HoldfastError(
            f"{executed.encoder.name} would be executed with convolutions of NNPACK, whose rounding has no bound; set "
            "torch.backends.mkldnn.enabled to True, or torch.backends.nnpack.set_flags(False), to certify it as executed in "
            "float32"
        )


def _check_sums(name: str, precision: torch.dtype, device: torch.device, sums: torch.dtype | None) -> None:
    """Raise if torch is set, or by default allowed, to sum or multiply in less on this device."""
    backends = torch.backends
    if device.type == "cuda" and precision == torch.float32 and factors_are_rounded():
        raise HoldfastError(
            f"{name} would be executed with factors rounded to 11 bits (TF32); set torch.backends.cudnn.allow_tf32 and "
            "torch.backends.cuda.matmul.allow_tf32 to False to certify it as executed in float32"
        )
    precisions = [torch.get_float32_matmul_precision()] if device.type == "cpu" and precision == torch.float32 else []
    mkldnn: Any = backends.mkldnn
    precisions += [part.fp32_precision for part in (mkldnn, mkldnn.matmul, mkldnn.conv) if precisions]
    if set(precisions) - {"highest", "none", "ieee"}:
        raise HoldfastError(
            f"{name} would be executed with factors of less than float32; call "
            "torch.set_float32_matmul_precision('highest') and leave torch.backends.mkldnn's fp32_precision at 'ieee' to "
            "certify it as executed in float32"
        )
    accumulated = device.type == "cuda" and getattr(backends.cuda.matmul, "allow_fp16_accumulation", False)
    if accumulated and precision == torch.float16 and sums == torch.float32:
        raise HoldfastError(
            f"{name} would be executed with sums in float16; set torch.backends.cuda.matmul.allow_fp16_accumulation to "
            "False to certify it as executed with sums in float32"
        )
    reduced = f"allow_{'fp16' if precision == torch.float16 else 'bf16'}_reduced_precision_reduction"
    narrow = device.type == "cuda" and sums == torch.float32 and precision in HALF
    if narrow and getattr(backends.cuda.matmul, reduced):
        raise HoldfastError(
            f"{name} would be executed with sums in {NAMES[precision]}; set torch.backends.cuda.matmul.{reduced} to "
            "False to certify it as executed with sums in float32"
        )


def _record(owner: str, builder: Builder, node: fx.Node, args: Any, kwargs: Any, result: Any) -> None:
    """Keep the step that an operation is, if it may round."""
    name = operation_name(node.target)
    value: Any = node.meta.get("val")
    if result is None:
        determined = name in EXACT | CASTS | DETERMINED or name.startswith(MADE)
        if isinstance(value, Tensor) and value.is_floating_point() and not determined:
            raise HoldfastError(
                f"{owner} computes a constant by {name!r} ({node.name}), which machines round in different ways; compute it "
                "beforehand and keep it as a buffer"
            )
        return
    values = value if isinstance(value, list | tuple) else [value]
    sources = tuple(
        source.meta["val"].dtype
        for source in node.all_input_nodes
        if isinstance(source.meta.get("val"), Tensor)
        and source.meta["val"].is_floating_point()
        and source.meta["val"].ndim
    )
    dtype = values[0].dtype
    # Else nothing depends on the input, or nothing is rounded.
    if not isinstance(result, Var | list) or not rounds(name, owner, node.name, sources, dtype):
        return
    builder.softmaxes.clear()  # weights that are rounded are no softmax, and averages by them are not in its range
    output = result[0] if isinstance(result, list) else result
    settings = {key: setting for key, setting in kwargs.items() if key != "dtype"}
    builder.steps.append(Step(name, node.name, tuple(args), settings, output, dtype, sources))


MADE = ("arange", "ones", "zeros", "full", "eye", "scalar_tensor", "empty", "new_")
"""Beginnings of the names of operations that make a constant from numbers alone."""
