"""Relaxations as data: for each nonlinear operation its interval, and linear bounds below and above it.

Over a box of inputs each operation satisfies ``sum_i lower_i x_i + floor <= f(x) <= sum_i upper_i x_i + ceiling``,
entry by entry. Sources: Zhang et al. 2018 (CROWN), https://arxiv.org/abs/1811.00866; products, McCormick 1976.
A box that is not finite gives linear bounds that are not finite, never bounds that hold by accident.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

Values = Float[Tensor, "b ..."]


class Box(NamedTuple):
    """Bounds on a node's values."""

    lower: Values
    upper: Values


@dataclass(frozen=True)
class LinearRelaxation:
    """Linear bounds on an operation's output: one slope for each input, and constants (None: zero).

    Slopes may have one entry for each value of the node, or for each coefficient of the form that they multiply.
    """

    lower: tuple[Float[Tensor, "..."], ...]
    upper: tuple[Float[Tensor, "..."], ...]
    floor: Float[Tensor, "..."] | None
    ceiling: Float[Tensor, "..."] | None
    unstable: Bool[Tensor, "..."] | None = None
    """Where any lower slope in [0, 1] through the origin is as sound: unstable ReLUs."""

    def take(self, images: slice) -> LinearRelaxation:
        """Return the relaxation over the boxes of some images."""
        lower, upper = (tuple(slope[images] for slope in slopes) for slopes in (self.lower, self.upper))
        rest = (None if values is None else values[images] for values in (self.floor, self.ceiling, self.unstable))
        return LinearRelaxation(lower, upper, *rest)


@dataclass(frozen=True)
class Rule:
    """How bound propagation treats a nonlinear operation."""

    function: Callable[..., Tensor]
    interval: Callable[..., Box]
    relax: Callable[..., LinearRelaxation]
    nonlinear: Callable[[Box], Tensor]
    """Where the operation is not affine over the box, so that a tighter box would change its linear relaxation."""


def relu_relaxation(box: Box) -> LinearRelaxation:
    """The chord above; below, the line through the origin of slope 1 or 0 that leaves the smaller triangle."""
    low, high = box
    active, dead = low >= 0, high <= 0
    # A box that overflows, or whose width does, has no chord.
    width = high - low
    # Where there is no chord the width may be 0, and would make gradients of the others not a number.
    chord = torch.where(active, 1.0, torch.where(dead, 0.0, high / torch.where(active | dead, 1.0, width)))
    chord = torch.where(width.isfinite(), chord, torch.nan)
    ceiling = torch.where(active | dead, 0.0, -chord * low)
    below = torch.where(active | dead | chord.isnan(), chord, (high > -low).to(low.dtype))
    return LinearRelaxation((below,), (chord,), None, ceiling, unstable=~(active | dead | chord.isnan()))


def product_box(x: Box, y: Box) -> Box:
    corners = torch.stack([a * b for a in x for b in y])
    return Box(corners.amin(0), corners.amax(0))


def product_relaxation(x: Box, y: Box) -> LinearRelaxation:
    """The mean of McCormick's two planes below, and that of his two above."""
    middle = [(box.lower + box.upper) / 2 for box in (x, y)]
    below = -(x.lower * y.lower + x.upper * y.upper) / 2
    above = -(x.upper * y.lower + x.lower * y.upper) / 2
    return LinearRelaxation((middle[1], middle[0]), (middle[1], middle[0]), below, above)


def relu_rule() -> Rule:
    return Rule(
        function=torch.relu,
        interval=lambda box: Box(box.lower.clamp_min(0), box.upper.clamp_min(0)),
        relax=relu_relaxation,
        nonlinear=lambda box: ~((box.lower >= 0) | (box.upper <= 0)),
    )


def product_rule() -> Rule:
    return Rule(
        function=torch.mul,
        interval=product_box,
        relax=product_relaxation,
        nonlinear=lambda box: box.lower < box.upper,
    )
