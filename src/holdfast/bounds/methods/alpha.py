"""Alpha-CROWN and SDP-CROWN: linear bounds with optimised slopes and constants.

SDP-CROWN uses that the neurons of a layer share one l2 ball.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from holdfast.bounds.methods.base import Method
from holdfast.bounds.methods.crown import Bounder, NetworkRelaxation, RelaxationParameters, minimise, relax
from holdfast.bounds.methods.lipschitz import EnclosingBall, bounds_by_norms, constant_over_ball, enclosing_balls
from holdfast.bounds.network.forms import Form, Windows, dense_form
from holdfast.bounds.network.network_graph import RULES, Graph
from holdfast.bounds.regions import Region
from holdfast.bounds.relaxations import LinearRelaxation

# Alpha-CROWN: the lower slopes of unstable ReLUs chosen by gradient ascent on the bound itself.
#
# Any slope in [0, 1] is sound (Xu et al. 2021, https://arxiv.org/abs/2011.13824). Here every bounded neuron has
# slopes of its own, one for each coefficient of its form, so that intermediate bounds are optimised once and serve
# all specifications.

DECAY = 0.95  # of the step, at each step


@dataclass
class OptimisedSlopes(RelaxationParameters):
    """One slope for each coefficient; they start from those of the linear relaxation."""

    slopes: dict[int, Tensor] = field(default_factory=dict)

    def choose(self, node: int, form: Form, relaxation: LinearRelaxation) -> LinearRelaxation:
        if relaxation.unstable is None:
            return relaxation
        if node not in self.slopes:
            start = form.arrange(relaxation.lower[0])
            self.slopes[node] = start.expand(torch.broadcast_shapes(form.coef.shape, start.shape)).clone()
            self.slopes[node].requires_grad_()
        unstable = form.arrange(relaxation.unstable.to(form.coef.dtype)) > 0
        return relaxation._replace(lower=(torch.where(unstable, self.slopes[node], form.arrange(relaxation.lower[0])),))

    def clip(self) -> None:
        """Move the slopes to where they are sound."""
        for slope in self.slopes.values():
            slope.clamp_(0, 1)

    def keep(self, better: Bool[Tensor, "b s"]) -> None:
        """Keep the slopes of the forms that are bounded ``better`` than before; this class keeps none."""


@dataclass
class RecordedSlopes(OptimisedSlopes):
    """Slopes with the windows that they lie in, and the best of them."""

    layouts: dict[int, tuple[tuple[int, ...], Windows | None]] = field(default_factory=dict)
    best: dict[int, Tensor] = field(default_factory=dict)

    def choose(self, node: int, form: Form, relaxation: LinearRelaxation) -> LinearRelaxation:
        self.layouts[node] = (form.shape, form.windows)
        return super().choose(node, form, relaxation)

    def keep(self, better: Bool[Tensor, "b s"]) -> None:
        for node, slopes in self.slopes.items():
            windows = self.layouts[node][1]
            if windows is None:
                mask = better.reshape(*better.shape, *(1,) * (slopes.ndim - 2))
            else:
                mask = better.unflatten(1, (-1, *windows.count)).transpose(0, 1)[None, None, None]
            now = slopes.detach()
            self.best[node] = torch.where(mask, now, self.best[node]) if node in self.best else now.clone()

    def dense(self) -> dict[int, Float[Tensor, "s n"]]:
        """Return the best slopes of the forms of a single image, zero where a form does not depend on the ReLU."""
        return {
            node: Form(slopes, *self.layouts[node]).dense().coef[0].flatten(1) for node, slopes in self.best.items()
        }


def ascend(network: NetworkRelaxation, target: int, form: Form, steps: int, rate: float) -> Tensor:
    """Return the best lower bounds of the forms of ``target`` that ``steps`` of Adam find."""
    return ascend_slopes(network, target, form, steps, rate, OptimisedSlopes())


def ascend_specifications(
    network: NetworkRelaxation, specifications: Float[Tensor, "b s d"], steps: int, rate: float
) -> tuple[Float[Tensor, "b s"], dict[int, Float[Tensor, "b s ..."]]]:
    """Return the best lower bounds of ``specifications . code``, and for each ReLU node the slopes that gave them."""
    output, parameters = network.graph.nodes[-1], RecordedSlopes()
    form = dense_form(specifications, output.shape)
    return ascend_slopes(network, output.index, form, steps, rate, parameters), parameters.best


def ascend_slopes(
    network: NetworkRelaxation, target: int, form: Form, steps: int, rate: float, parameters: OptimisedSlopes
) -> Tensor:
    """Return the best bounds that ascent from ``parameters`` finds; their ``keep`` gets a mask of each improvement."""
    with torch.enable_grad():
        bound = minimise(network, target, form, parameters)
        best = bound.detach()
        parameters.keep(torch.ones_like(best, dtype=torch.bool))
        if not parameters.slopes or not steps:
            return best
        optimiser = torch.optim.Adam(parameters.slopes.values(), lr=rate)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimiser, DECAY)
        for _ in range(steps):
            optimiser.zero_grad()
            (-bound.sum()).backward()
            optimiser.step()
            schedule.step()
            with torch.no_grad():
                parameters.clip()
            bound = minimise(network, target, form, parameters)
            parameters.keep(bound.detach() > best)
            best = torch.fmax(best, bound.detach())
    return best


def optimised_bounds(
    graph: Graph, region: Region, specifications: Float[Tensor, "b s d"], inner: Bounder, last: Bounder
) -> Float[Tensor, "b s"]:
    """Return lower bounds of ``specifications . code`` by ``last`` and by intervals, from intermediate ones by ``inner``."""
    network, output = relax(graph, region, bounder=inner), graph.nodes[-1]
    bounds = last(network, output.index, dense_form(specifications, output.shape))
    return torch.fmax(bounds, network.by_intervals(specifications))


@final
@dataclass(frozen=True)
class Alpha(Method):
    """CROWN with optimised slopes: first for intermediate bounds (``inner`` steps), then for each specification."""

    steps: int = 30
    """Ascent steps for the specifications."""
    inner: int = 20
    """Ascent steps for the bounds of inner layers."""
    rate: float = 0.25
    """Learning rate of the ascent."""
    name = "alpha"

    @torch.no_grad()
    def __call__(self, graph: Graph, region: Region, specifications: Float[Tensor, "b s d"]) -> Float[Tensor, "b s"]:
        inner, last = (partial(ascend, steps=steps, rate=self.rate) for steps in (self.inner, self.steps))
        return optimised_bounds(graph, region, specifications, inner, last)


# SDP-CROWN: linear bounds whose constants know that the neurons of a layer share one l2 ball.
#
# Any neuron of a layer may be as far from the centre of a ball as its radius, but not all of them at once. Boxes
# forget that, and lose up to the square root of a layer's width. Here the inputs of each layer of ReLUs lie in a ball
# as well (``enclosing_balls``), and the constant of a linear bound is the minimum over ball and box
# (``relaxations.ReluForm``): Chiu et al. 2025, https://arxiv.org/abs/2506.06665. Any slopes are sound; they start
# from CROWN's and are optimised, and the multiplier of each ball is solved for at every step.
#
# Departures: the box is kept beside the ball, so that nothing is lost where it is the tighter; inner layers are
# bounded in the same way; radii are cut by the corners of boxes.

STEEPEST = 2.0
"""The largest slope, as a multiple of the coefficient; none is unsound."""
RATE = 0.1
"""Steps of SDP-CROWN."""
ALPHA_RATE = 0.25
"""Steps of alpha-CROWN."""


@dataclass
class BallSlopes(OptimisedSlopes):
    """Slopes of ReLUs whose inputs lie in balls, as multiples of the coefficients of their outputs."""

    balls: Sequence[EnclosingBall] = field(default_factory=list)
    replaced: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    """The last coefficients of each ReLU's outputs, and the slopes that took their place."""

    def propagate(
        self, network: NetworkRelaxation, node: int, form: Form
    ) -> tuple[Sequence[Form], Float[Tensor, "..."]]:
        operation, relaxation = network.graph.nodes[node].operation, network.linear_relaxations[node]
        if operation is not RULES["relu"]:
            return super().propagate(network, node, form)
        assert relaxation.unstable is not None
        (source,) = network.graph.nodes[node].inputs
        unstable, lower, upper = (
            form.arrange(values.to(form.coef.dtype))
            for values in (relaxation.unstable, relaxation.lower[0], relaxation.upper[0])
        )
        if node not in self.slopes:
            self.slopes[node] = torch.where(form.coef > 0, lower, upper).detach().clone().requires_grad_()
        slopes = form.coef * torch.where(unstable > 0, self.slopes[node], lower)
        self.replaced[node] = form.coef.detach(), slopes.detach()
        box, ball = network.intermediate_bounds[source], self.balls[source]
        return [form.like(slopes)], constant_over_ball(form, form.coef, slopes, box, ball)

    def clip(self) -> None:
        for slope in self.slopes.values():
            slope.clamp_(-STEEPEST, STEEPEST)


def ascend_in_balls(
    network: NetworkRelaxation, target: int, form: Form, steps: int, rate: float = RATE
) -> Float[Tensor, "b s"]:
    """Return the best lower bounds of the forms of ``target`` by alpha-CROWN and by SDP-CROWN, ``steps`` of ascent each."""
    by_boxes = ascend(network, target, form, steps, ALPHA_RATE)
    parameters = BallSlopes(balls=enclosing_balls(network))
    return torch.fmax(by_boxes, ascend_slopes(network, target, form, steps, rate, parameters))


@final
@dataclass(frozen=True)
class SdpCrown(Method):
    """CROWN whose constants know that neurons share a ball: ``inner`` steps for inner layers, ``steps`` at the end."""

    steps: int = 30
    """Ascent steps for the specifications, by `alpha` and again with balls of inner layers."""
    inner: int = 10
    """Ascent steps for the bounds of inner layers, likewise."""
    rate: float = RATE
    """Learning rate with balls."""
    name = "sdp-crown"

    @torch.no_grad()
    def __call__(self, graph: Graph, region: Region, specifications: Float[Tensor, "b s d"]) -> Float[Tensor, "b s"]:
        def last(network: NetworkRelaxation, target: int, form: Form) -> Float[Tensor, "b s"]:
            by_balls = ascend_in_balls(network, target, form, self.steps, self.rate)
            return torch.fmax(by_balls, bounds_by_norms(network, form.coef.flatten(2)))

        inner = partial(ascend_in_balls, steps=self.inner, rate=self.rate)
        return optimised_bounds(graph, region, specifications, inner, last)
