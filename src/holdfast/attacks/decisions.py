"""The smallest change found by asking for decisions alone: which image a search returns, no code, no distance, no gradient.

RayS (Chen and Gu 2020, https://arxiv.org/abs/2006.12792, algorithms 2 and 3) looks for the direction of signs along which
the decision changes soonest. It flips the signs of a block of pixels, asks whether the decision changes at the smallest
radius known so far, and only if it does halves the way to the clean image. Blocks are halves of the image at first, then
quarters, and so on down to single pixels, and from the whole image again.

Departures. Bisection ends within a share of the radius, not at a fixed distance, for encoders give way at a thousandth and
at a tenth of the range of pixels. And radii begin at the widest of interest instead of at infinity.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.attacks.radius import Goal
from holdfast.core.balls import Ball, Linf, column
from holdfast.core.errors import HoldfastError

TOLERANCE = 0.01
"""Bisection ends where the radius is known to within this share of it."""


@torch.no_grad()
def radii_by_decisions(goal: Goal, widest: Ball, queries: int) -> Float[Tensor, "b"]:
    """Return the smallest radius found at which the event of ``goal`` happens to each image, infinite where none was.

    Every image takes ``queries`` forwards, one at a time; its radius belongs to a changed image that was asked about.

    Raises:
        HoldfastError: ``widest`` is no linf ball, whose corners the directions are.
    """
    if not isinstance(widest, Linf):
        raise HoldfastError(f"decisions are searched along signs, in linf balls, got {widest}")
    clean, inputs = goal.pixels, goal.pixels[0].numel()
    signs = torch.ones(len(clean), inputs, dtype=clean.dtype, device=clean.device)
    radii, lower = (torch.full_like(signs[:, 0], value) for value in (widest.radius, 0.0))
    changed, bisecting = (torch.zeros_like(signs[:, 0], dtype=torch.bool) for _ in range(2))
    stage, block = (torch.zeros_like(signs[:, 0], dtype=torch.long) for _ in range(2))
    pixels = torch.arange(inputs, device=clean.device)

    def moved(signs: Float[Tensor, "b p"], radii: Float[Tensor, "b"]) -> Float[Tensor, "b ..."]:
        return goal.encoder.domain.clip(clean + column(radii, clean) * signs.view_as(clean))

    for query in range(queries):
        length = torch.div(inputs + 2**stage - 1, 2**stage, rounding_mode="floor")
        flipped = torch.div(pixels, length[:, None], rounding_mode="floor") == block[:, None]
        candidate = torch.where(flipped & ~bisecting[:, None] & (query > 0), -signs, signs)
        trial = torch.where(bisecting, (lower + radii) / 2, radii)
        happens = goal.happens(moved(candidate, trial))
        signs, radii = torch.where(happens[:, None], candidate, signs), torch.where(happens, trial, radii)
        lower = torch.where(bisecting, torch.where(happens, lower, trial), 0.0)
        changed |= happens
        wider = radii - lower > TOLERANCE * radii
        ended = ~(happens | bisecting) | ((happens | bisecting) & ~wider)
        bisecting = (happens | bisecting) & wider
        if query == 0:
            continue  # the first asks about the direction that all begin with
        block = block + ended
        full = block * length >= inputs
        stage = torch.where(full, (stage + 1) * (2**stage < inputs), stage)
        block = block.masked_fill(full, 0)
    sizes = widest.norm(moved(signs, radii) - clean)
    return sizes.masked_fill(~changed, torch.inf)
