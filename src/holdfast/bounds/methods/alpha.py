"""Alpha-CROWN: the lower slopes of unstable ReLUs chosen by gradient ascent on the bound itself.

Any slope in [0, 1] is sound (Xu et al. 2021, https://arxiv.org/abs/2011.13824). Here every bounded neuron has slopes of
its own, one for each coefficient of its form, so that intermediate bounds are optimised once and serve all
specifications.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.bounds.methods import interval
from holdfast.bounds.methods.base import Method
from holdfast.bounds.methods.crown import Bounder, NetworkRelaxation, RelaxationParameters, minimise, relax
from holdfast.bounds.network.forms import Form, dense_form
from holdfast.bounds.network.graph import Graph
from holdfast.bounds.regions import Region
from holdfast.bounds.relaxations.rules import LinearRelaxation

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
        return replace(relaxation, lower=(torch.where(unstable, self.slopes[node], form.arrange(relaxation.lower[0])),))

    def clip(self) -> None:
        """Move the slopes to where they are sound."""
        for slope in self.slopes.values():
            slope.clamp_(0, 1)


def ascend(network: NetworkRelaxation, target: int, form: Form, steps: int, rate: float) -> Tensor:
    """Return the best lower bounds of the forms of ``target`` that ``steps`` of Adam find."""
    return ascend_slopes(network, target, form, steps, rate, OptimisedSlopes())


def ascend_specifications(
    network: NetworkRelaxation, specifications: Float[Tensor, "b s d"], steps: int, rate: float
) -> tuple[Float[Tensor, "b s"], dict[int, Float[Tensor, "b s ..."]]]:
    """Return the best lower bounds of ``specifications . code``, and for each ReLU node the slopes that gave them."""
    output, parameters = network.graph.nodes[-1], OptimisedSlopes()
    best: dict[int, Tensor] = {}
    form = dense_form(specifications, output.shape)

    def keep(better: Tensor) -> None:
        for node, slopes in parameters.slopes.items():
            mask = better.reshape(*better.shape, *(1,) * (slopes.ndim - 2))
            best[node] = torch.where(mask, slopes.detach(), best.get(node, slopes.detach()))

    return ascend_slopes(network, output.index, form, steps, rate, parameters, keep), best


def ascend_slopes(
    network: NetworkRelaxation,
    target: int,
    form: Form,
    steps: int,
    rate: float,
    parameters: OptimisedSlopes,
    keep: Callable[[Tensor], None] = lambda better: None,
) -> Tensor:
    """Return the best bounds found from ``parameters``; ``keep`` is called with a mask of those that each step improved."""
    with torch.enable_grad():
        bound = minimise(network, target, form, parameters)
        best = bound.detach()
        keep(torch.ones_like(best, dtype=torch.bool))
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
            keep(bound.detach() > best)
            best = torch.fmax(best, bound.detach())
    return best


def optimised_bounds(
    graph: Graph, region: Region, specifications: Float[Tensor, "b s d"], inner: Bounder, last: Bounder
) -> Float[Tensor, "b s"]:
    """Return lower bounds of ``specifications . code`` by ``last`` and by intervals, from intermediate ones by ``inner``."""
    network, output = relax(graph, region, bounder=inner), graph.nodes[-1]
    bounds = last(network, output.index, dense_form(specifications, output.shape))
    return torch.fmax(
        bounds, interval.output_bounds(graph, network.intermediate_bounds, specifications, network.rounding)
    )


@final
@dataclass(frozen=True)
class Alpha(Method):
    """CROWN with optimised slopes: first for intermediate bounds (``inner`` steps), then for each specification."""

    steps: int = 30
    inner: int = 20
    rate: float = 0.25
    name = "alpha"

    @torch.no_grad()
    def __call__(self, graph: Graph, region: Region, specifications: Float[Tensor, "b s d"]) -> Float[Tensor, "b s"]:
        return optimised_bounds(
            graph,
            region,
            specifications,
            partial(ascend, steps=self.inner, rate=self.rate),
            partial(ascend, steps=self.steps, rate=self.rate),
        )
