"""The radius up to which each specification is proved positive, by any method.

Most methods are asked for bounds at many radii; a ``RadiusSearch`` searches by itself, from what CROWN proves,
in l2 and l1 balls with Lipschitz constants beside it.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from holdfast.bounds.methods.base import (
    Crown,
    Method,
    RadiusResult,
    RadiusSearch,
    RegionAtRadius,
    vacuous_unless_finite,
)
from holdfast.bounds.methods.lipschitz import Lipschitz
from holdfast.bounds.network.graph import Graph
from holdfast.bounds.radii.bracketing import bracket_radii
from holdfast.bounds.regions import Region, region
from holdfast.bounds.rounding.formats import Format
from holdfast.core.balls import Ball, Linf
from holdfast.core.encoder import Domain, Pixels
from holdfast.core.errors import HoldfastError

SMALLEST_TOLERANCE = 1e-9
"""The smallest tolerance: float64 tells no radii apart that are much closer."""


def search_radii(
    method: Method,
    graph: Graph,
    pixels: Pixels,
    specifications: Float[Tensor, "b s d"],
    ball: type[Ball],
    domain: Domain,
    largest: Float[Tensor, "b"],
    tolerance: float,
    high: Float[Tensor, "b s"] | None = None,
) -> RadiusResult:
    """Return the largest radius found, up to ``largest``, at which each specification is proved positive; 0 where none is.

    A ``RadiusSearch`` may also return points close to which it expects a specification to fail.

    Args:
        method: asked at one radius after another, unless it is a ``RadiusSearch``: that one starts from what CROWN proves.
        graph: the encoder.
        pixels: images.
        specifications: linear functions of the code.
        ball: kind of ball.
        domain: range of the pixels.
        largest: for each image, the largest radius of interest.
        tolerance: of the search, as a share of ``largest``.
        high: radii at which specifications are known to fail, beyond which a ``RadiusSearch`` does not look.
    """
    if not SMALLEST_TOLERANCE <= tolerance <= 1:
        raise HoldfastError(f"tolerance must be a share from {SMALLEST_TOLERANCE:g} to 1, got {tolerance:g}")
    clean = (specifications @ graph(pixels)[..., None]).squeeze(2)
    cheapest = Crown() if ball is Linf else Lipschitz()
    bounding = cheapest if isinstance(method, RadiusSearch) else method
    # In other balls, minimising over a second region costs as much as all the rest.
    nested = isinstance(bounding, Crown) and ball is Linf

    def bound(images: Int[Tensor, "a"], shares: Float[Tensor, "a"], chosen: Int[Tensor, "a k"]) -> Float[Tensor, "a k"]:
        around = region(pixels[images], ball, shares * largest[images], domain, nested, graph.inputs)
        return vacuous_unless_finite(bounding(graph, around, specifications[images[:, None], chosen]))

    radii = bracket_radii(bound, clean, 1.0, tolerance, nested) * largest[:, None]
    points = torch.full((*radii.shape, *pixels.shape[1:]), torch.nan, dtype=pixels.dtype, device=pixels.device)
    if isinstance(method, RadiusSearch):
        ends = largest[:, None].expand_as(radii) if high is None else high
        ends = torch.where(clean > 0, ends, 0.0)
        for image in range(len(pixels)):
            region_at = _regions_around(pixels[image : image + 1], ball, domain, graph.inputs)
            radii[image], points[image] = method.search_radii(
                graph, region_at, specifications[image], radii[image], ends[image]
            )
    return RadiusResult(radii, points)


def _regions_around(pixels: Pixels, ball: type[Ball], domain: Domain, inputs: Format | None) -> RegionAtRadius:
    """Return the function from radii to regions around one image."""

    def at(eps: Float[Tensor, "b"]) -> Region:
        return region(pixels.expand(len(eps), *pixels.shape[1:]), ball, eps, domain, inputs=inputs)

    return at
