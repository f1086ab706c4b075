"""The fast minimum-norm attack on a linear objective, whose smallest change is its gain over the dual norm of its slope."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import holdfast as hf
from holdfast.attacks.minimum_norm import minimum_norm
from holdfast.core.balls import L2, Ball, Linf
from holdfast.core.noise import Noise
from holdfast.core.records import Claim, Series
from holdfast.core.statistics.radii import lost_curve

SLOPE = torch.linspace(0.5, 2, 16)


@pytest.mark.parametrize(("widest", "dual"), [(Linf(0.5), SLOPE.sum()), (L2(2.0), SLOPE.norm())])
@pytest.mark.parametrize(("steps", "most"), [(3, 1.25), (30, 1.02)])
def test_it_finds_the_smallest_change_of_a_linear_objective(
    widest: Ball, dual: torch.Tensor, steps: int, most: float
) -> None:
    encoder = hf.Encoder(nn.Flatten(), "flat", hf.Domain((1, 4, 4)))
    pixels, missing = torch.full((3, 1, 4, 4), 0.5), torch.tensor([0.1, 0.4, 0.8])
    noise = Noise.of(0, ["a", "b", "c"])
    nearest, _ = minimum_norm(
        encoder, pixels, lambda codes: (codes - 0.5) @ SLOPE.to(codes) - missing, widest, steps, noise
    )
    ratio = widest.norm(nearest - pixels) / (missing / dual)
    assert ratio.min() >= 1 - 1e-5, ratio
    assert ratio.max() <= most, ratio


def test_the_curve_counts_images_that_are_lost_at_a_radius() -> None:
    series = Series(quantity="r", values=(0.0, 0.0, 0.1, 0.2), unit="", claim=Claim.UPPER, of="r")
    (curve,) = lost_curve(series, "linf")
    assert (curve.y[0], curve.y[-1]) == (0.5, 1.0), "two are lost at 0"
