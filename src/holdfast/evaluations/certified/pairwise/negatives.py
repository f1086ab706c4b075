"""Negatives made from the anchor itself, as published: how similar they are is set by a radius (Wang and Liu 2022, E.1)."""

from __future__ import annotations

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor

from holdfast.attacks.gradient import GradientAttack
from holdfast.core.balls import Ball
from holdfast.core.encoder import Codes, Pixels
from holdfast.objectives.views import shifted
from holdfast.protocol.population import Population

INSTANCE_WISE = GradientAttack(steps=200, step=0.007, keep="last")
"""The attack of RoCL (Kim et al. 2020) with the step of the paper, and its authors' 200 steps."""


def generated(population: Population, rows: Sequence[int], ball: Ball) -> Pixels:
    """Return for each image one in ``ball`` around it whose code is as far as the attack gets from a view's code."""
    context = population.context(rows)
    noise = context.noise.fork("negative")
    view = context.code(shifted(context.pixels, noise.fork("view")))

    def squared_distance(codes: Codes) -> Float[Tensor, "b"]:
        return (codes - view).square().mean(1)

    return INSTANCE_WISE(context.encoder, context.pixels, squared_distance, ball, noise)
