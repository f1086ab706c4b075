"""The fast minimum-norm attack on a linear objective, whose smallest change is its gain over the dual norm of its slope."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import holdfast as hf
from holdfast.attacks.black_box import SquareAttack
from holdfast.attacks.radius_search import Goal, minimum_norm, nearest_events
from holdfast.core.balls import L2, Ball, Linf
from holdfast.core.noise import Noise
from holdfast.core.records import Claim, Series
from holdfast.core.statistics.quantiles import lost_curve

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


@pytest.mark.parametrize("widest", [Linf(0.4), L2(1.6)], ids=str)
def test_the_ball_shrinks_after_a_find(widest: Ball) -> None:
    """The square of a sum is so flat at the clean image that the first find lies at the edge, 8 times too far away."""
    encoder = hf.Encoder(nn.Flatten(), "flat", hf.Domain((1, 4, 4)))
    pixels, smallest = torch.full((2, 1, 4, 4), 0.5), widest.radius / 8
    slope = widest.dual_norm(torch.ones(1, 1, 4, 4))
    for steps, most in ((2, 9.0), (80, 1.1)):
        nearest, _ = minimum_norm(
            encoder,
            pixels,
            lambda codes: (codes - 0.5).sum(1).square() - (smallest * slope) ** 2,
            widest,
            steps,
            Noise.of(0, ["a", "b"]),
        )
        ratio = widest.norm(nearest - pixels) / smallest
        assert ratio.min() >= 1 - 1e-5
        assert ratio.max() <= most, ratio
        assert steps > 2 or ratio.min() > 5, "vacuous: the first find is near already"


def test_an_image_that_shows_the_event_unchanged_has_radius_0() -> None:
    """By hand: pixels of .6, .5 and .3, and the event is a pixel above .55."""
    encoder = hf.Encoder(nn.Flatten(), "pixels", hf.Domain((1, 1, 1)))
    pixels = torch.tensor([0.6, 0.5, 0.3]).reshape(3, 1, 1, 1)
    goal = Goal(encoder, pixels, lambda codes: codes[:, 0] - 0.55, lambda codes: codes[:, 0] > 0.55)
    for attack in (hf.Attack.read("adaptive:restarts=1,steps=10"), SquareAttack(queries=50)):
        found = nearest_events(goal, attack, Linf(0.1), Noise.of(0, ["a", "b", "c"]))
        assert found.radii[0] == 0
        assert found.points[0] == pixels[0]
        assert found.radii[1].item() == pytest.approx(0.05, rel=0.05)
        assert found.radii[2] == torch.inf


def test_the_curve_counts_images_that_are_lost_at_a_radius() -> None:
    series = Series(quantity="r", values=(0.0, 0.0, 0.1, 0.2), unit="", claim=Claim.UPPER, of="r")
    (curve,) = lost_curve(series, "linf")
    assert (curve.y[0], curve.y[-1]) == (0.5, 1.0), "two are lost at 0"
