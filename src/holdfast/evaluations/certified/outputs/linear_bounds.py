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
"""Specifications that are bounded together: more of them take memory and no less time."""


def lower_bounds(
    graph: Graph, method: Method, pixels: Pixels, ball: Ball, domain: Domain, specifications: Float[Tensor, "b s d"]
) -> Float[Tensor, "b s"]:
    """Return lower bounds of ``specifications . f(x')`` for all ``x'`` in the ball around each image.

    Where bounds fail they are minus infinity.
    """
    eps = torch.full((len(pixels),), ball.radius, dtype=pixels.dtype, device=pixels.device)
    if not specifications.shape[1]:
        return specifications.sum(2)
    size = max(1, AT_ONCE // specifications.shape[1])
    batches = (slice(start, start + size) for start in range(0, len(pixels), size))
    return torch.cat(
        [
            vacuous_unless_finite(
                method(
                    graph,
                    region(pixels[batch], type(ball), eps[batch], domain, inputs=graph.inputs),
                    specifications[batch],
                )
            )
            for batch in batches
        ]
    )


def lower_and_upper_bounds(
    graph: Graph, method: Method, pixels: Pixels, ball: Ball, domain: Domain, specifications: Float[Tensor, "b s d"]
) -> tuple[Float[Tensor, "b s"], Float[Tensor, "b s"]]:
    """Return lower and upper bounds of ``specifications . f(x')``."""
    low, high = lower_bounds(
        graph, method, pixels, ball, domain, torch.cat([specifications, -specifications], 1)
    ).chunk(2, 1)
    return low, -high
