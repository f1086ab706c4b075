"""Alpha-CROWN: the lower slopes of unstable ReLUs chosen by gradient ascent on the bound itself.

Any slope in [0, 1] is sound (Xu et al. 2021, https://arxiv.org/abs/2011.13824). Here every bounded neuron has slopes of
its own, one for each coefficient of its form, so that the boxes of inner layers are optimised once, for themselves, and
serve all rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.bounds import interval
from holdfast.bounds.crown import Relaxed, Slopes, minimise, relax
from holdfast.bounds.forms import Form, chosen
from holdfast.bounds.graph import Graph
from holdfast.bounds.method import Method
from holdfast.bounds.region import Region
from holdfast.bounds.relaxations import Planes


@dataclass
class Free(Slopes):
    """One slope for each coefficient; they begin as the planes have them."""

    slopes: dict[int, Tensor] = field(default_factory=dict)

    def choose(self, node: int, form: Form, planes: Planes) -> Planes:
        if planes.free is None:
            return planes
        if node not in self.slopes:
            start = form.lay(planes.lower[0])
            start = start.expand(torch.broadcast_shapes(form.coef.shape, start.shape))
            self.slopes[node] = start.clone().requires_grad_()
        kept = form.lay(planes.free.to(form.coef.dtype)) > 0
        lower = torch.where(kept, self.slopes[node], form.lay(planes.lower[0]))
        return replace(planes, lower=(lower,))


def ascend(relaxed: Relaxed, target: int, form: Form, steps: int, rate: float) -> Tensor:
    """Return the best lower bounds of the forms over ``target`` that ``steps`` of Adam find."""
    free = Free()
    with torch.enable_grad():
        best = bound = minimise(relaxed, target, form, free)
        best = best.detach()
        if not free.slopes:
            return best
        optimiser = torch.optim.Adam(free.slopes.values(), lr=rate)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimiser, 0.95)
        for _ in range(steps):
            optimiser.zero_grad()
            (-bound.sum()).backward()
            optimiser.step()
            schedule.step()
            with torch.no_grad():
                for slope in free.slopes.values():
                    slope.clamp_(0, 1)
            bound = minimise(relaxed, target, form, free)
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
        bounder = partial(ascend, steps=self.inner, rate=self.rate)
        relaxed = relax(graph, region, bounder=bounder)
        output = graph.nodes[-1]
        found = ascend(relaxed, output.index, chosen(rows, output.shape), self.steps, self.rate)
        return torch.fmax(found, interval.bounds(graph, relaxed.boxes, rows))
