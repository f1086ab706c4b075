"""The radius up to which each row is proved positive, by any method: asked at many radii, or left to seek itself."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from holdfast.bounds.methods.base import Crown, Method, RadiusResult, RadiusSearch, RegionAt
from holdfast.bounds.network.graph import Graph
from holdfast.bounds.radius import radii
from holdfast.bounds.regions import Region, region
from holdfast.core.balls import Ball, Linf
from holdfast.core.encoder import Domain, Pixels
from holdfast.core.errors import HoldfastError

LEAST = 1e-9
"""The smallest tolerance: float64 tells no radii apart that are much closer."""


def proved_radii(
    method: Method,
    graph: Graph,
    pixels: Pixels,
    rows: Float[Tensor, "b s d"],
    ball: type[Ball],
    domain: Domain,
    most: Float[Tensor, "b"],
    tolerance: float,
    high: Float[Tensor, "b s"] | None = None,
) -> RadiusResult:
    """Return the largest radius found, up to ``most``, at which each row is proved positive; 0 where none is.

    Seekers also return points near which they expect rows to fail.

    Args:
        method: asked at one radius after another, unless it is a ``RadiusSearch``: that one starts from what CROWN proves.
        graph: the encoder.
        pixels: images.
        rows: linear functions of the code.
        ball: kind of ball.
        domain: range of the pixels.
        most: for each image, the largest radius of interest.
        tolerance: of the search, as a share of ``most``.
        high: radii at which rows are known to fail, so that seekers do not look beyond.
    """
    if not LEAST <= tolerance <= 1:
        raise HoldfastError(f"tolerance must be a share from {LEAST:g} to 1, got {tolerance:g}")
    clean = (rows @ graph(pixels)[..., None]).squeeze(2)
    asked = Crown() if isinstance(method, RadiusSearch) else method
    # In other balls, minimising over a second region costs as much as all else.
    nested = isinstance(asked, Crown) and ball is Linf

    def bound(images: Int[Tensor, "a"], shares: Float[Tensor, "a"], chosen: Int[Tensor, "a k"]) -> Float[Tensor, "a k"]:
        around = region(pixels[images], ball, shares * most[images], domain, nested)
        return known(asked(graph, around, rows[images[:, None], chosen]))

    found = radii(bound, clean, 1.0, tolerance, nested) * most[:, None]
    points = torch.full((*found.shape, *pixels.shape[1:]), torch.nan, dtype=pixels.dtype, device=pixels.device)
    if isinstance(method, RadiusSearch):
        ends = most[:, None].expand_as(found) if high is None else high
        ends = torch.where(clean > 0, ends, 0.0)
        for image in range(len(pixels)):
            place = _place(pixels[image : image + 1], ball, domain)
            found[image], points[image] = method.reach(graph, place, rows[image], found[image], ends[image])
    return RadiusResult(found, points)


def _place(pixels: Pixels, ball: type[Ball], domain: Domain) -> RegionAt:
    def at(eps: Float[Tensor, "b"]) -> Region:
        return region(pixels.expand(len(eps), *pixels.shape[1:]), ball, eps, domain)

    return at


def known(bounds: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Return minus infinity, which claims nothing, for bounds that are not finite: an overflow proves nothing."""
    return torch.where(bounds.isfinite(), bounds, -torch.inf)
