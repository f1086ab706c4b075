"""Affine operations: forward, the map of magnitudes, and the transpose that carries linear forms backward."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from holdfast.bounds.network.forms import Form, Shape, Windows

Value = Float[Tensor, "b ..."]


class Affine(ABC):
    """``y = sum_i L_i x_i + offset``, where an ``offset`` of None is zero."""

    offset: Any

    @abstractmethod
    def forward(self, *inputs: Value) -> Value:
        """Return the outputs of a batch."""

    @abstractmethod
    def magnitude(self, *radii: Value) -> Value:
        """Return ``sum_i |L_i| r_i``: by how much outputs move at most when each input moves by its radius."""

    @abstractmethod
    def transpose(self, form: Form) -> Sequence[Form]:
        """Return for each input the form ``L_i^T coef``."""


def unless_zero(values: Tensor) -> Tensor | None:
    """Return ``values``, or None if all are zero."""
    return values if bool((values != 0).any()) else None


class General(Affine):
    """Any affine ``function``; its transpose is its derivative's.

    Args:
        function: of tensors at batch one.
        absolute: the same with absolute coefficients and no constant.
        shapes: of the inputs.
        dtype, device: of the inputs.
    """

    def __init__(
        self,
        function: Callable[..., Tensor],
        absolute: Callable[..., Tensor],
        shapes: Sequence[Shape],
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.function, self.absolute, self.shapes = function, absolute, list(shapes)
        self.dtype, self.device = dtype, device
        origin = [torch.zeros(shape, dtype=dtype, device=device) for shape in shapes]
        pulled = torch.func.vjp(function, *origin)
        self.offset, self.pullback = unless_zero(pulled[0]), pulled[1]

    def forward(self, *inputs: Value) -> Value:
        return torch.vmap(self.function)(*inputs)

    def magnitude(self, *radii: Value) -> Value:
        return torch.vmap(self.absolute)(*radii)

    def transpose(self, form: Form) -> Sequence[Form]:
        coef = form.dense().coef
        parts = torch.vmap(self.pullback)(coef.flatten(0, 1))
        return [Form(part.unflatten(0, coef.shape[:2]), shape) for part, shape in zip(parts, self.shapes, strict=True)]


@dataclass(frozen=True)
class Diagonal(Affine):
    """``y = sum_i factor_i * x_i + offset``, entry by entry: sums, normalisation by constants, batch norm."""

    factors: tuple[Tensor | float, ...]
    offset: Tensor | None = None

    def forward(self, *inputs: Value) -> Value:
        total = self._sum(self.factors, inputs)
        return total if self.offset is None else total + self.offset

    def magnitude(self, *radii: Value) -> Value:
        return self._sum(
            [factor.abs() if isinstance(factor, Tensor) else abs(factor) for factor in self.factors], radii
        )

    @staticmethod
    def _sum(factors: Sequence[Tensor | float], inputs: Sequence[Tensor]) -> Tensor:
        total, *others = (
            factor * x if isinstance(factor, Tensor) or factor != 1 else x
            for factor, x in zip(factors, inputs, strict=True)
        )
        return sum(others, total)

    def transpose(self, form: Form) -> Sequence[Form]:
        return [form.times(factor) for factor in self.factors]


@dataclass(frozen=True)
class Convolution(Affine):
    """A two-dimensional convolution of an input of ``shape`` (1, c, height, width)."""

    weight: Float[Tensor, "out c kh kw"]
    bias: Float[Tensor, "out"] | None
    shape: Shape
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int

    @cached_property
    def offset(self) -> Tensor | None:
        if self.bias is None or not bool((self.bias != 0).any()):
            return None
        return self._convolve(torch.zeros(self.shape, dtype=self.weight.dtype, device=self.weight.device), self.bias)

    def _convolve(self, x: Tensor, bias: Tensor | None, weight: Tensor | None = None) -> Tensor:
        weight = self.weight if weight is None else weight
        return functional.conv2d(x, weight, bias, self.stride, self.padding, self.dilation, self.groups)

    def forward(self, *inputs: Value) -> Value:
        (x,) = inputs
        return self._convolve(x.flatten(0, 1), self.bias).unflatten(0, x.shape[:2])

    def magnitude(self, *radii: Value) -> Value:
        (radius,) = radii
        return self._convolve(radius.flatten(0, 1), None, self.weight.abs()).unflatten(0, radius.shape[:2])

    def transpose(self, form: Form) -> Sequence[Form]:
        return [self._dense(form) if form.windows is None else self._windows(form, form.windows)]

    def _transposed(self, coef: Tensor, padding: Sequence[int], extra: Sequence[int]) -> Tensor:
        return functional.conv_transpose2d(
            coef,
            self.weight,
            None,
            self.stride,
            padding,
            extra,
            self.groups,
            self.dilation,
        )

    def _dense(self, form: Form) -> Form:
        flat = form.coef.flatten(0, 2)
        # What the transposed sizes leave out: input beyond the last window.
        reached = [
            (size - 1) * s - 2 * p + d * (k - 1) + 1
            for size, s, p, d, k in zip(
                form.shape[2:], self.stride, self.padding, self.dilation, self.weight.shape[2:], strict=True
            )
        ]
        extra = [n - r for n, r in zip(self.shape[2:], reached, strict=True)]
        return Form(self._transposed(flat, self.padding, extra).unflatten(0, form.coef.shape[:3]), self.shape)

    def _windows(self, form: Form, windows: Windows) -> Form:
        coef = self._scattered(form.trimmed().coef)
        offset = [o * s - p for o, s, p in zip(windows.offset, self.stride, self.padding, strict=True)]
        stride = [a * b for a, b in zip(windows.stride, self.stride, strict=True)]
        ends = [o + s * (n - 1) + k for o, s, n, k in zip(offset, stride, windows.count, coef.shape[1:3], strict=True)]
        ragged = min(offset) < 0 or any(end > size for end, size in zip(ends, self.shape[2:], strict=True))
        moved = Form(coef, self.shape, Windows((offset[0], offset[1]), (stride[0], stride[1]), windows.count), ragged)
        return moved.dense() if moved.wide else moved

    def _scattered(self, coef: Float[Tensor, "out h w ..."]) -> Float[Tensor, "c height width ..."]:
        """Return the transpose without padding: one product with the kernel, and a sum over its entries."""
        kernel, c = self.weight.shape[2:], self.groups * self.weight.shape[1]
        grouped = self.weight.unflatten(0, (self.groups, -1)).flatten(2)
        parts = (grouped.mT @ coef.unflatten(0, (self.groups, -1)).flatten(2)).reshape(c, *kernel, *coef.shape[1:])
        return Overlapped.apply(parts, self.stride, self.dilation)


class Overlapped(torch.autograd.Function):
    """Sum of shifted parts, (c, kh, kw, h, w, ...) to (c, height, width, ...): entry (i, j) of the kernel goes to
    ``dilation * (i, j) + stride * (y, x)``. Written out because differentiating assignments copies all at each.
    """

    @staticmethod
    def forward(ctx: Any, parts: Tensor, stride: tuple[int, int], dilation: tuple[int, int]) -> Tensor:
        ctx.settings = parts.shape[1:5], stride, dilation
        height, width = (
            (n - 1) * s + d * (k - 1) + 1
            for k, n, s, d in zip(parts.shape[1:3], parts.shape[3:5], stride, dilation, strict=True)
        )
        whole = parts.new_zeros(parts.shape[0], height, width, *parts.shape[5:])
        for i, j, down, across in _shifts(*ctx.settings):
            whole[:, down, across] += parts[:, i, j]
        return whole

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (whole,), (kh, kw, h, w) = grads, ctx.settings[0]
        parts = whole.new_empty(whole.shape[0], kh, kw, h, w, *whole.shape[3:])
        for i, j, down, across in _shifts(*ctx.settings):
            parts[:, i, j] = whole[:, down, across]
        return parts, None, None


def _shifts(
    sizes: Sequence[int], stride: tuple[int, int], dilation: tuple[int, int]
) -> Iterator[tuple[int, int, slice, slice]]:
    """Return each entry of the kernel and where its part goes."""
    kh, kw, h, w = sizes
    for i in range(kh):
        for j in range(kw):
            top, left = i * dilation[0], j * dilation[1]
            down = slice(top, top + (h - 1) * stride[0] + 1, stride[0])
            yield i, j, down, slice(left, left + (w - 1) * stride[1] + 1, stride[1])
