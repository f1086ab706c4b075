"""Bounds on the difference of each executed operation from exact arithmetic.

Sums and products have a priori bounds. For single functions, torch's accuracy is assumed as far as it is tested.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import exp, inf, log1p, prod
from typing import Any

import torch
from torch import Tensor

from holdfast.bounds.network.network_graph import Affine, Graph, Step, Var
from holdfast.bounds.network.tracing import CASTS
from holdfast.bounds.relaxations import Box
from holdfast.bounds.rounding.formats import HALF, NAMES, Execution, Format, Number, Rule, Values, size
from holdfast.core.errors import HoldfastError

# Sums and products, which are bounded a priori: in any order, with or without fused multiply-add.
#
# Sums are those of the products themselves: Winograd's and Fourier's convolutions, and products of factors that are
# rounded first (TF32), are not covered.

NORMAL = 1e-30
"""Formats whose smallest normal number is below this may be set to read what is smaller still as zero."""


def sum_of(count: Callable[[Execution], int]) -> Rule:
    """Sums of ``count`` products or terms and a constant."""

    def rule(x: Execution) -> Values:
        n = count(x) + 3
        error = x.sums.gamma(n) * x.terms + 2 * n * x.sums.tiny
        if x.sums.tiny < NORMAL:  # operands that are not normal may be read as zero
            scale = max((float(size(x.boxes[i]).max()) for i in x.operands), default=0.0)
            error = error + x.sums.tiny * (_gain(x) + n * scale)
        # A mean is a sum before it is divided.
        largest = x.sums.largest / count(x) if "avg_pool" in x.step.name or x.step.name == "mean" else x.sums.largest
        error = torch.where(x.terms + error > largest, inf, error)
        if x.sums == x.result:
            return x.in_range(error)
        if x.step.name in BIASED:
            return x.rounded(error, x.terms)
        # The products may be rounded before the constant is added, and are as large as the result without it.
        return (
            x.rounded(error, torch.minimum(x.terms, x.values + x.offset))
            if isinstance(x.offset, Tensor)
            else x.rounded(error)
        )

    return rule


def _gain(x: Execution) -> float:
    """Return the largest sum of absolute coefficients of an entry."""
    operation, ones = x.node.operation, (torch.ones_like(x.boxes[i].lower[:1]) for i in x.node.inputs)
    return float(operation.magnitude(*ones).abs().max()) if isinstance(operation, Affine) else 0.0


BIASED = ("addmm", "baddbmm")
"""Products to which something is added that may depend on the input."""


def inner(position: int) -> Callable[[Execution], int]:
    """The length of the axis that a matrix product sums over, the last of an argument."""
    return lambda x: int(x.argument(position).shape[-1])


def entries_of(x: Execution) -> int:
    """Return the number of entries in each sum or mean."""
    return prod(x.argument(0).shape) // prod(x.step.output.shape)


def pooled(axes: int) -> Callable[[Execution], int]:
    """Return the number of entries of a window."""

    def count(x: Execution) -> int:
        kernel = x.argument(1, "kernel_size")
        kernel = [kernel] if isinstance(kernel, int) else list(kernel)
        return prod(kernel * axes if len(kernel) == 1 else kernel)

    return count


def pooled_adaptively(axes: int) -> Callable[[Execution], int]:
    def count(x: Execution) -> int:
        sizes = zip(x.argument(0).shape[-axes:], x.step.output.shape[-axes:], strict=True)
        return prod(before // after + 2 for before, after in sizes)

    return count


def add(x: Execution) -> Values:
    """``x + alpha y``; a constant may first be rounded."""
    alpha = x.argument(2, "alpha", 1)
    constant = x.result.unit * _inexact(x, x.offset)
    if alpha in (1, -1):
        return x.rounded(constant)
    return x.rounded((x.sums.gamma(4) + x.result.gamma(2)) * x.terms + constant)  # the product may be stored


def _inexact(x: Execution, values: Tensor | Number) -> Tensor | Number:
    """Return the values that the result's type cannot hold (a little larger), and zero for others."""
    if not isinstance(values, Tensor):
        values = torch.tensor(float(values), dtype=x.values.dtype, device=x.values.device)
    return torch.where(x.result.holds(values), 0.0, values.abs() * 1.01)


def scaled(x: Execution) -> Values:
    """Products and quotients; a constant may first be rounded, and divisors replaced by their reciprocals."""
    constants = [v for v in x.step.arguments[:2] if not isinstance(v, Var)]
    inexact = any(bool(torch.as_tensor(_inexact(x, v)).any()) for v in constants)
    share = x.sums.gamma(3) if x.step.name == "div" else 0.0
    share += 2 * x.result.unit if inexact else 0.0
    return x.rounded(share * x.values + 4 * x.result.tiny)


def limits(x: Execution) -> Values:
    """Exact, except for limits and fillings that the type does not hold."""
    settings = [v for v in (*x.step.arguments, *x.step.settings.values()) if not isinstance(v, bool)]
    numbers = [v for v in settings if isinstance(v, int | float) or (isinstance(v, Tensor) and v.is_floating_point())]
    most = max((float(torch.as_tensor(_inexact(x, number)).max()) for number in numbers), default=0.0)
    return torch.full_like(x.values, x.result.unit * most + x.result.tiny if most else 0.0)


def batch_norm(x: Execution) -> Values:
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


AS_RESULT = {
    "sqrt": 2,
    "square": 2,
    "reciprocal": 3,
    "leaky_relu": 3,
    "prelu": 3,
    "exp": 4,
    "rsqrt": 4,
    "pow": 6,
    **dict.fromkeys(("sigmoid", "tanh", "log_sigmoid", "softplus"), 8),
}
ULPS: dict[str, tuple[int, Callable[[Values, Values], Values]]] = {
    **{name: (count, lambda x, y: y) for name, count in AS_RESULT.items()},
    **{
        name: (count, lambda x, y: y + x) for name, count in (("silu", 8), ("hardswish", 8), ("gelu", 16), ("mish", 32))
    },
    **{name: (8, lambda x, y: y + 1) for name in ("hardsigmoid", "elu", "celu")},
    "selu": (8, lambda x, y: y + 2),
}
"""Of each function of single entries how many unit roundoffs its result may be off, of a size made of |x| and |f(x)|.

For functions whose factor ``alpha`` scales what is below zero, and whose ``beta`` their input, the size grows with these.
"""


BETWEEN = ("rsqrt", "pow")
"""Functions whose intermediate results torch rounds to half precision in some of its loops."""
ROOM = 16
"""Largest intermediate value of a function, as a multiple of its result's limit."""


def function(x: Execution) -> Values:
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
    if x.step.name == "celu":
        factor = factor + 1 / abs(float(x.argument(1, "alpha", 1.0)))
    if x.step.name in ("softplus", "celu", "elu", "selu"):
        values = values + entries
    # Products on the way to a result may overflow before it does.
    overflow = torch.where(ROOM * entries > x.sums.largest, inf, 0.0)
    worst = x.sums.gamma(roundings) * factor * scale(entries, values)
    if x.step.name in BETWEEN and x.sums != x.result:
        worst = worst + x.result.gamma(2) * x.values
    return x.rounded(worst + overflow + jump + (roundings + 1) * max(x.sums.tiny, x.result.tiny))


def softmax(x: Execution) -> Values:
    """Maximum, differences, exponentials, their sum, a quotient: all but the first are rounded."""
    low, high = x.box(x.argument(0))
    axis = int(x.argument(1, "dim", -1)) % (low.ndim - 1) + 1
    span = high.amax(axis, keepdim=True) - low.amin(axis, keepdim=True)
    n = low.shape[axis]
    share = 2 * (x.sums.unit * span * 1.01 + x.sums.gamma(8)) + x.sums.gamma(n + 4)
    share = torch.where(share < 0.25, share / (1 - 2 * share), inf)
    return x.rounded(share * x.values + (n + 4) * max(x.sums.tiny, x.result.tiny))


def norm(x: Execution) -> Values:
    """``sqrt(sum of squares)``; squares that underflow are lost, and may not overflow."""
    n = entries_of(x)
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
    error = torch.where(2 * n * largest.square() > x.sums.largest, inf, error).expand_as(low)
    if groups:
        error = error.reshape(box.lower.shape)
    return error


def _affine_after(x: Execution, normal: Values, weight: Any, bias: Any, most: float) -> Values:
    """Return the error after a factor and a constant for each entry, ``normal`` being that of what they are applied to."""
    factor = 1.0 if weight is None else weight.abs()
    constant = 0.0 if bias is None else bias.abs()
    error = normal * factor + x.sums.gamma(6) * (most * factor + constant)
    return x.rounded(error, x.values + constant)


def layer_norm(x: Execution) -> Values:
    shape, weight, bias = x.argument(1, "normalized_shape"), x.argument(2, "weight"), x.argument(3, "bias")
    normal = _normalised(x, tuple(range(-len(shape), 0)), float(x.argument(4, "eps", 1e-5)))
    return _affine_after(x, normal, weight, bias, prod(shape) ** 0.5)


def group_norm(x: Execution) -> Values:
    groups, weight, bias = (x.argument(k, name) for k, name in ((1, "num_groups"), (2, "weight"), (3, "bias")))
    return _by_groups(x, int(groups), weight, bias, float(x.argument(4, "eps", 1e-5)))


def _by_groups(x: Execution, groups: int, weight: Any, bias: Any, eps: float) -> Values:
    normal = _normalised(x, (), eps, groups)
    axes = (-1,) + (1,) * (x.values.ndim - 3)
    weight, bias = (None if part is None else part.reshape(axes) for part in (weight, bias))
    n = prod(x.values.shape[2:]) / groups
    return _affine_after(x, normal, weight, bias, n**0.5)


def instance_norm(x: Execution) -> Values:
    weight, bias, statistics, eps = (x.argument(k) for k in (1, 2, 5, 7))
    if not statistics:
        return batch_norm(x)
    return _by_groups(x, int(x.argument(0).shape[1]), weight, bias, float(eps))


def interpolated(x: Execution) -> Values:
    """Between neighbours, at positions that are themselves computed, each in the order of the size of the map."""
    entries = x.operand(0)
    assert isinstance(entries, Tensor)
    largest = entries.flatten(1).amax(1).reshape(-1, *(1,) * (entries.ndim - 1))
    reach = sum((*x.argument(0).shape[2:], *x.step.output.shape[2:])) + 8
    return x.rounded((8 * reach * x.sums.unit + x.sums.gamma(16)) * largest + 16 * x.sums.tiny)


# By how much each operation, as it is executed, may differ from the same operation of real numbers on the same
# operands.
#
# Every operation that can be bounded is here: it is exact, it has a rule, or it is refused by name.

EXACT = frozenset(
    (
        *("view", "_unsafe_view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "permute"),
        *("transpose", "t"),
        *("expand", "repeat", "tile", "repeat_interleave", "select", "slice", "narrow", "index_select", "flip", "roll"),
        *("pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "im2col", "upsample_nearest1d", "upsample_nearest2d"),
        *("alias", "clone", "contiguous", "detach", "lift_fresh_copy", "split", "split_with_sizes", "chunk", "unbind"),
        *("index", "gather", "dropout", "cat", "stack", "isnan", "neg", "relu", "abs", "amax"),
        *("max_pool1d", "max_pool2d", "max_pool3d", "max_pool2d_with_indices", "_assert_tensor_metadata"),
        *("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d"),
    )
)
"""Operations that round nothing: what they return is among what they are given."""
ROUNDING: dict[str, Rule] = {
    "linear": sum_of(inner(1)),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), sum_of(lambda x: prod(x.argument(1).shape[1:]))),
    **{
        f"conv_transpose{axes}d": sum_of(lambda x: x.argument(1).shape[0] * prod(x.argument(1).shape[2:]))
        for axes in (1, 2, 3)
    },
    **dict.fromkeys(("matmul", "mm", "bmm", "mv", "dot"), sum_of(inner(0))),
    **dict.fromkeys(("addmm", "baddbmm"), sum_of(inner(1))),
    **dict.fromkeys(("sum", "mean"), sum_of(entries_of)),
    **{f"avg_pool{axes}d": sum_of(pooled(axes)) for axes in (1, 2, 3)},
    **{f"adaptive_avg_pool{axes}d": sum_of(pooled_adaptively(axes)) for axes in (1, 2, 3)},
    **dict.fromkeys(("add", "sub", "rsub"), add),
    **dict.fromkeys(("mul", "div"), scaled),
    **dict.fromkeys(("pad", "constant_pad_nd", "where", "clamp", "clip", "maximum", "minimum"), limits),
    **dict.fromkeys(("clamp_min", "clamp_max", "hardtanh", "relu6"), limits),
    **dict.fromkeys(("batch_norm", "_native_batch_norm_legit_no_training"), batch_norm),
    **dict.fromkeys(ULPS, function),
    **dict.fromkeys(("softmax", "_softmax"), softmax),
    "linalg_vector_norm": norm,
    "layer_norm": layer_norm,
    "group_norm": group_norm,
    "instance_norm": instance_norm,
    **dict.fromkeys(("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d"), interpolated),
}
UNKNOWN = {
    "scaled_dot_product_attention": "its kernels differ in what they round",
    "_upsample_bilinear2d_aa": "its weights are computed as it runs",
}
"""Operations that can be bounded in exact arithmetic alone, and why."""
NARROW = {
    **{f"conv_transpose{axes}d": "parts that overlap may be added in half precision" for axes in (1, 2, 3)},
    "adaptive_avg_pool3d": "it may sum in half precision",
    **dict.fromkeys(("upsample_linear1d", "upsample_trilinear3d"), "it may round between its axes"),
    "instance_norm": "its mean and deviation may be stored in half precision",
}
"""Operations of which kernels keep intermediate values in half precision where that is the type, and why none is bounded."""


NORMS = frozenset(("batch_norm", "_native_batch_norm_legit_no_training", "layer_norm", "group_norm"))
"""Operations that compute in the wider of their argument types."""


def rounds(name: str, owner: str, place: str, sources: Sequence[torch.dtype], dtype: torch.dtype) -> bool:
    """Return whether an operation may round.

    Raises:
        HoldfastError: no one knows by how much.
    """
    if name in EXACT:
        return False
    wider = any(
        torch.finfo(s).eps < torch.finfo(dtype).eps or torch.finfo(s).max > torch.finfo(dtype).max for s in sources
    )
    if name in CASTS:
        return wider
    reason = UNKNOWN.get(name, "nothing is known of it")
    if wider and name not in NORMS:
        reason = f"its operands are converted to {NAMES[dtype]} first"
    elif dtype in HALF and name in NARROW:
        reason = NARROW[name]
    elif name in ROUNDING:
        return True
    raise HoldfastError(
        f"{owner} uses the operation {name!r} ({place}), whose rounding has no bound here ({reason}); certify it in real "
        "arithmetic, in float32, or by noisy copies (method smoothing)"
    )


def local_error(graph: Graph, step: Step, boxes: Sequence[Box], sums: Format) -> Values:
    """Return the largest difference of each entry of ``step`` from exact arithmetic.

    Infinite where rounding may lose everything, or a value may exceed the largest of its type.
    """
    if step.name in CASTS:
        return Execution(graph, step, boxes, sums).rounded(0.0)
    error = ROUNDING[step.name](Execution(graph, step, boxes, sums))
    return torch.where(error.isnan(), inf, error)
