"""The fast minimum-norm attack (FMN): make the change small while the objective stays positive.

Pintor et al. 2021, https://arxiv.org/abs/2102.12827, algorithm 1. Beside the change it adapts a radius. While nothing was
found, that is where the objective would be zero if it were linear,

    radius = norm(delta) - gain / dual_norm(gradient)

and from the first find on a little larger after each failure, a little smaller after each success, never above the
smallest change found. Steps go uphill and back into the ball of that radius.

Departures. The length of a step is a share of the radius, so that one setting serves encoders that give way at a
thousandth and at a tenth of the range of pixels, and it is whole until something is found. Steps are the steepest of the
norm. While nothing is found the radius grows by a fifth at least: clipped at the edge of the range, or where the gradient
turns, the linear estimate alone stays where it is (of 60 digits a third were then never lost in l2). And it starts a little
off the clean image, where a distance from the clean code has no gradient.
"""

from __future__ import annotations

from dataclasses import replace
from math import cos, pi

import torch

from holdfast.attacks.base import climb
from holdfast.attacks.gradient import passable, random_start
from holdfast.core.balls import Ball, column
from holdfast.core.encoder import Encoder, Pixels
from holdfast.core.noise import Noise
from holdfast.objectives.base import ObjectiveFunction

STRIDE = (1.0, 0.05)
"""The first and the last step after a find, as shares of the radius."""
GROWTH = (0.1, 0.001)
"""The first and the last share by which the radius changes after a find ..."""
LEAST_GROWTH = 0.2
"""... and the least share by which it grows before."""
START = 1e-4
"""How far from the clean image it starts, as a share of the widest radius."""


def minimum_norm(
    encoder: Encoder, pixels: Pixels, objective: ObjectiveFunction, widest: Ball, steps: int, noise: Noise
) -> tuple[Pixels, Pixels]:
    """Return the nearest images found whose gain is positive, and where the search ended: both within ``widest``.

    Images for which none was found come back clean.

    Args:
        encoder, pixels, objective: as an ``Attack`` takes them.
        widest: the norm that is made small, and the largest change of interest.
        steps: how many gradients are taken.
        noise: as an ``Attack`` takes it.
    """
    unit, domain = replace(widest, radius=1.0), encoder.domain
    moved, nearest = random_start(pixels, widest, noise, START, domain), pixels
    smallest = torch.full_like(pixels.flatten(1)[:, 0], torch.inf)
    radius, tiny = torch.zeros_like(smallest), torch.finfo(pixels.dtype).tiny
    for step in range(steps):
        gain, gradient = climb(encoder, moved, objective)
        gain, gradient = gain.to(pixels.dtype), passable(moved, gradient, domain)
        size, positive = unit.norm(moved - pixels), gain > 0
        nearer = positive & (size < smallest)
        nearest, smallest = torch.where(column(nearer, moved), moved, nearest), torch.where(nearer, size, smallest)
        growth, known = annealed(GROWTH, step, steps), smallest.isfinite()
        linear = (size - gain / unit.dual_norm(gradient).clamp_min(tiny)).nan_to_num(nan=0.0)
        wider = torch.where(known, radius * (1 + growth), torch.maximum(linear, radius * (1 + LEAST_GROWTH)))
        narrower = torch.minimum(radius, smallest) * (1 - growth)
        radius = torch.where(positive, narrower, wider).clamp(tiny, widest.radius)
        length = torch.where(known, annealed(STRIDE, step, steps), 1.0) * radius
        ahead, scale = moved - pixels + column(length, moved) * unit.steepest(gradient), column(radius, moved)
        moved = domain.clip(pixels + scale * unit.project(ahead / scale))
    return nearest, moved


def annealed(ends: tuple[float, float], step: int, steps: int) -> float:
    """Return the value between ``ends`` that a cosine has at ``step`` of ``steps``.

    Example:
        >>> [round(annealed((1.0, 0.0), step, 5), 3) for step in range(5)]
        [1.0, 0.854, 0.5, 0.146, 0.0]
    """
    first, last = ends
    return last + (first - last) * (1 + cos(pi * step / max(1, steps - 1))) / 2
