"""From a traced network to plain arrays."""

from __future__ import annotations

from math import prod
from typing import Any

import torch

from holdfast.bounds.network.affine import Affine
from holdfast.bounds.network.forms import Form, dense_form
from holdfast.bounds.network.graph import RULES, Graph
from holdfast.bounds.proofs.float64 import Matrix
from holdfast.bounds.proofs.network import PlainNetwork, Step
from holdfast.core.encoder import Domain
from holdfast.core.errors import HoldfastError

ROWS = 256
"""Rows of a matrix that are made at a time."""


def require_plain(graph: Graph) -> None:
    """Raise unless proofs can be kept of a network: it has nothing but affine operations and ReLUs."""
    for node in graph.nodes:
        if node.operation and not isinstance(node.operation, Affine) and node.operation is not RULES["relu"]:
            raise HoldfastError(
                f"proofs are kept of networks of affine operations and ReLUs, not of {node.name!r}; leave out --proofs"
            )


def plain_network(graph: Graph, domain: Domain) -> PlainNetwork:
    """Return ``graph`` as plain arrays.

    Raises:
        HoldfastError: it has something else than affine operations and ReLUs.
    """
    require_plain(graph)
    steps = list[Step]()
    for node in graph.nodes:
        size = prod(node.shape)
        if isinstance(node.operation, Affine):
            offset = node.operation.offset
            vector = None if offset is None else offset.reshape(-1).double().cpu().numpy().copy()
            steps.append(Step(node.inputs, size, _matrices(node.operation, node.shape, graph), vector))
        else:
            steps.append(Step(node.inputs, size))
    return PlainNetwork(tuple(steps), domain.low, domain.high)


def _matrices(operation: Affine, shape: tuple[int, ...], graph: Graph) -> tuple[Matrix, ...]:
    """Return the matrices of an affine operation, one for each input: its transpose applied to unit vectors."""
    from scipy.sparse import csr_array, vstack

    size, parts = prod(shape), list[list[Any]]()
    for rows in torch.arange(size).split(ROWS):
        units = torch.zeros(1, len(rows), size, dtype=graph.dtype, device=graph.device)
        units[0, torch.arange(len(rows)), rows] = 1.0
        forms: list[Form] = [form.dense() for form in operation.transpose(dense_form(units, shape))]
        parts.append([csr_array(form.coef[0].flatten(1).double().cpu().numpy()) for form in forms])
    return tuple(csr_array(vstack(blocks)) for blocks in zip(*parts, strict=True))
