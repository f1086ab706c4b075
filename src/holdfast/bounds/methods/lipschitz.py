"""Lipschitz constants by layer: CROWN, and the minimum over the ball that holds each layer, whichever is the tighter.

A change of l2 size ``r`` moves the values of a layer by at most ``r`` times the product of the spectral norms of the affine
maps before it (``enclosing_balls``). Specifications are carried back through the affine maps at the end of the network
alone; over the values ``z`` of the layer before them, which lie in a box and in a ball, the minimum of ``c . z`` is that of
``relaxations.ball_offset`` with no outputs and slopes ``-c``. Nothing is optimised, so it costs little more than CROWN.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.bounds.methods import interval
from holdfast.bounds.methods.base import Method
from holdfast.bounds.methods.crown import NetworkRelaxation, output_bounds, relax
from holdfast.bounds.methods.enclosing_balls import enclosing_balls
from holdfast.bounds.network.forms import Form
from holdfast.bounds.network.graph import Graph
from holdfast.bounds.regions import Region
from holdfast.bounds.relaxations.ball_offset import offset
from holdfast.bounds.relaxations.rules import Box

SPARE = 64
"""Roundings of a constant beyond four for each of its terms."""


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
        box, ball = network.intermediate_bounds[node], balls[node]
        coef = form.flatten_last(form.coef)
        low, high, centre = (form.flatten_last(form.arrange(values)) for values in (*box, ball.centre))
        rounding = 4 * (coef.shape[-1] + SPARE) * torch.finfo(coef.dtype).eps
        zeros = torch.zeros_like(coef)
        return form.per_form(offset(zeros, -coef, Box(low, high), centre, ball.radius[:, None], rounding))

    boxes = network.intermediate_bounds
    by_boxes = interval.output_bounds(network.graph, boxes, specifications, network.rounding)
    return torch.fmax(by_boxes, interval.output_bounds(network.graph, boxes, specifications, network.rounding, least))
