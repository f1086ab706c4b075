"""Bounds where one side of the ball decides: at the edge of the range, around the origin of code space, at a tie."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from holdfast.bounds.bound_findings import replay
from holdfast.bounds.certified_pairs import CertifiedEncoder
from holdfast.bounds.evaluations.linear_radius import classifier
from holdfast.bounds.methods.base import Crown
from holdfast.bounds.network.tracing import trace
from holdfast.bounds.outputs import OutputBounds
from holdfast.core.balls import L2, Ball, Linf
from holdfast.core.divergences import Cosine, LinfDistance
from holdfast.core.encoder import Domain, Encoder
from holdfast.core.images import Images
from holdfast.core.run_settings import RunSettings
from holdfast.measure.population import Population

SIDE = 61


def affine(weight: list[list[float]], bias: list[float]) -> Encoder:
    """An encoder of two pixels in [0, 1], in float64."""
    layer = nn.Linear(2, len(bias)).double()
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(weight))
        layer.bias.copy_(torch.tensor(bias))
    return Encoder(layer, "affine", Domain((2,))).to("cpu", torch.float64)


def bounds(encoder: Encoder, ball: Ball) -> OutputBounds:
    return OutputBounds(CertifiedEncoder(encoder, trace(encoder, torch.float64)), Crown(), ball)


def everywhere(pixels: Tensor, ball: Ball) -> Tensor:
    """A grid of points of the ball around two pixels that lie in the range."""
    steps = torch.linspace(-ball.radius, ball.radius, SIDE, dtype=torch.float64)
    grid = torch.cartesian_prod(steps, steps)
    points = pixels + grid[ball.norm(grid) <= ball.radius * (1 + 1e-9)]
    return points[((points >= 0) & (points <= 1)).all(1)]


IDENTITY = [[1.0, 0.0], [0.0, 1.0]]


@pytest.mark.parametrize("pixels", [[0.95, 0.95], [0.05, 0.05], [0.95, 0.05]])
def test_a_code_moves_as_far_as_the_side_with_more_room_lets_it(pixels: list[float]) -> None:
    """Of a pixel at .95 there are .05 above it and the radius below."""
    x = torch.tensor([pixels], dtype=torch.float64)
    farthest = bounds(affine(IDENTITY, [0.0, 0.0]), Linf(0.2)).farthest(LinfDistance(), x)
    assert farthest.item() == pytest.approx(0.2, abs=1e-9)


def test_a_code_that_can_be_reached_is_at_no_distance() -> None:
    """Neither farther than it is, nor nearer than zero."""
    x = torch.tensor([[0.5, 0.5]], dtype=torch.float64)
    identity = bounds(affine(IDENTITY, [0.0, 0.0]), Linf(0.2))
    for target, distance in (([0.6, 0.6], 0.0), ([0.9, 0.5], 0.2), ([0.5, 0.1], 0.2)):
        nearest = identity.nearest(LinfDistance(), x, torch.tensor([target], dtype=torch.float64))
        assert nearest.item() == pytest.approx(distance, abs=1e-9)


@pytest.mark.parametrize("ball", [Linf(0.2), L2(0.2)], ids=str)
@pytest.mark.parametrize("bias", [0.0, -0.5, -0.9, -1.6])
def test_no_direction_of_a_code_is_denied_that_a_point_of_the_ball_has(ball: Ball, bias: float) -> None:
    """Cosines of all points of a fine grid, with codes that cannot, may and must point away from the target."""
    reach = bounds(affine(IDENTITY, [bias, bias]), ball)
    x = torch.tensor([[0.6, 0.45]], dtype=torch.float64)
    codes, clean = reach.certified.encoder.forward(everywhere(x, ball)), reach.certified.encoder.forward(x)
    tight = 0
    for target in ([1.0, 0.2], [0.2, 1.0], [-1.0, 0.3], [0.1, -1.0], [1.0, 1.0]):
        to = torch.tensor([target], dtype=torch.float64)
        least = Cosine()(codes, to.expand_as(codes)).min()
        nearest = reach.nearest(Cosine(), x, to)
        assert 0 <= nearest <= least + 1e-9
        tight += int(nearest > 0.5 * least)
    assert tight > 0 or bias == -0.5, "vacuous: nothing is known of any target"
    most = Cosine()(codes, clean.expand_as(codes)).max()
    assert most <= reach.farthest(Cosine(), x) + 1e-9


def test_a_head_that_cannot_tell_two_classes_is_right_about_neither() -> None:
    head = classifier(
        affine(IDENTITY, [0.0, 0.0]),
        torch.tensor(IDENTITY, dtype=torch.float64),
        torch.zeros(2, dtype=torch.float64),
        torch.tensor([0, 1]),
    )
    pixels = torch.tensor([[0.5, 0.5], [0.7, 0.5]], dtype=torch.float64)
    assert head.right(pixels, torch.tensor([0, 0])).tolist() == [False, True]
    assert head.right(pixels, torch.tensor([1, 1])).tolist() == [False, False]


class Digits(nn.Module):
    """A code that says in which precision it was computed."""

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) * 0 + torch.finfo(x.dtype).bits


@pytest.mark.parametrize(("precision", "bits"), [("float32", 32.0), ("float64", 64.0)])
def test_a_witness_is_replayed_in_the_precision_of_the_run(precision: str, bits: float) -> None:
    encoder = Encoder(Digits(), "digits", Domain((2,)))
    population = Population(encoder, Images(torch.rand(3, 2)), RunSettings(precision=precision))
    point, first = torch.tensor([0.5, 0.5], dtype=torch.float64), torch.tensor([1.0, 0.0], dtype=torch.float64)
    assert replay(population, point, first) == bits
