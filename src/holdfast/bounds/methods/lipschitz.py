"""Bounds from Lipschitz constants of layers, together with CROWN.

Balls that enclose the values of inner layers are computed here as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.bounds.methods.base import Method
from holdfast.bounds.methods.crown import NetworkRelaxation, output_bounds, relax
from holdfast.bounds.network.forms import Form
from holdfast.bounds.network.network_graph import RULES, Affine, Graph
from holdfast.bounds.network.norms import spectral_norms
from holdfast.bounds.regions import Region
from holdfast.bounds.relaxations import Box, ReluForm
from holdfast.core.balls import L1, L2

# Balls that hold the values of inner layers while the input stays in its region.
#
# The centre is what the network makes of the region's centre. A radius is the least of two: that of the layer before
# times the spectral norm of the affine map in between (ReLUs move two points no further apart), and the distance from
# the centre to the farthest corner of the layer's box. What rounding may move a layer is added to it.

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
            norms = zip(spectral_norms(graph, node), inputs, strict=True)
            moved = torch.stack([norm * before for norm, before in norms]).sum(0)
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


SPARE = 64
"""Roundings of a constant beyond four for each of its terms."""


def constant_over_ball(
    form: Form, coefficients: Tensor, slopes: Tensor, box: Box, ball: EnclosingBall
) -> Float[Tensor, "b s"]:
    """Return lower bounds of ``coefficients . relu(z) - slopes . z``, arranged as in ``form``, over a box and a ball."""
    low, high, centre = (form.flatten_last(form.arrange(values)) for values in (*box, ball.centre))
    a, g = torch.broadcast_tensors(form.flatten_last(coefficients), form.flatten_last(slopes))
    radius = ball.radius.reshape((-1, 1) if form.windows is None else (-1, 1, 1))
    rounding = 4 * (a.shape[-1] + SPARE) * torch.finfo(a.dtype).eps
    return form.per_form(ReluForm(a, g, Box(low, high), centre).least(radius, rounding))


# Lipschitz constants by layer: CROWN, and the minimum over the ball that holds each layer, whichever is the tighter.
#
# A change of l2 size ``r`` moves the values of a layer by at most ``r`` times the product of the spectral norms of
# the affine maps before it (``enclosing_balls``). Specifications are carried back through the affine maps at the end
# of the network alone; over the values ``z`` of the layer before them, which lie in a box and in a ball, the minimum
# of ``c . z`` is that of ``relaxations.ReluForm`` with no outputs and slopes ``-c``. Nothing is optimised, so it
# costs little more than CROWN.


@final
@dataclass(frozen=True)
class Lipschitz(Method):
    """CROWN, and the product of the spectral norms of all layers but the last beside it: cheap, for l2 balls."""

    name = "lipschitz"

    @torch.no_grad()
    def __call__(self, graph: Graph, region: Region, specifications: Float[Tensor, "b s d"]) -> Float[Tensor, "b s"]:
        network = relax(graph, region)
        return torch.fmax(output_bounds(network, specifications), bounds_by_norms(network, specifications))


@torch.no_grad()
def bounds_by_norms(network: NetworkRelaxation, specifications: Float[Tensor, "b s d"]) -> Float[Tensor, "b s"]:
    """Return lower bounds of ``specifications . code`` over the boxes and the balls of the last layer of functions."""
    balls = enclosing_balls(network)

    def least(node: int, form: Form) -> Float[Tensor, "b s"]:
        zeros = torch.zeros_like(form.coef)
        return constant_over_ball(form, zeros, -form.coef, network.intermediate_bounds[node], balls[node])

    return torch.fmax(network.by_intervals(specifications), network.by_intervals(specifications, least))
