"""Floating-point formats, and the steps of a program whose rounding errors are bounded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils._pytree import tree_leaves

from holdfast.bounds.network.network_graph import Affine, Graph, Node, Step, Var
from holdfast.bounds.relaxations import Box

# Floating-point formats, and how far sums in them can be from the sums of real numbers.
#
# With unit roundoff ``u``, the result of one operation is that of real numbers times ``1 + d``, ``|d| <= u``, or
# differs from it by less than the smallest normal number where it is smaller still. A sum of ``n`` terms, in any
# order and with or without fused multiply-add, is off by at most ``gamma_n = n u / (1 - n u)`` times the sum of the
# terms' sizes (Higham 2002, *Accuracy and Stability of Numerical Algorithms*, sections 2.2 and 3.1,
# https://doi.org/10.1137/1.9780898718027).

NAMES = {torch.float16: "float16", torch.bfloat16: "bfloat16", torch.float32: "float32", torch.float64: "float64"}

HALF = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Format:
    """Numbers of a torch type, rounded to nearest; results below the smallest normal number may become zero."""

    dtype: torch.dtype

    @property
    def name(self) -> str:
        return NAMES[self.dtype]

    @property
    def unit(self) -> float:
        """The unit roundoff ``u``: half the distance from 1 to the next number."""
        return torch.finfo(self.dtype).eps / 2

    @property
    def tiny(self) -> float:
        """The smallest normal number."""
        return torch.finfo(self.dtype).smallest_normal

    @property
    def largest(self) -> float:
        """The largest finite number."""
        return torch.finfo(self.dtype).max

    def gamma(self, n: int) -> float:
        """Return ``n u / (1 - n u)``, infinite where ``n`` roundings may lose all digits.

        Example:
            >>> Format(torch.bfloat16).gamma(128)
            inf
            >>> round(Format(torch.float32).gamma(2) / 2**-23, 6)
            1.0
        """
        share = n * self.unit
        return share / (1 - share) if share < 0.5 else inf

    def holds(self, values: Tensor) -> Tensor:
        """Return which values are numbers of this format."""
        return self.nearest(values) == values

    def nearest(self, values: Tensor) -> Tensor:
        """Return the nearest numbers of this format, in the precision of ``values``."""
        return values.to(self.dtype).to(values.dtype)


Values = Float[Tensor, "..."]
Number = float | int


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

    def operand(self, position: int) -> Values | Number:
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
        if index in self.operands or not isinstance(node.operation, Affine):
            return size(self.boxes[index])
        total = node.operation.magnitude(*(self._terms(source) for source in node.inputs))
        return total if node.operation.offset is None else total + node.operation.offset.abs()

    @cached_property
    def operands(self) -> set[int]:
        leaves = tree_leaves((self.step.arguments, dict(self.step.settings)))
        return {leaf.index for leaf in leaves if isinstance(leaf, Var)}

    @property
    def offset(self) -> Tensor | Number:
        """The size of the constant that the last operation adds."""
        operation = self.node.operation
        return operation.offset.abs() if isinstance(operation, Affine) and operation.offset is not None else 0.0

    def rounded(self, error: Values | Number, *before: Values | Number) -> Values:
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
"""Largest difference of the executed operation from exact arithmetic, entry by entry."""
