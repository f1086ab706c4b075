"""Bisection of robust radii by costly methods: few radii, each given a share of the time, similar ones tried together."""

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
"""Largest factor from a proved radius to the next one tried: a proof costs more time than a failure."""
CLOSE = 0.01
"""The search of a radius ends when its bracket is this narrow, as a share of the radius."""
STEP = 1.02
"""Radii are rounded to powers of this where that is fine enough, so that specifications share intermediate bounds."""

Prove = Callable[[Region, Int[Tensor, "o"], Int[Tensor, "o"], float], Bool[Tensor, "o"]]
"""Which specifications are proved positive, from regions, indices of specifications, the region of each, and a deadline."""


def bisect_radii(
    prove: Prove,
    region_at: RegionAtRadius,
    low: Float[Tensor, "s"],
    high: Float[Tensor, "s"],
    rounds: int,
    seconds: float,
) -> RadiusResult:
    """Return for each specification of one image the largest radius found, from ``low`` to ``high``, that is proved.

    The time is shared so that ``rounds`` attempts can fail; what successes leave of their time goes to later ones.
    """
    low, high, turn = low.clone(), high.clone(), 0
    end = time.monotonic() + seconds
    while len(open_ := (high > low * (1 + CLOSE)).nonzero()[:, 0]) and (now := time.monotonic()) < end:
        eps, region = next_radii(low[open_], high[open_]).unique(return_inverse=True)
        won = prove(region_at(eps), open_, region, now + (end - now) / max(rounds - turn, 2))
        low[open_], high[open_] = (
            torch.where(won, eps[region], low[open_]),
            torch.where(won, high[open_], eps[region]),
        )
        turn += 1
    no_points = torch.full(
        (len(low), *region_at(low[:1]).centre.shape[2:]), torch.nan, dtype=low.dtype, device=low.device
    )
    return RadiusResult(low, no_points)


def next_radii(low: Float[Tensor, "o"], high: Float[Tensor, "o"]) -> Float[Tensor, "o"]:
    """Return the radius to try between the ends of each bracket."""
    middle = (low + high) / 2
    middle = torch.where(low > 0, torch.minimum(middle, GROWTH * low), middle)
    rounded = (math.log(STEP) * (middle.log() / math.log(STEP)).round()).exp()
    margin = (high - low) / 4
    return torch.where((rounded > low + margin) & (rounded < high - margin), rounded, middle)
