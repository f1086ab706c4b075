"""Branch and bound: unstable ReLUs are split into their two halves until every part is certified.

Inner layers come first: what a neuron sees is a small network, and its box, tightened by the same means, is felt by all
rows. Then the rows: of each the parts with the lowest bounds are split; the least bound over all parts bounds the row.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from holdfast.bounds.methods import interval
from holdfast.bounds.methods.base import RadiusResult, RadiusSearch, RegionAt
from holdfast.bounds.network.graph import Graph
from holdfast.bounds.proved import known
from holdfast.bounds.regions import Region
from holdfast.bounds.seeking import bisected
from holdfast.bounds.subdomains.receptive_fields import refine
from holdfast.bounds.subdomains.subdomains import Tasks


@final
@dataclass(frozen=True)
class Branch(RadiusSearch):
    """Optimised slopes, then branch and bound, in ``seconds`` for an image; ``boxes`` is the share of inner layers.

    Rows are split until they are above ``target``, into ``parts`` at most, ``batch`` in a round, each bounded by
    ``ascent`` steps at half of ``rate``. Boxes begin with ``inner`` steps of alpha-CROWN, rows with ``steps``. A search
    for radii leaves time for ``rounds`` that fail.
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
    def __call__(self, graph: Graph, region: Region, rows: Float[Tensor, "b s d"]) -> Float[Tensor, "b s"]:
        image = torch.arange(len(rows), device=rows.device).repeat_interleave(rows.shape[1])
        end = time.monotonic() + self.seconds * len(rows)
        return self._bounds(graph, region, rows.flatten(0, 1), image, end).reshape(rows.shape[:2])

    @torch.no_grad()
    def reach(
        self,
        graph: Graph,
        place: RegionAt,
        rows: Float[Tensor, "s d"],
        low: Float[Tensor, "s"],
        high: Float[Tensor, "s"],
    ) -> RadiusResult:
        def trial(region: Region, tried: Int[Tensor, "o"], where: Int[Tensor, "o"], end: float) -> Bool[Tensor, "o"]:
            return self._bounds(graph, region, rows[tried], where, end) > 0

        return bisected(trial, place, low, high, self.rounds, self.seconds)

    def _bounds(
        self, graph: Graph, region: Region, rows: Float[Tensor, "t d"], where: Int[Tensor, "t"], end: float
    ) -> Float[Tensor, "t"]:
        """Return lower bounds of rows, each over the region that ``where`` names."""
        relaxed = refine(graph, region, self.inner, self.rate, self.boxes * (end - time.monotonic()))
        tasks = Tasks(relaxed, where, rows, self.rate / 2)
        found = tasks.explored(tasks.root(self.steps), self.ascent, self.parts, self.batch, end, self.target)
        return torch.fmax(found, known(interval.bounds(graph, relaxed.take(where).boxes, rows[:, None]))[:, 0])
