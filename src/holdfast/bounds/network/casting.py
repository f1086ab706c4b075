"""A graph in another precision: for searches, whose results are proved in the graph's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from holdfast.bounds.network.affine import Affine, Convolution, Diagonal, Value
from holdfast.bounds.network.forms import Form
from holdfast.bounds.network.graph import Graph, Node


@dataclass(frozen=True)
class Cast(Affine):
    """An operation that computes in the precision it was made for, between values of another."""

    inner: Affine
    dtype: torch.dtype
    inner_dtype: torch.dtype

    @property
    def offset(self) -> Tensor | None:
        return None if self.inner.offset is None else self.inner.offset.to(self.dtype)

    def forward(self, *inputs: Value) -> Value:
        return self.inner.forward(*(x.to(self.inner_dtype) for x in inputs)).to(self.dtype)

    def magnitude(self, *radii: Value) -> Value:
        return self.inner.magnitude(*(r.to(self.inner_dtype) for r in radii)).to(self.dtype)

    def transpose(self, form: Form) -> Sequence[Form]:
        forms = self.inner.transpose(form.like(form.coef.to(self.inner_dtype)))
        return [part.like(part.coef.to(self.dtype)) for part in forms]


def cast(graph: Graph, dtype: torch.dtype) -> Graph:
    """Return ``graph`` for values of ``dtype``; convolutions and scalings, which take the time, compute in it too."""
    nodes = [
        replace(node, operation=_cast(node, graph.dtype, dtype)) if isinstance(node.operation, Affine) else node
        for node in graph.nodes
    ]
    return Graph(tuple(nodes), dtype, graph.device)


def _cast(node: Node, inner: torch.dtype, dtype: torch.dtype) -> Affine:
    operation = node.operation
    if isinstance(operation, Convolution):
        bias = None if operation.bias is None else operation.bias.to(dtype)
        return replace(operation, weight=operation.weight.to(dtype), bias=bias)
    if isinstance(operation, Diagonal):
        factors = tuple(f.to(dtype) if isinstance(f, Tensor) else f for f in operation.factors)
        return Diagonal(factors, None if operation.offset is None else operation.offset.to(dtype))
    assert isinstance(operation, Affine)
    return Cast(operation, dtype, inner)
