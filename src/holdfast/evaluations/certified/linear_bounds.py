"""Many linear functions of the code over the balls around several images, a few images at a time."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.bounds.methods.base import Method, vacuous_unless_finite
from holdfast.bounds.network.graph import Graph
from holdfast.bounds.regions import region
from holdfast.core.balls import Ball
from holdfast.core.encoder import Domain, Pixels

AT_ONCE = 2048
"""Rows that are bounded together: more of them take memory and no less time."""


def lower(
    graph: Graph, method: Method, pixels: Pixels, ball: Ball, domain: Domain, rows: Float[Tensor, "b s d"]
) -> Float[Tensor, "b s"]:
    """Return lower bounds of ``rows . f(x')`` for all ``x'`` in ``ball`` around each image; what fails is minus infinity."""
    eps = torch.full((len(pixels),), ball.radius, dtype=pixels.dtype, device=pixels.device)
    if not rows.shape[1]:
        return rows.sum(2)
    size = max(1, AT_ONCE // rows.shape[1])
    parts = (slice(start, start + size) for start in range(0, len(pixels), size))
    return torch.cat(
        [
            vacuous_unless_finite(method(graph, region(pixels[part], type(ball), eps[part], domain), rows[part]))
            for part in parts
        ]
    )


def spans(
    graph: Graph, method: Method, pixels: Pixels, ball: Ball, domain: Domain, rows: Float[Tensor, "b s d"]
) -> tuple[Float[Tensor, "b s"], Float[Tensor, "b s"]]:
    """Return lower and upper bounds of ``rows . f(x')``."""
    low, high = lower(graph, method, pixels, ball, domain, torch.cat([rows, -rows], 1)).chunk(2, 1)
    return low, -high
