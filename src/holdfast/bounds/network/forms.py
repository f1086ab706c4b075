"""Linear forms of a node's values, many at once, dense or as windows.

A form ``coef . z`` bounds a later value of the network by the values ``z`` of an earlier node. A neuron of a convolution
sees a small window of the earlier layer, so its form is stored as that window. For all neurons of a layer, this takes a
hundredth of the memory and time of dense forms.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

Shape = tuple[int, ...]
Coefficients = Float[Tensor, "..."]


@dataclass(frozen=True)
class Windows:
    """Places of windows: that of position (y, x) < ``count`` has its corner at ``offset + stride * (y, x)``."""

    offset: tuple[int, int]
    stride: tuple[int, int]
    count: tuple[int, int]


@dataclass(frozen=True)
class Form:
    """Coefficients over a node of ``shape``.

    Dense (``windows`` is None): ``coef`` is (b, s, *shape). Windows: (c, h, w, m, b, y, x) over a node of shape
    (1, c, height, width), ``m`` forms at each position; axes b, y and x of size 1 stand for what all have in common.
    Windows may reach over the node's edge; there the coefficients mean nothing, and are not zero if ``ragged``.
    """

    coef: Coefficients
    shape: Shape
    windows: Windows | None = None
    ragged: bool = False

    def like(self, coef: Coefficients) -> Form:
        """Return a form with other coefficients at the same positions, zero beyond the edge."""
        return Form(coef, self.shape, self.windows)

    def arrange(self, values: Float[Tensor, "..."]) -> Tensor:
        """Return the node's ``values``, (*shape) or (b, *shape), arranged like the coefficients, to multiply them.

        Values that already have one entry for each coefficient are returned as they are.
        """
        if values.ndim == self.coef.ndim:
            return values
        values = values if values.ndim > len(self.shape) else values[None]
        return values[:, None] if self.windows is None else gather(values[:, 0], self.windows, self.coef.shape[1:3])

    def flatten_last(self, values: Tensor) -> Float[Tensor, "... k"]:
        """Return ``values``, arranged like the coefficients, with the node's axes flattened and moved to the end."""
        return values.flatten(2) if self.windows is None else values.flatten(0, 2).movedim(0, -1)

    def dot(self, values: Float[Tensor, "..."]) -> Float[Tensor, "b s"]:
        """Return the forms' values at the node's ``values``."""
        laid = self.arrange(values)
        if self.windows is None:
            if laid.shape[1] > 1:
                return (self.coef * laid).flatten(2).sum(2)
            return (self.coef.flatten(2) @ laid.flatten(2).mT).squeeze(2)
        if self.coef.shape[4:] == (1, 1, 1) and laid.shape[3] == 1:
            product = self.coef.flatten(0, 2).flatten(1).T @ laid.flatten(0, 2).flatten(1)
            return self.per_form(product.unflatten(1, laid.shape[4:]))
        return self.per_form((self.coef * laid).flatten(0, 2).sum(0))

    def per_form(self, results: Tensor) -> Float[Tensor, "b s"]:
        """Return one result for each form, (b, s) or (m, b, y, x), in the order of dense forms: s = m * y * x."""
        if self.windows is None:
            return results
        return results.expand(-1, -1, *self.windows.count).movedim(0, 1).flatten(1)

    def times(self, factor: Float[Tensor, "..."] | float) -> Form:
        """Return the form of ``z`` where this one is of ``factor * z``, entry by entry."""
        if isinstance(factor, Tensor):
            return self.like(self.coef * self.arrange(factor))
        return self if factor == 1 else Form(self.coef * factor, self.shape, self.windows, self.ragged)

    def trimmed(self) -> Form:
        """Return the form with zeros beyond the node's edge."""
        return (
            self.times(torch.ones(self.shape, dtype=self.coef.dtype, device=self.coef.device)) if self.ragged else self
        )

    def dense(self) -> Form:
        """Return the same forms with dense coefficients, (b, m * y * x, *shape)."""
        if self.windows is None:
            return self
        (top, left), (down, right), (y, x) = self.windows.offset, self.windows.stride, self.windows.count
        (c, h, w, m, b), (height, width) = self.coef.shape[:5], self.shape[2:]
        coef = self.coef.expand(-1, -1, -1, -1, -1, y, x).permute(4, 3, 5, 6, 0, 1, 2)
        whole = coef.new_zeros(b, m, y, x, c, height, width)
        for i in range(y):
            for j in range(x):
                above, before = top + i * down, left + j * right
                vertical = slice(max(0, above), max(0, min(height, above + h)))
                horizontal = slice(max(0, before), max(0, min(width, before + w)))
                if vertical.start >= vertical.stop or horizontal.start >= horizontal.stop:  # nothing but padding
                    continue
                part = coef[:, :, i, j, :, vertical.start - above :, horizontal.start - before :]
                whole[:, :, i, j, :, vertical, horizontal] = part[
                    ..., : vertical.stop - vertical.start, : horizontal.stop - horizontal.start
                ]
        return Form(whole.reshape(b, m * y * x, 1, c, height, width), self.shape)

    def plus(self, other: Form) -> Form:
        """Return the sum of two forms over the same node."""
        if self.windows is None and other.windows is None:
            return Form(self.coef + other.coef, self.shape)
        if self.windows is None or other.windows is None or self.windows.stride != other.windows.stride:
            return self.dense().plus(other.dense())
        first, second = aligned(self, other), aligned(other, self)
        return Form(first.coef + second.coef, self.shape, first.windows, self.ragged or other.ragged)

    @property
    def wide(self) -> bool:
        """Whether windows are as large as the node, so that dense forms are cheaper."""
        return self.windows is not None and prod(self.coef.shape[1:3]) >= prod(self.shape[2:])


def gather(values: Float[Tensor, "b c height width"], windows: Windows, size: Shape) -> Float[Tensor, "c h w 1 b y x"]:
    """Return the windows of ``values``, zero outside."""
    ends = [o + s * (n - 1) + k for o, s, n, k in zip(windows.offset, windows.stride, windows.count, size, strict=True)]
    (top, left), (height, width) = windows.offset, values.shape[2:]
    above, before = max(-top, 0), max(-left, 0)
    padded = functional.pad(values, (before, max(ends[1] - width, 0), above, max(ends[0] - height, 0)))
    padded = padded[:, :, max(top, 0) : ends[0] + above, max(left, 0) : ends[1] + before]
    patches = padded.unfold(2, size[0], windows.stride[0]).unfold(3, size[1], windows.stride[1])
    # Copied, so that what multiplies it runs over contiguous memory.
    return patches.permute(1, 4, 5, 0, 2, 3).contiguous().unsqueeze(3)


def aligned(form: Form, other: Form) -> Form:
    """Return ``form`` with windows that also cover those of ``other``."""
    assert form.windows is not None
    assert other.windows is not None
    near = [min(a, b) for a, b in zip(form.windows.offset, other.windows.offset, strict=True)]
    pads: list[int] = []
    for axis in (1, 0):
        mine, theirs = form.windows.offset[axis], other.windows.offset[axis]
        end = max(mine + form.coef.shape[1 + axis], theirs + other.coef.shape[1 + axis])
        pads += [mine - near[axis], end - mine - form.coef.shape[1 + axis]]
    coef = functional.pad(form.coef, [0] * 8 + pads)
    return Form(coef, form.shape, Windows((near[0], near[1]), form.windows.stride, form.windows.count), form.ragged)


def identity(shape: Shape, dtype: torch.dtype, device: torch.device) -> Form:
    """Return the forms ``z_i`` and ``-z_i`` of a node of shape (1, c, height, width), as windows of one entry.

    There are ``m = 2 c`` forms at each position: first the entries, then their negatives.
    """
    c, height, width = shape[1:]
    eye = torch.eye(c, dtype=dtype, device=device)
    coef = torch.cat([eye, -eye], 1).reshape(c, 1, 1, 2 * c, 1, 1, 1)
    return Form(coef, shape, Windows((0, 0), (1, 1), (height, width)))


def dense_form(specifications: Float[Tensor, "b s n"], shape: Shape) -> Form:
    """Return ``specifications`` of a node of ``shape`` as a dense form."""
    return Form(specifications.reshape(*specifications.shape[:2], *shape), shape)
