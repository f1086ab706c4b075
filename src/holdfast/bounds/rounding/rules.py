"""By how much each operation, as it is executed, may differ from the same operation of real numbers on the same operands.

Affine operations and sums are bounded a priori (``formats``), for any order. Elementwise functions are assumed to be as
accurate as torch's are: within ``ULPS`` roundings of the size stated there, which a test checks over the range of each type.
Views, ReLU, maxima and minima are exact. Sums are those of the products themselves: Winograd's and Fourier's convolutions
and products of rounded factors (TF32) are not covered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import exp, inf, log1p, prod
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.bounds.network.affine import Affine
from holdfast.bounds.network.graph import Graph, Node, Step, Var
from holdfast.bounds.relaxations.rules import Box
from holdfast.bounds.rounding.formats import Format
from holdfast.core.errors import HoldfastError

Values = Float[Tensor, "b ..."]
NORMAL = 1e-30
"""Formats whose smallest normal number is below this may be set to read what is smaller still as zero."""


def size(box: Box) -> Values:
    """Return the largest absolute value of each entry."""
    return torch.maximum(box.lower.abs(), box.upper.abs())


@dataclass(frozen=True)
class Execution:
    """A step of the program with bounds on what goes into it, as executed, and on its result without its own rounding."""

    graph: Graph
    step: Step
    boxes: Sequence[Box]
    sums: Format

    @property
    def result(self) -> Format:
        return Format(self.step.dtype)

    @property
    def node(self) -> Node:
        return self.graph.nodes[self.step.output.index]

    def argument(self, position: int, name: str = "", default: Any = None) -> Any:
        """Return an argument by position or name."""
        arguments = self.step.arguments
        return arguments[position] if position < len(arguments) else self.step.settings.get(name, default)

    def box(self, operand: Any) -> Box:
        """Return the box of an operand that depends on the input."""
        assert isinstance(operand, Var)
        return self.boxes[operand.index]

    def operand(self, position: int) -> Values | float:
        """Return the largest absolute values of an operand, constant or not."""
        operand = self.argument(position)
        if isinstance(operand, Var):
            return size(self.box(operand))
        return operand.abs() if isinstance(operand, Tensor) else abs(float(operand))

    @cached_property
    def values(self) -> Values:
        """The largest absolute value of each entry of the result."""
        return size(self.boxes[self.step.output.index])

    @cached_property
    def terms(self) -> Values:
        """The sum of the sizes of all terms of each entry of the result: ``|W| |x| + |b|``."""
        return self._terms(self.step.output.index)

    def _terms(self, index: int) -> Values:
        node = self.graph.nodes[index]
        if index in self._operands or not isinstance(node.operation, Affine):
            return size(self.boxes[index])
        total = node.operation.magnitude(*(self._terms(source) for source in node.inputs))
        return total if node.operation.offset is None else total + node.operation.offset.abs()

    @cached_property
    def _operands(self) -> set[int]:
        leaves = torch.utils._pytree.tree_leaves((self.step.arguments, dict(self.step.settings)))
        return {leaf.index for leaf in leaves if isinstance(leaf, Var)}

    @property
    def offset(self) -> Tensor | float:
        """The size of the constant that the last operation adds."""
        operation = self.node.operation
        return operation.offset.abs() if isinstance(operation, Affine) and operation.offset is not None else 0.0

    def rounded(self, error: Values | float, *before: Values | float) -> Values:
        """Return the ``error`` of a value once it is rounded to the result's type, and before that values of these sizes.

        Infinite where the result may exceed the largest number of the type.
        """
        total = torch.zeros_like(self.values) + error
        unit = self.result.unit + (self.sums.unit if self.sums != self.result else 0.0)
        for reached in (*before, self.values):
            total = total + unit * (reached + total) + self.result.tiny
        return self.in_range(total)

    def in_range(self, error: Values) -> Values:
        """Return ``error``, infinite where the result may exceed the largest number of its type."""
        return torch.where(self.values + error > self.result.largest, inf, error)


Rule = Callable[[Execution], Values]


def local_error(graph: Graph, step: Step, boxes: Sequence[Box], sums: Format) -> Values:
    """Return how far each entry of what ``step`` computes may be from the same operation of real numbers.

    Infinite where rounding may lose everything, or a value may exceed the largest of its type.
    """
    if step.name in CASTS:
        return Execution(graph, step, boxes, sums).rounded(0.0)
    error = ROUNDING[step.name](Execution(graph, step, boxes, sums))
    return torch.where(error.isnan(), inf, error)


def _sum_of(count: Callable[[Execution], int]) -> Rule:
    """Sums of ``count`` products or terms and a constant."""

    def rule(x: Execution) -> Values:
        n = count(x) + 3
        error = x.sums.gamma(n) * x.terms + 2 * n * x.sums.tiny
        if x.sums.tiny < NORMAL:  # operands that are not normal may be read as zero
            scale = max((float(size(x.boxes[i]).max()) for i in x._operands), default=0.0)
            error = error + x.sums.tiny * (float(_gain(x)) + n * scale)
        error = torch.where(x.terms + error > x.sums.largest, inf, error)
        if x.sums == x.result:
            return x.in_range(error)
        # The products may be rounded before the constant is added.
        return x.rounded(error, *((x.terms,) if isinstance(x.offset, Tensor) or x.step.name in BIASED else ()))

    return rule


def _gain(x: Execution) -> Tensor:
    """Return the largest sum of absolute coefficients of an entry."""
    largest = torch.zeros((), dtype=x.values.dtype, device=x.values.device)
    ones = {i: torch.ones_like(x.boxes[i].lower[:1]) for i in x._operands}
    operation = x.node.operation
    if isinstance(operation, Affine):
        inputs = [ones.get(i, torch.ones_like(x.boxes[i].lower[:1])) for i in x.node.inputs]
        largest = operation.magnitude(*inputs).abs().max()
    return largest


BIASED = ("addmm", "baddbmm")
"""Products to which something is added that may depend on the input."""


def _inner(position: int) -> Callable[[Execution], int]:
    """The length of the axis that a matrix product sums over, the last of an argument."""
    return lambda x: int(x.argument(position).shape[-1])


def _kernel(x: Execution) -> int:
    weight = x.argument(1)
    return prod(weight.shape[1:])


def _kernel_of_transposed(x: Execution) -> int:
    weight = x.argument(1)
    return int(weight.shape[0]) * prod(weight.shape[2:])


def _entries(x: Execution) -> int:
    """How many entries each result of a sum or mean is made of."""
    return prod(x.argument(0).shape) // prod(x.step.output.shape)


def _pooled(axes: int) -> Callable[[Execution], int]:
    """How many entries a window holds."""

    def count(x: Execution) -> int:
        kernel = x.argument(1, "kernel_size")
        kernel = [kernel] if isinstance(kernel, int) else list(kernel)
        return prod(kernel * axes if len(kernel) == 1 else kernel)

    return count


def _pooled_adaptively(axes: int) -> Callable[[Execution], int]:
    def count(x: Execution) -> int:
        sizes = zip(x.argument(0).shape[-axes:], x.step.output.shape[-axes:], strict=True)
        return prod(before // after + 2 for before, after in sizes)

    return count


def _add(x: Execution) -> Values:
    """``x + alpha y``; a constant may first be rounded."""
    alpha = x.argument(2, "alpha", 1)
    constant = x.result.unit * _inexact(x, x.offset)
    if alpha in (1, -1):
        return x.rounded(constant)
    return x.rounded(x.sums.gamma(4) * x.terms + constant)


def _inexact(x: Execution, values: Tensor | float) -> Tensor | float:
    """Return those of the values that are no numbers of the result's type, others as zero; a little larger."""
    if not isinstance(values, Tensor):
        values = torch.tensor(float(values), dtype=x.values.dtype, device=x.values.device)
    return torch.where(x.result.holds(values), 0.0, values.abs() * 1.01)


def _scaled(x: Execution) -> Values:
    """Products and quotients; a constant may first be rounded, and divisors replaced by their reciprocals."""
    constants = [v for v in x.step.arguments[:2] if not isinstance(v, Var)]
    inexact = any(bool(torch.as_tensor(_inexact(x, v)).any()) for v in constants)
    share = x.sums.gamma(3) if x.step.name == "div" else 0.0
    share += 2 * x.result.unit if inexact else 0.0
    return x.rounded(share * x.values + 4 * x.result.tiny)


def _limits(x: Execution) -> Values:
    """Exact, but for limits and fillings that the type does not hold."""
    numbers = [v for v in (*x.step.arguments[1:], *x.step.settings.values()) if isinstance(v, int | float | Tensor)]
    numbers = [v for v in numbers if not isinstance(v, bool) and not (isinstance(v, Tensor) and not v.is_floating_point())]
    most = max((float(torch.as_tensor(_inexact(x, number)).max()) for number in numbers), default=0.0)
    return torch.full_like(x.values, x.result.unit * most + x.result.tiny if most else 0.0)


def _batch_norm(x: Execution) -> Values:
    """``(x - mean) / sqrt(variance + eps) * weight + bias``, in any order, factor and constant perhaps stored in between."""
    weight, bias, mean, variance = (x.argument(k) for k in (1, 2, 3, 4))
    eps = x.argument(6 if x.step.name == "_native_batch_norm_legit_no_training" else 7)
    factor = torch.rsqrt(variance + eps) * (1 if weight is None else weight.abs())
    axes = (-1,) + (1,) * (x.values.ndim - 3)
    factor, mean = (part.reshape(axes) for part in (factor, mean.abs()))
    terms = factor * (x.operand(0) + mean) + (0 if bias is None else bias.abs().reshape(axes))
    error = (x.sums.gamma(16) + (x.result.gamma(4) if x.sums != x.result else 0)) * terms
    # What is lost by flushing is amplified by the factors that follow.
    return x.rounded(error + 16 * x.result.tiny * (1 + factor))


ULPS: dict[str, tuple[int, Callable[[Values, Values], Values]]] = {
    "exp": (4, lambda x, y: y),
    "sigmoid": (8, lambda x, y: y),
    "tanh": (8, lambda x, y: y),
    "log_sigmoid": (8, lambda x, y: y),
    "softplus": (8, lambda x, y: y),
    "gelu": (16, lambda x, y: y + x),
    "silu": (8, lambda x, y: y + x),
    "mish": (32, lambda x, y: y + x),
    "hardswish": (8, lambda x, y: y + x),
    "hardsigmoid": (8, lambda x, y: y + 1),
    "elu": (8, lambda x, y: y + 1),
    "selu": (8, lambda x, y: y + 2),
    "celu": (8, lambda x, y: y + 1),
    "sqrt": (2, lambda x, y: y),
    "rsqrt": (4, lambda x, y: y),
    "reciprocal": (3, lambda x, y: y),
    "square": (2, lambda x, y: y),
    "pow": (6, lambda x, y: y),
    "leaky_relu": (3, lambda x, y: y),
    "prelu": (3, lambda x, y: y),
}
"""Of each function of single entries how many unit roundoffs its result may be off, of a size made of |x| and |f(x)|.

For functions whose factor ``alpha`` scales what is below zero, and whose ``beta`` their input, the size grows with these.
"""


def _function(x: Execution) -> Values:
    roundings, scale = ULPS[x.step.name]
    entries = x.operand(0)
    assert isinstance(entries, Tensor)
    values, factor, jump = x.values, 1.0, 0.0
    if x.step.name in ("elu", "celu"):
        factor = 1 + sum(abs(float(v)) for v in (*x.step.arguments[1:], *x.step.settings.values()))
    if x.step.name == "softplus":
        beta, threshold = x.argument(1, "beta", 1.0), x.argument(2, "threshold", 20.0)
        jump = log1p(exp(-threshold * 0.99)) / beta  # the side of the threshold is decided in rounded numbers
        # A rounded product with beta moves the argument of the exponential.
        factor = 1 + abs(float(beta)) + 1 / abs(float(beta))
        values = values + entries
    if x.step.name == "celu":
        factor = factor + 1 / abs(float(x.argument(1, "alpha", 1.0)))
        values = values + entries
    if x.step.name in ("elu", "selu"):
        values = values + entries
    worst = x.sums.gamma(roundings) * factor * scale(entries, values)
    return x.rounded(worst + jump + (roundings + 1) * max(x.sums.tiny, x.result.tiny))


def _softmax(x: Execution) -> Values:
    """Maximum, differences, exponentials, their sum, a quotient: all but the first are rounded."""
    low, high = x.box(x.argument(0))
    axis = int(x.argument(1, "dim", -1)) % (low.ndim - 1) + 1
    span = high.amax(axis, keepdim=True) - low.amin(axis, keepdim=True)
    n = low.shape[axis]
    share = 2 * (x.sums.unit * span * 1.01 + x.sums.gamma(8)) + x.sums.gamma(n + 4)
    share = torch.where(share < 0.25, share / (1 - 2 * share), inf)
    return x.rounded(share * x.values + (n + 4) * max(x.sums.tiny, x.result.tiny))


def _norm(x: Execution) -> Values:
    """``sqrt(sum of squares)``; squares that underflow are lost, and may not overflow."""
    n = _entries(x)
    error = x.sums.gamma(n + 6) * x.values + (2 * n * x.sums.tiny) ** 0.5
    error = torch.where((x.values + error) ** 2 * 1.01 > x.sums.largest, inf, error)
    return x.rounded(error)


def _normalised(x: Execution, axes: tuple[int, ...], eps: float, groups: int = 0) -> Values:
    """``(x - mean) / sqrt(variance + eps)``, the variance perhaps as the difference of two moments."""
    box = x.box(x.argument(0))
    low, high = box
    if groups:
        low, high = (end.unflatten(2, (groups, -1)).flatten(3) for end in box)
        axes = (-1,)
    largest = torch.maximum(low.abs(), high.abs()).amax(axes, keepdim=True)
    n = prod(low.shape[axis] for axis in axes)
    below, above = low - high.mean(axes, keepdim=True), high - low.mean(axes, keepdim=True)
    inside = (below <= 0) & (above >= 0)
    least = torch.where(inside, 0.0, torch.minimum(below.abs(), above.abs()).square()).mean(axes, keepdim=True) * 0.999
    moved = 4 * x.sums.gamma(n + 8) * largest.square() + n * x.sums.tiny
    room = least + eps
    share = torch.where(moved < room / 2, moved / room + x.sums.gamma(8), inf)
    scale = (room - moved).clamp_min(0).rsqrt() * (1 + 2.0**-10)
    # No centred value exceeds sqrt(n) deviations.
    error = share * n**0.5 + x.sums.gamma(n + 8) * 2 * largest * scale + 4 * x.sums.tiny
    error = error.expand_as(low)
    if groups:
        error = error.reshape(box.lower.shape)
    return error


def _affine_after(x: Execution, normal: Values, weight: Any, bias: Any, most: float) -> Values:
    """Return the error after a factor and a constant for each entry, ``normal`` being that of what they are applied to."""
    factor = 1.0 if weight is None else weight.abs()
    constant = 0.0 if bias is None else bias.abs()
    error = normal * factor + x.sums.gamma(6) * (most * factor + constant)
    return x.rounded(error, x.values + constant)


def _layer_norm(x: Execution) -> Values:
    shape, weight, bias = x.argument(1, "normalized_shape"), x.argument(2, "weight"), x.argument(3, "bias")
    normal = _normalised(x, tuple(range(-len(shape), 0)), float(x.argument(4, "eps", 1e-5)))
    return _affine_after(x, normal, weight, bias, prod(shape) ** 0.5)


def _group_norm(x: Execution) -> Values:
    groups, weight, bias = (x.argument(k, name) for k, name in ((1, "num_groups"), (2, "weight"), (3, "bias")))
    return _by_groups(x, int(groups), weight, bias, float(x.argument(4, "eps", 1e-5)))


def _by_groups(x: Execution, groups: int, weight: Any, bias: Any, eps: float) -> Values:
    normal = _normalised(x, (), eps, groups)
    axes = (-1,) + (1,) * (x.values.ndim - 3)
    weight, bias = (None if part is None else part.reshape(axes) for part in (weight, bias))
    n = prod(x.values.shape[2:]) / groups
    return _affine_after(x, normal, weight, bias, n**0.5)


def _instance_norm(x: Execution) -> Values:
    weight, bias, statistics, eps = (x.argument(k) for k in (1, 2, 5, 7))
    if not statistics:
        return _batch_norm(x)
    return _by_groups(x, int(x.argument(0).shape[1]), weight, bias, float(eps))


def _interpolated(x: Execution) -> Values:
    """Between neighbours, at positions that are themselves computed, each in the order of the size of the map."""
    entries = x.operand(0)
    assert isinstance(entries, Tensor)
    largest = entries.flatten(1).amax(1).reshape(-1, *(1,) * (entries.ndim - 1))
    reach = sum((*x.argument(0).shape[2:], *x.step.output.shape[2:])) + 8
    return x.rounded((8 * reach * x.sums.unit + x.sums.gamma(16)) * largest + 16 * x.sums.tiny)


EXACT = frozenset(
    (
        *("view", "_unsafe_view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "permute", "transpose", "t"),
        *("expand", "repeat", "tile", "repeat_interleave", "select", "slice", "narrow", "index_select", "flip", "roll"),
        *("pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "im2col", "upsample_nearest1d", "upsample_nearest2d"),
        *("alias", "clone", "contiguous", "detach", "lift_fresh_copy", "split", "split_with_sizes", "chunk", "unbind"),
        *("dropout", "cat", "stack", "isnan", "neg", "relu", "abs", "maximum", "minimum", "amax"),
        *("max_pool1d", "max_pool2d", "max_pool3d", "max_pool2d_with_indices", "_assert_tensor_metadata"),
        *("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d"),
    )
)
"""Operations that round nothing: what they return is among what they are given."""
CASTS = frozenset(("_to_copy", "to", "type_as"))
"""They round where the type of the result is narrower."""
ROUNDING: dict[str, Rule] = {
    "linear": _sum_of(_inner(1)),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), _sum_of(_kernel)),
    **{f"conv_transpose{axes}d": _sum_of(_kernel_of_transposed) for axes in (1, 2, 3)},
    **dict.fromkeys(("matmul", "mm", "bmm", "mv", "dot"), _sum_of(_inner(0))),
    **dict.fromkeys(("addmm", "baddbmm"), _sum_of(_inner(1))),
    **dict.fromkeys(("sum", "mean"), _sum_of(_entries)),
    **{f"avg_pool{axes}d": _sum_of(_pooled(axes)) for axes in (1, 2, 3)},
    **{f"adaptive_avg_pool{axes}d": _sum_of(_pooled_adaptively(axes)) for axes in (1, 2, 3)},
    **dict.fromkeys(("add", "sub", "rsub"), _add),
    **dict.fromkeys(("mul", "div"), _scaled),
    **dict.fromkeys(("pad", "constant_pad_nd", "where", "clamp", "clip"), _limits),
    **dict.fromkeys(("clamp_min", "clamp_max", "hardtanh", "relu6"), _limits),
    **dict.fromkeys(("batch_norm", "_native_batch_norm_legit_no_training"), _batch_norm),
    **dict.fromkeys(ULPS, _function),
    **dict.fromkeys(("softmax", "_softmax"), _softmax),
    "linalg_vector_norm": _norm,
    "layer_norm": _layer_norm,
    "group_norm": _group_norm,
    "instance_norm": _instance_norm,
    **dict.fromkeys(("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d"), _interpolated),
}
UNKNOWN = {
    "scaled_dot_product_attention": "its kernels differ in what they round",
    "_upsample_bilinear2d_aa": "its weights are computed as it runs",
}
"""Operations that can be bounded in real arithmetic alone, and why."""


def rounds(name: str, owner: str, place: str, sources: Sequence[torch.dtype], dtype: torch.dtype) -> bool:
    """Return whether an operation may round.

    Raises:
        HoldfastError: nobody knows by how much.
    """
    if name in EXACT:
        return False
    if name in CASTS:
        return any(torch.finfo(source).eps < torch.finfo(dtype).eps or torch.finfo(source).max > torch.finfo(dtype).max for source in sources)
    if name in ROUNDING:
        return True
    reason = UNKNOWN.get(name, "nothing is known of it")
    raise HoldfastError(
        f"{owner} uses the operation {name!r} ({place}), whose rounding has no bound here ({reason}); certify it in real "
        "arithmetic, in float32, or by noisy copies (method smoothing)"
    )
