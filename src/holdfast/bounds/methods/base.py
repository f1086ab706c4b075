"""How far a bound is pushed: each method is a settings object with a name and a text form, like an attack."""

from __future__ import annotations

from abc import abstractmethod
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
from holdfast.core.settings import Spelled


@dataclass(frozen=True)
class Method(Spelled):
    """A way to bound linear functions of the code from below, over a region of inputs."""

    name: ClassVar[str]

    @classmethod
    def read(cls, text: str) -> Method:
        from holdfast.bounds import read_method  # which knows every method

        return read_method(text)

    @abstractmethod
    def __call__(self, graph: Graph, region: Region, rows: Float[Tensor, "b s d"]) -> Float[Tensor, "b s"]:
        """Return lower bounds of ``rows . code``; what is not finite says nothing."""


RegionAt = Callable[[Float[Tensor, "b"]], Region]
"""The region around given images, each at its own radius."""


class RadiusResult(NamedTuple):
    """What was found of robust radii: up to where they are proved, and points that seem to lie just beyond."""

    radii: Float[Tensor, "*rows"]
    points: Float[Tensor, "*rows_and_pixels"]
    """NaN where no point was met."""


@dataclass(frozen=True)
class RadiusSearch(Method):
    """A method so costly that it looks for the robust radius itself, rather than be asked at many radii."""

    @abstractmethod
    def reach(
        self,
        graph: Graph,
        place: RegionAt,
        rows: Float[Tensor, "s d"],
        low: Float[Tensor, "s"],
        high: Float[Tensor, "s"],
    ) -> RadiusResult:
        """Return radii around one image, from ``low`` to ``high``, at which its rows are proved positive.

        Args:
            graph: the encoder.
            place: the region at a radius.
            rows: positive at the image itself.
            low: radii that are proved already.
            high: the largest of interest: where an attack succeeded, or any.
        """


@final
@dataclass(frozen=True)
class Interval(Method):
    """Interval bounds: the cheapest and the loosest; the last affine map is joined with the rows."""

    name = "interval"

    def __call__(self, graph: Graph, region: Region, rows: Float[Tensor, "b s d"]) -> Float[Tensor, "b s"]:
        return interval.bounds(graph, interval.boxes(graph, region), rows)


@final
@dataclass(frozen=True)
class Crown(Method):
    """CROWN for every layer, ``joint`` with interval bounds; the published method is without them."""

    joint: bool = True
    name = "crown"

    @torch.no_grad()
    def __call__(self, graph: Graph, region: Region, rows: Float[Tensor, "b s d"]) -> Float[Tensor, "b s"]:
        relaxed = relax(graph, region, self.joint)
        found = output_bounds(relaxed, rows)
        if not self.joint:
            return found
        mixed = torch.as_tensor(relaxed.mixed, device=rows.device).expand(len(rows))
        if mixed.any():  # tighter boxes choose other slopes, which are not better for every row
            plain = output_bounds(relax(graph, region, joint=False, begun=relaxed.plain), rows)
            found = torch.where(mixed[:, None], torch.fmax(found, plain), found)
        return torch.fmax(found, interval.bounds(graph, relaxed.boxes, rows))
