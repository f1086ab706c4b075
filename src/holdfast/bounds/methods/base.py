"""How far a bound is pushed: each method is a settings object with a name and a text form, like an attack."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, final

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.bounds.methods import interval
from holdfast.bounds.methods.crown import output_bounds, relax
from holdfast.bounds.network.graph import Graph
from holdfast.bounds.regions import Region
from holdfast.core.settings import spell


@dataclass(frozen=True)
class Method(ABC):
    """A way to bound linear functions of the code from below, over a region of inputs."""

    name: ClassVar[str]

    def __str__(self) -> str:
        return spell(self)

    @abstractmethod
    def __call__(self, graph: Graph, region: Region, specifications: Float[Tensor, "b s d"]) -> Float[Tensor, "b s"]:
        """Return lower bounds of ``specifications . code``; what is not finite says nothing."""


def vacuous_unless_finite(bounds: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Return minus infinity, which claims nothing, for bounds that are not finite: an overflow proves nothing."""
    return torch.where(bounds.isfinite(), bounds, -torch.inf)


RegionAtRadius = Callable[[Float[Tensor, "b"]], Region]
"""The region around given images, each at its own radius."""


class RadiusResult(NamedTuple):
    """What was found of robust radii: up to where they are proved, and points that seem to lie just beyond."""

    radii: Float[Tensor, "*specifications"]
    points: Float[Tensor, "*rows_and_pixels"]
    """NaN where no point was met."""


@dataclass(frozen=True)
class RadiusSearch(Method):
    """A method so costly that it looks for the robust radius itself, rather than be asked at many radii."""

    @abstractmethod
    def search_radii(
        self,
        graph: Graph,
        region_at: RegionAtRadius,
        specifications: Float[Tensor, "s d"],
        low: Float[Tensor, "s"],
        high: Float[Tensor, "s"],
    ) -> RadiusResult:
        """Return radii around one image, from ``low`` to ``high``, at which its specifications are proved positive.

        Args:
            graph: the encoder.
            region_at: the region at a radius.
            specifications: positive at the image itself.
            low: radii that are proved already.
            high: the largest of interest: where an attack succeeded, or any.
        """


@final
@dataclass(frozen=True)
class Interval(Method):
    """Interval bounds: the cheapest and the loosest; the last affine map is joined with the specifications."""

    name = "interval"

    def __call__(self, graph: Graph, region: Region, specifications: Float[Tensor, "b s d"]) -> Float[Tensor, "b s"]:
        return interval.output_bounds(graph, interval.intermediate_bounds(graph, region), specifications)


@final
@dataclass(frozen=True)
class Crown(Method):
    """CROWN for every layer, ``joint`` with interval bounds; the published method is without them."""

    joint: bool = True
    name = "crown"

    @torch.no_grad()
    def __call__(self, graph: Graph, region: Region, specifications: Float[Tensor, "b s d"]) -> Float[Tensor, "b s"]:
        network = relax(graph, region, self.joint)
        found = output_bounds(network, specifications)
        if not self.joint:
            return found
        gained = torch.as_tensor(network.interval_gains, device=specifications.device).expand(len(specifications))
        if gained.any():  # tighter boxes choose other slopes, which are not better for every row
            other = output_bounds(
                relax(graph, region, with_intervals=False, initial=network.without_intervals), specifications
            )
            found = torch.where(gained[:, None], torch.fmax(found, other), found)
        return torch.fmax(found, interval.output_bounds(graph, network.intermediate_bounds, specifications))
