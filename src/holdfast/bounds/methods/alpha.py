"""Alpha-CROWN: the lower slopes of unstable ReLUs chosen by gradient ascent on the bound itself.

Any slope in [0, 1] is sound (Xu et al. 2021, https://arxiv.org/abs/2011.13824). Here every bounded neuron has slopes of
its own, one for each coefficient of its form, so that the boxes of inner layers are optimised once, for themselves, and
serve all rows.
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
from holdfast.bounds.methods.crown import Relaxed, Slopes, minimise, relax
from holdfast.bounds.network.forms import Form, chosen
from holdfast.bounds.network.graph import Graph
from holdfast.bounds.regions import Region
from holdfast.bounds.relaxations.rules import LinearRelaxation

DECAY = 0.95  # of the step, at each step


@dataclass
class FreeSlopes(Slopes):
    """One slope for each coefficient; they begin as the planes have them."""

    slopes: dict[int, Tensor] = field(default_factory=dict)

    def choose(self, node: int, form: Form, planes: LinearRelaxation) -> LinearRelaxation:
        if planes.free is None:
            return planes
        if node not in self.slopes:
            start = form.lay(planes.lower[0])
            self.slopes[node] = start.expand(torch.broadcast_shapes(form.coef.shape, start.shape)).clone()
            self.slopes[node].requires_grad_()
        free = form.lay(planes.free.to(form.coef.dtype)) > 0
        return replace(planes, lower=(torch.where(free, self.slopes[node], form.lay(planes.lower[0])),))


def ascend(relaxed: Relaxed, target: int, form: Form, steps: int, rate: float) -> Tensor:
    """Return the best lower bounds of the forms over ``target`` that ``steps`` of Adam find."""
    return climb(relaxed, target, form, steps, rate, FreeSlopes())


def ascend_rows(
    relaxed: Relaxed, rows: Float[Tensor, "b s d"], steps: int, rate: float
) -> tuple[Float[Tensor, "b s"], dict[int, Float[Tensor, "b s ..."]]]:
    """Return the best lower bounds of ``rows . code``, and for each ReLU node the slopes that gave them."""
    output, free = relaxed.graph.nodes[-1], FreeSlopes()
    best: dict[int, Tensor] = {}
    form = chosen(rows, output.shape)

    def keep(better: Tensor) -> None:
        for node, slopes in free.slopes.items():
            mask = better.reshape(*better.shape, *(1,) * (slopes.ndim - 2))
            best[node] = torch.where(mask, slopes.detach(), best.get(node, slopes.detach()))

    return climb(relaxed, output.index, form, steps, rate, free, keep), best


def climb(
    relaxed: Relaxed,
    target: int,
    form: Form,
    steps: int,
    rate: float,
    free: FreeSlopes,
    keep: Callable[[Tensor], None] = lambda better: None,
) -> Tensor:
    """Return the best bounds found from ``free``, calling ``keep`` with a mask of those that each step improved."""
    with torch.enable_grad():
        bound = minimise(relaxed, target, form, free)
        best = bound.detach()
        keep(torch.ones_like(best, dtype=torch.bool))
        if not free.slopes or not steps:
            return best
        optimiser = torch.optim.Adam(free.slopes.values(), lr=rate)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimiser, DECAY)
        for _ in range(steps):
            optimiser.zero_grad()
            (-bound.sum()).backward()
            optimiser.step()
            schedule.step()
            with torch.no_grad():
                for slope in free.slopes.values():
                    slope.clamp_(0, 1)
            bound = minimise(relaxed, target, form, free)
            keep(bound.detach() > best)
            best = torch.fmax(best, bound.detach())
    return best


@final
@dataclass(frozen=True)
class Alpha(Method):
    """CROWN with optimised slopes: for the boxes of inner layers (``inner`` steps), then for each row."""

    steps: int = 30
    inner: int = 20
    rate: float = 0.25
    name = "alpha"

    @torch.no_grad()
    def __call__(self, graph: Graph, region: Region, rows: Float[Tensor, "b s d"]) -> Float[Tensor, "b s"]:
        relaxed = relax(graph, region, bounder=partial(ascend, steps=self.inner, rate=self.rate))
        found, _ = ascend_rows(relaxed, rows, self.steps, self.rate)
        return torch.fmax(found, interval.bounds(graph, relaxed.boxes, rows))
