"""Sums and products, which are bounded a priori: in any order, with or without fused multiply-add.

Sums are those of the products themselves: Winograd's and Fourier's convolutions, and products of factors that are rounded
first (TF32), are not covered.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, prod

import torch
from torch import Tensor

from holdfast.bounds.network.affine import Affine
from holdfast.bounds.network.graph import Var
from holdfast.bounds.rounding.steps import Execution, Number, Rule, Values, size

NORMAL = 1e-30
"""Formats whose smallest normal number is below this may be set to read what is smaller still as zero."""


def sum_of(count: Callable[[Execution], int]) -> Rule:
    """Sums of ``count`` products or terms and a constant."""

    def rule(x: Execution) -> Values:
        n = count(x) + 3
        error = x.sums.gamma(n) * x.terms + 2 * n * x.sums.tiny
        if x.sums.tiny < NORMAL:  # operands that are not normal may be read as zero
            scale = max((float(size(x.boxes[i]).max()) for i in x.operands), default=0.0)
            error = error + x.sums.tiny * (float(_gain(x)) + n * scale)
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


def _gain(x: Execution) -> Tensor:
    """Return the largest sum of absolute coefficients of an entry."""
    largest = torch.zeros((), dtype=x.values.dtype, device=x.values.device)
    ones = {i: torch.ones_like(x.boxes[i].lower[:1]) for i in x.operands}
    operation = x.node.operation
    if isinstance(operation, Affine):
        inputs = [ones.get(i, torch.ones_like(x.boxes[i].lower[:1])) for i in x.node.inputs]
        largest = operation.magnitude(*inputs).abs().max()
    return largest


BIASED = ("addmm", "baddbmm")
"""Products to which something is added that may depend on the input."""


def inner(position: int) -> Callable[[Execution], int]:
    """The length of the axis that a matrix product sums over, the last of an argument."""
    return lambda x: int(x.argument(position).shape[-1])


def kernel(x: Execution) -> int:
    weight = x.argument(1)
    return prod(weight.shape[1:])


def kernel_of_transposed(x: Execution) -> int:
    weight = x.argument(1)
    return int(weight.shape[0]) * prod(weight.shape[2:])


def entries_of(x: Execution) -> int:
    """How many entries each result of a sum or mean is made of."""
    return prod(x.argument(0).shape) // prod(x.step.output.shape)


def pooled(axes: int) -> Callable[[Execution], int]:
    """How many entries a window holds."""

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
    """Return those of the values that are no numbers of the result's type, others as zero; a little larger."""
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
    """Exact, but for limits and fillings that the type does not hold."""
    numbers = [v for v in (*x.step.arguments, *x.step.settings.values()) if isinstance(v, int | float | Tensor)]
    numbers = [
        v for v in numbers if not isinstance(v, bool) and not (isinstance(v, Tensor) and not v.is_floating_point())
    ]
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
