"""Exact bounds: the minimum of a linear function of the code, for small ReLU networks, as a mixed-integer program.

The robust radius is the optimum of one such program too: the least ``r`` with ``|x - centre| <= r`` and ``w . f(x) <= 0``,
so that no search over radii is needed.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.bounds.methods.alpha import ascend_specifications
from holdfast.bounds.methods.base import RadiusResult, RadiusSearch, RegionAtRadius
from holdfast.bounds.methods.crown import NetworkRelaxation
from holdfast.bounds.methods.mixed_integer import encode
from holdfast.bounds.network.graph import Graph
from holdfast.bounds.regions import Region, require_box
from holdfast.bounds.relaxations.rules import Box
from holdfast.bounds.rounding.steps import size
from holdfast.bounds.subdomains.receptive_fields import relax_and_refine

FURTHER = 1.003
GROWTH = 2.0
"""Factor from the certified radius to the first region: a smaller region has tighter boxes and is solved sooner."""


@final
@dataclass(frozen=True)
class Exact(RadiusSearch):
    """The minimum or the robust radius itself, in ``seconds`` for each specification; out of time, the bound proved so far.

    The search of a radius ends within ``gap``, as a share of it, of a point where the specification fails. Intermediate
    bounds are those of alpha-CROWN after ``inner`` steps at ``rate``, tightened for the share ``boxes`` of the time.
    """

    seconds: float = 60.0
    gap: float = 0.02
    boxes: float = 0.1
    inner: int = 20
    rate: float = 0.25
    name = "exact"

    @torch.no_grad()
    def __call__(self, graph: Graph, region: Region, specifications: Float[Tensor, "b s d"]) -> Float[Tensor, "b s"]:
        network = self._relax(graph, region)
        bounds, _ = ascend_specifications(network, specifications, self.inner, self.rate)
        for image in range(len(specifications)):
            boxes = [Box(*(end[image : image + 1].double() for end in box)) for box in network.intermediate_bounds]
            rounding = {node: values[image : image + 1] for node, values in network.rounding.items()}
            program = encode(graph, boxes, rounding)
            for index, weights in enumerate(specifications[image]):
                least = program.minimise(weights.cpu().double().numpy(), self.seconds)
                bounds[image, index] = max(float(bounds[image, index]), least)
        return bounds

    @torch.no_grad()
    def search_radii(
        self,
        graph: Graph,
        region_at: RegionAtRadius,
        specifications: Float[Tensor, "s d"],
        low: Float[Tensor, "s"],
        high: Float[Tensor, "s"],
    ) -> RadiusResult:
        require_box(region_at(low))
        radii, points = low.clone(), []
        for index, weights in enumerate(specifications):
            end, cap, point = time.monotonic() + self.seconds, 0.0, None
            while cap < float(high[index]) and time.monotonic() < end:
                cap = min(float(high[index]), GROWTH * max(cap, float(radii[index])))
                if not cap:  # nothing is certified, so there is no scale to begin at
                    cap = float(high[index])
                radii[index], point = self._nearest(
                    graph, region_at, weights, float(radii[index]), cap, end - time.monotonic()
                )
                if point is not None:
                    break
            points.append(torch.full(graph.nodes[0].shape[1:], torch.nan) if point is None else point)
        return RadiusResult(radii, torch.stack(points).to(radii))

    def _nearest(
        self,
        graph: Graph,
        region_at: RegionAtRadius,
        weights: Float[Tensor, "d"],
        low: float,
        cap: float,
        seconds: float,
    ) -> tuple[float, Tensor | None]:
        """Return a radius from ``low`` to ``cap`` that is proved within ``seconds``, and a point beyond it, if found."""
        region = region_at(torch.full((1,), cap, dtype=weights.dtype, device=weights.device))
        network = self._relax(graph, region)
        boxes = [Box(*(end.double() for end in box)) for box in network.intermediate_bounds]
        clean = float(weights @ graph(region.centre[:, 0])[0])
        moved = 0.0 if graph.inputs is None else graph.inputs.unit * float(size(region.box).max()) + graph.inputs.tiny
        scaled = weights.cpu().double().numpy() / clean
        centre = region.centre.flatten().cpu().double().numpy()
        program = encode(graph, boxes, network.rounding)
        # The program's pixels are converted ones, which may lie ``moved`` beyond the ball.
        radius, point = program.nearest(scaled, centre, max(low - moved, 0.0), cap + moved, seconds, self.gap)
        radius = max(low, min(radius - moved, cap))
        if point is None:
            return radius, None
        # At the program's point the specification fails up to the margin: a little further it fails indeed.
        beyond = torch.tensor(centre + FURTHER * (point - centre)).reshape(graph.nodes[0].shape[1:])
        return radius, torch.minimum(torch.maximum(beyond, boxes[0].lower[0, 0].cpu()), boxes[0].upper[0, 0].cpu())

    def _relax(self, graph: Graph, region: Region) -> NetworkRelaxation:
        require_box(region)
        return relax_and_refine(graph, region, self.inner, self.rate, self.boxes * self.seconds)
