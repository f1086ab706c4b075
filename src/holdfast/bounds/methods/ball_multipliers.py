"""The multipliers that make the Lagrangian of a network in an l2 ball prove what SDP-CROWN proves of it.

Let ``u = y = relu(z)`` and ``v = relu(-z)``, so that ``z = u - v`` and ``u v = y (y - z) = 0``. With slopes ``g``, a
multiplier ``t`` and the centre ``c``, SDP-CROWN adds ``t/2 |z - c|^2`` to ``a . u - g . z``, which leaves

    p . u + q . v + t/2 (|u|^2 + |v|^2) - t u . v,        p = a - g - t c,   q = g + t c,

up to constants: the product has the multiplier ``t``, ``y >= 0`` the positive part of ``p`` and ``y >= z`` that of ``q``.

What was added has to be taken from the layer before. There ``d = y - relu(c)`` and ``e = z - c`` satisfy ``d (d - e) <= 0``,
which is ``u v - relu(-c) u - relu(c) v``, a sum of the same constraints: ``s`` times it leaves ``s/2 |d|^2`` and
takes ``s/2 |e|^2`` from the layer before that, and so on to the pixels. Each affine map multiplies by its squared norm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.bounds.methods.alpha import ascend_slopes
from holdfast.bounds.methods.crown import NetworkRelaxation, propagate_backward
from holdfast.bounds.methods.enclosing_balls import enclosing_balls
from holdfast.bounds.methods.lagrangian import RANGE, Multipliers
from holdfast.bounds.methods.sdp_crown import BallSlopes
from holdfast.bounds.network.affine import Affine
from holdfast.bounds.network.forms import Form, dense_form
from holdfast.bounds.network.graph import RULES
from holdfast.bounds.network.norms import spectral_norms
from holdfast.bounds.regions import l2_multiplier
from holdfast.bounds.relaxations.ball_offset import best_multiplier
from holdfast.bounds.relaxations.rules import Box
from holdfast.core.balls import column

RATE = 0.1
"""Steps of SDP-CROWN."""


@dataclass
class BallRecorder(BallSlopes):
    """Records of each ReLU the coefficients of its outputs and the slopes that took their place."""

    coefficients: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def propagate(
        self, network: NetworkRelaxation, node: int, form: Form
    ) -> tuple[Sequence[Form], Float[Tensor, "..."]]:
        parts, constant = super().propagate(network, node, form)
        if node in self.slopes:
            self.coefficients[node] = form.coef.detach()[:, 0], parts[0].coef.detach()[:, 0]
        return parts, constant


def ball_multipliers(
    network: NetworkRelaxation, specifications: Float[Tensor, "b d"], steps: int
) -> tuple[Multipliers, Float[Tensor, "b ..."]]:
    """Return multipliers of all constraints after ``steps`` of SDP-CROWN, and the slopes of the pixels.

    Args:
        network: the relaxation over the region of each specification.
        specifications: one for each region.
        steps: of ascent.
    """
    graph, output = network.graph, network.graph.nodes[-1]
    recorder = BallRecorder(balls=enclosing_balls(network))
    form = dense_form(specifications[:, None], output.shape)
    ascend_slopes(network, output.index, form, steps, RATE, recorder)
    pixels = propagate_backward(network, output.index, form, recorder)[0].dense().coef.detach()[:, 0]
    multipliers: Multipliers = {}
    taken = {node.index: torch.zeros_like(specifications[:, 0]) for node in graph.nodes}
    for node in reversed(graph.nodes):
        if isinstance(node.operation, Affine):
            shapes = [graph.nodes[i].shape for i in node.inputs]
            for source, norm in zip(
                node.inputs, spectral_norms(node.operation, shapes, graph.dtype, graph.device), strict=True
            ):
                taken[source] = taken[source] + norm * norm * taken[node.index]
        elif node.operation is RULES["relu"]:
            (source,) = node.inputs
            t = _relu_multipliers(network, recorder, node.index, source, taken[node.index], multipliers)
            taken[source] = taken[source] + t + taken[node.index]
    multipliers[RANGE] = _range_multipliers(network, pixels)
    return multipliers, pixels


def _relu_multipliers(
    network: NetworkRelaxation,
    recorder: BallRecorder,
    node: int,
    source: int,
    taken: Float[Tensor, "b"],
    multipliers: Multipliers,
) -> Float[Tensor, "b"]:
    """Set the multipliers of a ReLU, of which later layers have ``taken`` some; return that of its own ball."""
    box, (centre, radius) = network.intermediate_bounds[source], recorder.balls[source]
    zero = torch.zeros_like(box.lower)
    a, g = (values.expand_as(zero) for values in recorder.coefficients.get(node, (zero, zero)))
    flat = [values.flatten(1) for values in (a, g, *box, centre)]
    t = best_multiplier(flat[0], flat[1], Box(flat[2], flat[3]), flat[4], radius)
    t_own, later = column(t, zero), column(taken, zero)
    multipliers[node, "square"] = (t_own + later).expand_as(zero)
    multipliers[node, "positive"] = (a - g - t_own * centre).clamp_min(0) + later * (-centre).clamp_min(0)
    multipliers[node, "above"] = (g + t_own * centre).clamp_min(0) + later * centre.clamp_min(0)
    multipliers[node, "chord"] = zero
    return t


def _range_multipliers(network: NetworkRelaxation, pixels: Float[Tensor, "b ..."]) -> Float[Tensor, "b ..."]:
    """Return the multipliers of the pixels' range for a linear function of them."""
    region, (low, high) = network.region, network.intermediate_bounds[0]
    room = torch.where(pixels > 0, region.centre - low, high - region.centre).clamp_min(0)
    t = l2_multiplier(pixels.abs().flatten(1), room.flatten(1), region.eps)
    width = (high - low).clamp_min(torch.finfo(low.dtype).tiny)
    return torch.where(high > low, (pixels.abs() - column(t, room) * room).clamp_min(0) / width, 0.0)
