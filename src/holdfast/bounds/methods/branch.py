"""Branch and bound: unstable ReLUs are split into their two halves until every subdomain is proved.

Intermediate bounds come first: the receptive field of a neuron is a small network, and a box tightened by branch and
bound there improves every later bound. Then the specifications: the subdomains with the lowest bounds are split, and the
least bound over all subdomains bounds the specification.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from holdfast.bounds.methods import interval
from holdfast.bounds.methods.base import RadiusResult, RadiusSearch, RegionAtRadius, vacuous_unless_finite
from holdfast.bounds.methods.sdp_crown import ascend_in_balls
from holdfast.bounds.network.forms import dense_form
from holdfast.bounds.network.graph import Graph
from holdfast.bounds.radii.bisection import bisect_radii
from holdfast.bounds.regions import Region
from holdfast.bounds.subdomains.branch_and_bound import BranchAndBound
from holdfast.bounds.subdomains.receptive_fields import relax_and_refine
from holdfast.core.balls import L2


@final
@dataclass(frozen=True)
class Branch(RadiusSearch):
    """Alpha-CROWN, then branch and bound, in ``seconds`` for an image; ``boxes`` is the share for intermediate bounds.

    Intermediate bounds start with ``inner`` steps of alpha-CROWN, specifications with ``steps``. A specification is split
    into at most ``parts`` subdomains, ``batch`` in a round, until its bound is above ``target``; each subdomain is bounded
    by ``ascent`` steps at half of ``rate``. A search for radii leaves time for ``rounds`` that fail. In l2 balls what
    SDP-CROWN proves stands beside alpha-CROWN, for inner layers and before the first split.
    """

    seconds: float = 60.0
    boxes: float = 0.3
    rounds: int = 4
    parts: int = 4000
    target: float = 0.0
    ascent: int = 10
    batch: int = 32
    steps: int = 30
    inner: int = 20
    rate: float = 0.25
    name = "branch"

    @torch.no_grad()
    def __call__(self, graph: Graph, region: Region, specifications: Float[Tensor, "b s d"]) -> Float[Tensor, "b s"]:
        image = torch.arange(len(specifications), device=specifications.device).repeat_interleave(
            specifications.shape[1]
        )
        end = time.monotonic() + self.seconds * len(specifications)
        return self._bounds(graph, region, specifications.flatten(0, 1), image, end).reshape(specifications.shape[:2])

    @torch.no_grad()
    def search_radii(
        self,
        graph: Graph,
        region_at: RegionAtRadius,
        specifications: Float[Tensor, "s d"],
        low: Float[Tensor, "s"],
        high: Float[Tensor, "s"],
    ) -> RadiusResult:
        def prove(
            region: Region, indices: Int[Tensor, "o"], region_index: Int[Tensor, "o"], end: float
        ) -> Bool[Tensor, "o"]:
            return self._bounds(graph, region, specifications[indices], region_index, end) > 0

        return bisect_radii(prove, region_at, low, high, self.rounds, self.seconds)

    def _bounds(
        self,
        graph: Graph,
        region: Region,
        specifications: Float[Tensor, "t d"],
        region_index: Int[Tensor, "t"],
        end: float,
    ) -> Float[Tensor, "t"]:
        """Return lower bounds of specifications, each over the region that ``region_index`` names."""
        network = relax_and_refine(graph, region, self.inner, self.rate, self.boxes * (end - time.monotonic()))
        problem = BranchAndBound(network, region_index, specifications, self.rate / 2)
        root, picked = problem.root(self.steps), network.take(region_index)
        if region.ball is L2:
            output = graph.nodes[-1]
            by_balls = ascend_in_balls(
                picked, output.index, dense_form(specifications[:, None], output.shape), self.steps
            )
            root = replace(root, bounds=torch.fmax(root.bounds, vacuous_unless_finite(by_balls[:, 0])))
        bounds = problem.solve(root, self.ascent, self.parts, self.batch, end, self.target)
        by_intervals = vacuous_unless_finite(
            interval.output_bounds(graph, picked.intermediate_bounds, specifications[:, None], picked.rounding)
        )
        return torch.fmax(bounds, by_intervals[:, 0])
