"""Linear forms of a node's values, many at once, whole or as windows.

A form ``coef . z`` bounds something later in the network by the values ``z`` of an earlier node. A neuron of a
convolution sees a small window of what came before, so its form is kept as that window: the coefficients of all
neurons of a layer then take a hundredth of the memory and time that whole rows would.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

Shape = tuple[int, ...]
Coefficients = Float[Tensor, "b ..."]


@dataclass(frozen=True)
class Place:
    """Where windows lie: the window of position (y, x) has its corner at ``offset + stride * (y, x)``, maybe outside."""

    offset: tuple[int, int]
    stride: tuple[int, int]


@dataclass(frozen=True)
class Form:
    """Coefficients over a node of ``shape``.

    Whole (``place`` is None): ``coef`` is (b, s, *shape). Windows: (b, y, x, m, c, h, w) over a node of shape
    (1, c, height, width), ``m`` forms at each position; coefficients outside the node are zero.
    """

    coef: Coefficients
    shape: Shape
    place: Place | None = None

    @property
    def axes(self) -> int:
        """How many trailing axes of ``coef`` run over the node."""
        return len(self.shape) if self.place is None else 3

    def lay(self, values: Float[Tensor, "..."]) -> Tensor:
        """Return the node's ``values``, (*shape) or (b, *shape), where the coefficients are, to multiply them.

        Values that already have one entry for each coefficient are returned as they are.
        """
        if values.ndim == self.coef.ndim:
            return values
        values = values if values.ndim > len(self.shape) else values[None]
        if self.place is None:
            return values[:, None]
        return gather(values[:, 0], self.place, self.coef.shape[1:3], self.coef.shape[5:]).unsqueeze(3)

    def times(self, factor: Float[Tensor, "..."] | float) -> Form:
        """Return the form of ``z`` where this one is of ``factor * z``, entry by entry."""
        if isinstance(factor, Tensor):
            return Form(self.coef * self.lay(factor), self.shape, self.place)
        return self if factor == 1 else Form(self.coef * factor, self.shape, self.place)

    def dot(self, values: Float[Tensor, "..."]) -> Tensor:
        """Return the forms' values (b, s), or (b, y, x, m) for windows, at the node's ``values``."""
        return contract(self.coef, self.lay(values), self.axes)

    def dense(self) -> Form:
        """Return the same forms as whole rows, (b, y * x * m, *shape)."""
        if self.place is None:
            return self
        b, y, x, m, c, h, w = self.coef.shape
        (top, left), (down, right), (height, width) = self.place.offset, self.place.stride, self.shape[2:]
        whole = self.coef.new_zeros(b, y, x, m, c, height, width)
        for i in range(y):
            for j in range(x):
                rows = slice(max(0, top + i * down), max(0, min(height, top + i * down + h)))
                columns = slice(max(0, left + j * right), max(0, min(width, left + j * right + w)))
                part = self.coef[:, i, j, :, :, rows.start - top - i * down :, columns.start - left - j * right :]
                whole[:, i, j, :, :, rows, columns] = part[
                    ..., : rows.stop - rows.start, : columns.stop - columns.start
                ]
        return Form(whole.reshape(b, y * x * m, 1, c, height, width), self.shape)

    def plus(self, other: Form) -> Form:
        """Return the sum of two forms over the same node."""
        if self.place is None and other.place is None:
            return Form(self.coef + other.coef, self.shape)
        if self.place is None or other.place is None or self.place.stride != other.place.stride:
            return self.dense().plus(other.dense())
        first, second = aligned(self, other), aligned(other, self)
        return Form(first.coef + second.coef, self.shape, first.place)

    @property
    def wide(self) -> bool:
        """Whether windows have grown as large as the node, so that whole rows are cheaper."""
        return self.place is not None and prod(self.coef.shape[5:]) >= prod(self.shape[2:])


def contract(coef: Tensor, values: Tensor, axes: int) -> Tensor:
    """Return the sum of ``coef * values`` over the last ``axes`` axes."""
    if coef.ndim == axes + 2 and values.shape[1] == 1:  # whole rows against one vector each: a matrix product
        return (coef.flatten(2) @ values.flatten(2).mT).squeeze(2)
    return (coef * values).flatten(-axes).sum(-1)


def gather(
    values: Float[Tensor, "b c height width"], place: Place, count: Shape, size: Shape
) -> Float[Tensor, "b y x c h w"]:
    """Return a view of the windows of ``values``, zero outside."""
    ends = [o + s * (n - 1) + k for o, s, n, k in zip(place.offset, place.stride, count, size, strict=True)]
    (top, left), (height, width) = place.offset, values.shape[2:]
    padded = functional.pad(values, (-left, ends[1] - width, -top, ends[0] - height))  # negative padding cuts
    windows = padded.unfold(2, size[0], place.stride[0]).unfold(3, size[1], place.stride[1])
    return windows.permute(0, 2, 3, 1, 4, 5)


def aligned(form: Form, other: Form) -> Form:
    """Return ``form`` with windows that also cover those of ``other``."""
    assert form.place is not None
    assert other.place is not None
    near = [min(a, b) for a, b in zip(form.place.offset, other.place.offset, strict=True)]
    pads: list[int] = []
    for axis in (1, 0):
        mine, theirs = form.place.offset[axis], other.place.offset[axis]
        end = max(mine + form.coef.shape[5 + axis], theirs + other.coef.shape[5 + axis])
        pads += [mine - near[axis], end - mine - form.coef.shape[5 + axis]]
    return Form(functional.pad(form.coef, pads), form.shape, Place((near[0], near[1]), form.place.stride))


def identity(shape: Shape, dtype: torch.dtype, device: torch.device) -> Form:
    """Return the forms ``z_i`` and ``-z_i`` of a node of shape (1, c, height, width), as windows of one entry.

    There are ``m = 2 c`` forms at each position: first the entries, then their negatives.
    """
    c, height, width = shape[1:]
    eye = torch.eye(c, dtype=dtype, device=device)
    coef = torch.cat([eye, -eye]).reshape(1, 1, 1, 2 * c, c, 1, 1).expand(1, height, width, -1, -1, -1, -1)
    return Form(coef, shape, Place((0, 0), (1, 1)))


def chosen(rows: Float[Tensor, "b s n"], shape: Shape) -> Form:
    """Return whole ``rows`` over a node of ``shape``."""
    return Form(rows.reshape(*rows.shape[:2], *shape), shape)
