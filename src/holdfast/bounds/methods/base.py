"""Methods of bounding: each is a settings object with a name and a text form, like an attack."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields
from math import inf
from typing import ClassVar, NamedTuple, final

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.bounds.methods import interval
from holdfast.bounds.methods.crown import output_bounds, relax
from holdfast.bounds.network.network_graph import Graph
from holdfast.bounds.regions import Region
from holdfast.core.discovery import named_classes
from holdfast.core.settings import TextSettings, check_not_negative, check_positive, read

NEEDED = ("rate", "rank", "batch", "parts", "rounds")
"""Settings without which a method has nothing to work with; of the others, as of ``seconds``, there may be none."""

ENDLESS = ("target",)
"""Settings that may be infinite: a bound is then improved for as long as time and subdomains last."""


@dataclass(frozen=True)
class Method(TextSettings):
    """A way to bound linear functions of the embedding from below, over a region of inputs."""

    name: ClassVar[str]

    def __post_init__(self) -> None:
        numbers = [field.name for field in fields(self) if not isinstance(getattr(self, field.name), bool)]
        check_not_negative(self, *(name for name in numbers if getattr(self, name) != inf or name not in ENDLESS))
        check_positive(self, *(name for name in numbers if name in NEEDED))

    @classmethod
    def read(cls, text: str) -> Method:
        return read_method(text)

    @abstractmethod
    def __call__(self, graph: Graph, region: Region, specifications: Float[Tensor, "b s d"]) -> Float[Tensor, "b s"]:
        """Return lower bounds of ``specifications . code``; a bound that is not finite claims nothing."""


def methods() -> dict[str, type[Method]]:
    """Return every method by name."""
    from holdfast.bounds import methods as home

    return named_classes(home, Method)


def read_method(text: str) -> Method:
    """Return the way to bound that ``text`` spells.

    Example:
        >>> read_method("alpha:steps=100")
        Alpha(steps=100, inner=20, rate=0.25)
    """
    return read(text, methods(), "method")


def vacuous_unless_finite(bounds: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Return minus infinity, which claims nothing, for bounds that are not finite: an overflow proves nothing."""
    return torch.where(bounds.isfinite(), bounds, -torch.inf)


RegionAtRadius = Callable[[Float[Tensor, "b"]], Region]
"""The region around given images, each at its own radius."""


class RadiusProblem(NamedTuple):
    """Specifications of one image, each with the radii between which its robust radius is searched."""

    graph: Graph
    region_at: RegionAtRadius
    """The region at a radius."""
    specifications: Float[Tensor, "s d"]
    """Linear functions, positive at the image itself."""
    low: Float[Tensor, "s"]
    """Radii that are already proved."""
    high: Float[Tensor, "s"]
    """The largest radii of interest, for instance where an attack succeeded."""


class RadiusResult(NamedTuple):
    """Certified radii, and points that seem to lie just beyond the robust radius."""

    radii: Float[Tensor, "*specifications"]
    points: Float[Tensor, "*specifications_and_pixels"] | None = None
    """NaN where no point was found; None if none was sought."""


@dataclass(frozen=True)
class RadiusSearch(Method):
    """A method so costly that it searches for the robust radius itself, rather than bound at many radii."""

    @abstractmethod
    def search_radii(self, problem: RadiusProblem) -> RadiusResult:
        """Return radii around one image, from ``low`` to ``high``, at which its specifications are proved positive."""


@final
@dataclass(frozen=True)
class Interval(Method):
    """Interval bound propagation: cheapest and loosest; the last affine map is merged into the specifications."""

    name = "interval"

    def __call__(self, graph: Graph, region: Region, specifications: Float[Tensor, "b s d"]) -> Float[Tensor, "b s"]:
        rounding: dict[int, Tensor] = {}
        boxes = interval.intermediate_bounds(graph, region, rounding)
        return interval.output_bounds(graph, boxes, specifications, rounding)


@final
@dataclass(frozen=True)
class Crown(Method):
    """CROWN for every layer, ``joint``: intersected with interval bounds, which the published method is not."""

    joint: bool = True
    """Whether bounds are intersected with interval bounds; `false` is the published method."""
    name = "crown"

    @torch.no_grad()
    def __call__(self, graph: Graph, region: Region, specifications: Float[Tensor, "b s d"]) -> Float[Tensor, "b s"]:
        network = relax(graph, region, self.joint)
        bounds = output_bounds(network, specifications)
        if not self.joint:
            return bounds
        gained = torch.as_tensor(network.interval_gains, device=specifications.device).expand(len(specifications))
        if gained.any():  # tighter boxes change the slopes, which is not better for every specification
            alone = relax(graph, region, with_intervals=False, initial=network.without_intervals)
            crown_alone = output_bounds(alone, specifications)
            bounds = torch.where(gained[:, None], torch.fmax(bounds, crown_alone), bounds)
        return torch.fmax(bounds, network.by_intervals(specifications))
