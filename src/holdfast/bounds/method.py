"""How far a bound is pushed: each method is a settings object with a name and a text form, like an attack."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.bounds import interval
from holdfast.bounds.crown import output_bounds, relax
from holdfast.bounds.graph import Graph
from holdfast.bounds.regions import Region
from holdfast.spelling import spell


@dataclass(frozen=True)
class Method(ABC):
    """A way to bound linear functions of the code from below, over a region of inputs."""

    name: ClassVar[str]

    def __str__(self) -> str:
        return spell(self)

    @abstractmethod
    def __call__(self, graph: Graph, region: Region, rows: Float[Tensor, "b s d"]) -> Float[Tensor, "b s"]:
        """Return lower bounds of ``rows . code``; what is not finite says nothing."""


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
            plain = output_bounds(relax(graph, region, joint=False), rows)
            found = torch.where(mixed[:, None], torch.fmax(found, plain), found)
        return torch.fmax(found, interval.bounds(graph, relaxed.boxes, rows))
