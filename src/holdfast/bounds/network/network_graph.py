"""A network as a flat list of affine maps, functions of single entries and products.

Affine operations know their forward map, their map of magnitudes and their transpose.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional
from torch.utils._pytree import tree_map_only

from holdfast.bounds.network.forms import Form, Shape, Windows
from holdfast.bounds.relaxations import CURVES, PRODUCT, RELU, Rule
from holdfast.core.errors import CannotBound

if TYPE_CHECKING:
    from holdfast.bounds.rounding.arithmetic import Arithmetic
    from holdfast.bounds.rounding.formats import Format


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


@dataclass(eq=False)
class General(Affine):
    """Any affine ``function``; its transpose is its derivative's.

    Args:
        function: of tensors at batch one.
        absolute: the same with absolute coefficients and no constant.
        shapes: of the inputs.
        dtype, device: of the inputs.
    """

    function: Callable[..., Tensor]
    absolute: Callable[..., Tensor]
    shapes: Sequence[Shape]
    dtype: torch.dtype
    device: torch.device

    def __post_init__(self) -> None:
        origin = [torch.zeros(shape, dtype=self.dtype, device=self.device) for shape in self.shapes]
        offset, self.pullback, *_ = torch.func.vjp(self.function, *origin)
        self.offset = offset if bool((offset != 0).any()) else None

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
        return self._sum([f.abs() if isinstance(f, Tensor) else abs(f) for f in self.factors], radii)

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
        settings = (self.stride, self.padding, extra, self.groups, self.dilation)
        coef = functional.conv_transpose2d(flat, self.weight, None, *settings)
        return Form(coef.unflatten(0, form.coef.shape[:3]), self.shape)

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


# A network as a flat list of operations of three kinds: affine maps, functions of single entries, products.
#
# Whatever a module computes is rewritten into these, so that bounds need one rule for each and none for each layer.
# Shapes are those at batch one, that axis included; batches ride on one more axis in front.

Number = float | int

RULES: dict[str, Rule] = {"relu": RELU, "product": PRODUCT, **{name: curve.rule() for name, curve in CURVES.items()}}


@dataclass(frozen=True)
class Node:
    """One operation on earlier nodes; the first node, the input, has none."""

    index: int
    name: str
    shape: Shape
    inputs: tuple[int, ...] = ()
    operation: Affine | Rule | None = None
    context: tuple[int, ...] = ()
    """Further nodes whose boxes its rule looks at, but which linear bounds do not pass through."""

    @property
    def sources(self) -> tuple[int, ...]:
        """All nodes that the rule of this one looks at."""
        return self.inputs + self.context


@dataclass(frozen=True)
class Var:
    """A tensor that depends on the input, while a graph is built."""

    index: int
    shape: Shape


@dataclass(frozen=True)
class Step:
    """An operation of the traced program that may round: by name, with its arguments and the types that it is executed in.

    A ``Var`` among the arguments stands for what depends on the input; its index is that of a node of the graph.
    """

    name: str
    place: str
    """Name of the result in the program."""
    arguments: tuple[Any, ...]
    settings: Mapping[str, Any]
    output: Var
    dtype: torch.dtype
    sources: tuple[torch.dtype, ...]
    """The types of the operands that depend on the input."""

    def renumbered(self, position_of: Mapping[int, int]) -> Step:
        """Return the step for a graph in which nodes stand elsewhere; -1 stands for nodes that are not in it."""

        def moved(var: Var) -> Var:
            return Var(position_of.get(var.index, -1), var.shape)

        arguments, settings = tree_map_only(Var, moved, (self.arguments, dict(self.settings)))
        return replace(self, arguments=arguments, settings=settings, output=moved(self.output))


@dataclass(frozen=True)
class Graph:
    """A network: nodes in order of computation, the input first and the output last."""

    nodes: tuple[Node, ...]
    dtype: torch.dtype
    device: torch.device
    steps: tuple[Step, ...] = ()
    """The operations of the program as it is executed, where its rounding is to be accounted for."""
    arithmetic: Arithmetic | None = None
    """Rounding that bounds account for; None for none."""

    @property
    def inputs(self) -> Format | None:
        """The type that inputs are converted to, where that is accounted for."""
        return None if self.arithmetic is None else self.arithmetic.inputs

    @cached_property
    def charged(self) -> frozenset[int]:
        """The nodes of which forms begin, where each layer's rounding is charged: what goes into rules, and the output."""
        into_rules = (i for n in self.nodes if isinstance(n.operation, Rule) for i in n.sources)
        return frozenset({len(self.nodes) - 1, *into_rules})

    @property
    def entries(self) -> int:
        """Number of values in all nodes for one image."""
        return sum(prod(node.shape) for node in self.nodes)

    @cached_property
    def pixelwise(self) -> frozenset[int]:
        """The nodes whose entries each depend on at most one pixel, no two on the same."""
        pixelwise = {0}
        for node in self.nodes[1:]:
            if len(node.inputs) == 1 and node.inputs[0] in pixelwise and _is_pixelwise(node.operation):
                pixelwise.add(node.index)
        return frozenset(pixelwise)

    def __call__(self, pixels: Float[Tensor, "b ..."]) -> Float[Tensor, "b ..."]:
        """Return the network's embeddings of (b, *pixels), without the axis of batch one."""
        return self.values(pixels)[-1][:, 0]

    def values(self, pixels: Float[Tensor, "b ..."]) -> list[Float[Tensor, "b ..."]]:
        """Return the values of every node; the axis of batch one stands wherever the network puts it."""
        values: list[Tensor] = []
        for node in self.nodes:
            inputs = [values[i] for i in node.sources]
            if isinstance(node.operation, Rule):
                values.append(node.operation.function(*inputs))
            else:
                values.append(node.operation.forward(*inputs) if node.operation else pixels[:, None])
        return values


def _is_pixelwise(operation: Affine | Rule | None) -> bool:
    """Whether each output depends on at most one input, no two on the same: factors, views, paddings with zero."""
    if not isinstance(operation, General) or operation.offset is not None:
        return isinstance(operation, Diagonal)
    probe = torch.rand(operation.shapes[0], dtype=operation.dtype, generator=torch.Generator().manual_seed(0)) + 1
    out = operation.function(probe.to(operation.device))
    kept = out[out != 0].cpu()
    return bool(torch.isin(kept, probe).all()) and len(kept.unique()) == len(kept)


class Builder:
    """Appends operations to a graph; every method returns the result as a ``Var``."""

    def __init__(self, shape: Shape, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype, self.device = dtype, device
        self.nodes = [Node(0, "input", shape)]
        self.softmaxes: dict[int, tuple[Var, Tensor | None]] = {}
        """Scores of softmax nodes (over the last axis), and the mask of scores that take part (None: all)."""
        self.naming = "input"
        """The traced operation that is being rewritten: nodes are named after it."""
        self.steps: list[Step] = []

    def append(self, shape: Shape, inputs: Sequence[Var], operation: Affine | Rule, context: Sequence[Var] = ()) -> Var:
        """Append an operation, whose rule may also look at the boxes of ``context``."""
        index, (sources, others) = len(self.nodes), (tuple(var.index for var in each) for each in (inputs, context))
        self.nodes.append(Node(index, self.naming, shape, sources, operation, others))
        return Var(index, shape)

    def constant(self, value: Tensor | Number) -> Tensor:
        """Return ``value`` in the graph's precision, on its device."""
        return torch.as_tensor(value, dtype=self.dtype, device=self.device)

    def widened(self, value: Tensor) -> Tensor:
        """Return ``value`` in the graph's precision if it is a floating-point number."""
        return value.to(self.dtype) if value.is_floating_point() else value

    def affine(self, function: Callable[..., Tensor], *inputs: Var, absolute: Callable[..., Tensor]) -> Var:
        """Append ``function``, affine in its inputs; ``absolute`` is the same with absolute coefficients, no constant."""
        shapes = [var.shape for var in inputs]
        general = General(function, absolute, shapes, self.dtype, self.device)
        return self.append(tuple(function(*self._zeros(shapes)).shape), inputs, general)

    def monotone(self, function: Callable[..., Tensor], *inputs: Var) -> Var:
        """Append ``function``, affine in its inputs with no negative coefficient: views, sums, means."""
        zeros = self._zeros([var.shape for var in inputs])
        offset = function(*zeros)
        if bool((function(*(zero + 1 for zero in zeros)) < offset).any()):
            raise CannotBound(f"{self.naming} with a negative factor", "no rule for it", fix="use a positive factor")
        return self.affine(function, *inputs, absolute=lambda *radii: function(*radii) - offset)

    def combine(self, factors: list[Tensor | Number], *inputs: Var, offset: Tensor | None = None) -> Var:
        """Append ``sum_i factors_i * inputs_i + offset``, entry by entry, with broadcasting."""
        sizes = [tensor.shape for tensor in (*factors, *inputs, offset) if isinstance(tensor, Tensor | Var)]
        shape = tuple(torch.broadcast_shapes(*sizes))
        wide = tuple(self.expand(var, shape) for var in inputs)
        full = [factor.expand(shape) if isinstance(factor, Tensor) else float(factor) for factor in factors]
        return self.append(shape, wide, Diagonal(tuple(full), None if offset is None else offset.expand(shape)))

    def expand(self, var: Var, shape: Shape) -> Var:
        """Append the broadcast of ``var`` to ``shape``, if it has another."""
        return var if var.shape == shape else self.monotone(lambda x: x.expand(shape), var)

    def nonlinear(self, rule: str | Rule, *inputs: Var) -> Var:
        """Append a rule, or that of ``RULES`` with this name, entry by entry, with broadcasting."""
        shape = tuple(torch.broadcast_shapes(*(var.shape for var in inputs)))
        if not shape:
            raise CannotBound(
                f"{self.naming} of a single number for all images", "it has no axis of images", fix="keep their axis"
            )
        operation = RULES[rule] if isinstance(rule, str) else rule
        return self.append(shape, tuple(self.expand(var, shape) for var in inputs), operation)

    def known(self, rule: Rule, var: Var, *context: Var) -> Var:
        """Append ``var`` itself, of which ``rule`` knows more by the boxes of ``context``."""
        return self.append(var.shape, [var], rule, context)

    def graph(self, output: Var) -> Graph:
        """Return the graph that computes ``output``, without what it does not need."""
        needed = {output.index}
        for node in reversed(self.nodes):
            if node.index in needed:
                needed.update(node.sources)
        order = sorted(needed | {0})
        position_of = {index: position for position, index in enumerate(order)}
        nodes: list[Node] = []
        for node in (self.nodes[index] for index in order):
            inputs, context = (tuple(position_of[i] for i in each) for each in (node.inputs, node.context))
            nodes.append(replace(node, index=len(nodes), inputs=inputs, context=context))
        steps = tuple(step.renumbered(position_of) for step in self.steps if step.output.index in needed)
        return Graph(tuple(nodes), self.dtype, self.device, steps)

    def _zeros(self, shapes: list[Shape]) -> list[Tensor]:
        return [torch.zeros(shape, dtype=self.dtype, device=self.device) for shape in shapes]
