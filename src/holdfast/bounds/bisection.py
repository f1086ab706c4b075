"""How costly methods look for radii: few radii, each with its share of the time, near ones together."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from holdfast.bounds.methods.base import RadiusResult, RegionAtRadius
from holdfast.bounds.regions import Region

GROWTH = 2.5
"""At most, of a radius that is proved, to one that is next_radii: proofs cost more than failures."""
CLOSE = 0.01
"""Share of a radius at which its search ends."""
STEP = 1.02
"""Radii are next_radii in such steps where that is fine enough, so that specifications share the boxes of inner layers."""

Prove = Callable[[Region, Int[Tensor, "o"], Int[Tensor, "o"], float], Bool[Tensor, "o"]]
"""Which specifications are proved positive: regions, the specifications to be next_radii, the region of each, and the end of the time."""


def bisect_radii(
    prove: Prove,
    region_at: RegionAtRadius,
    low: Float[Tensor, "s"],
    high: Float[Tensor, "s"],
    rounds: int,
    seconds: float,
) -> RadiusResult:
    """Return radii of one image's specifications between ``low`` and ``high``, the largest found that are proved.

    The time is shared so that ``rounds`` trials can fail; successes that come sooner leave time for more.
    """
    low, high, turn = low.clone(), high.clone(), 0
    end = time.monotonic() + seconds
    while len(specifications := (high > low * (1 + CLOSE)).nonzero()[:, 0]) and (now := time.monotonic()) < end:
        eps, region = next_radii(low[specifications], high[specifications]).unique(return_inverse=True)
        won = prove(region_at(eps), specifications, region, now + (end - now) / max(rounds - turn, 2))
        low[specifications], high[specifications] = (
            torch.where(won, eps[region], low[specifications]),
            torch.where(won, high[specifications], eps[region]),
        )
        turn += 1
    nowhere = torch.full(
        (len(low), *region_at(low[:1]).centre.shape[2:]), torch.nan, dtype=low.dtype, device=low.device
    )
    return RadiusResult(low, nowhere)


def next_radii(low: Float[Tensor, "o"], high: Float[Tensor, "o"]) -> Float[Tensor, "o"]:
    """Return the radius to try between the ends of each row."""
    middle = (low + high) / 2
    middle = torch.where(low > 0, torch.minimum(middle, GROWTH * low), middle)
    rounded = (math.log(STEP) * (middle.log() / math.log(STEP)).round()).exp()
    margin = (high - low) / 4
    return torch.where((rounded > low + margin) & (rounded < high - margin), rounded, middle)
