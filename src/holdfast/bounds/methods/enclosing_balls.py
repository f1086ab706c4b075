"""Balls that hold the values of inner layers while the input stays in its region.

The centre is what the network makes of the region's centre. A radius is the least of two: that of the layer before times
the spectral norm of the affine map in between (ReLUs move two points no further apart), and the distance from the
centre to the farthest corner of the layer's box. What rounding may move a layer is added to it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.bounds.methods.crown import NetworkRelaxation
from holdfast.bounds.network.affine import Affine
from holdfast.bounds.network.graph import RULES
from holdfast.bounds.network.norms import spectral_norms
from holdfast.core.balls import L1, L2

OUTWARD = 1 + 2.0**-20
"""Radii are computed in floating point, from sums of what is not negative."""


class EnclosingBall(NamedTuple):
    """A ball around each image's values of a node."""

    centre: Float[Tensor, "b ..."]
    radius: Float[Tensor, "b"]


@torch.no_grad()
def enclosing_balls(network: NetworkRelaxation) -> list[EnclosingBall]:
    """Return balls that hold the values of each node of which ``network`` has a box.

    Those of nodes where forms begin, as of the inputs of ReLUs, count rounding; others may leave it to later ones.
    """
    graph, region = network.graph, network.region
    balls: list[EnclosingBall] = []
    centres = graph.values(region.centre[:, 0])
    for node, box in zip(graph.nodes, network.intermediate_bounds, strict=False):
        centre = centres[node.index]
        radius = _norm(torch.maximum(box.upper - centre, centre - box.lower))
        inputs = [balls[i].radius for i in node.inputs]
        if node.operation is None and region.ball in (L2, L1):
            radius = torch.fmin(radius, region.eps)
        elif isinstance(node.operation, Affine):
            shapes = [graph.nodes[i].shape for i in node.inputs]
            norms = spectral_norms(node.operation, shapes, graph.dtype, graph.device)
            moved = torch.stack([norm * before for norm, before in zip(norms, inputs, strict=True)]).sum(0)
            radius = torch.fmin(radius, moved)
        elif node.operation is RULES["relu"]:
            radius = torch.fmin(radius, inputs[0])
        if node.index in network.rounding:
            # Once for what the network may compute, once for the centre.
            radius = radius + 2 * _norm(network.rounding[node.index])
        balls.append(EnclosingBall(centre, radius * OUTWARD))
    return balls


def _norm(values: Float[Tensor, "b ..."]) -> Float[Tensor, "b"]:
    return values.flatten(1).norm(dim=1)
