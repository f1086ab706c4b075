"""Lipschitz constants by layer: exact for one layer, never above what a point of the ball reaches, and above boxes in l2."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from holdfast.bounds import Crown, Lipschitz, lower_bound
from holdfast.bounds.methods import lipschitz
from holdfast.bounds.methods.crown import NetworkRelaxation
from holdfast.bounds.methods.lipschitz import EnclosingBall, enclosing_balls
from holdfast.core.balls import L1, L2, Ball, Linf
from holdfast.core.encoder import Domain, Encoder
from tests.bounds.checks import lowest
from tests.bounds.networks import SHAPE, shared
from tests.bounds.test_sdp_crown import RECTIFIED, wide
from tests.marks import rest_slow


def test_of_one_layer_of_rectified_units_it_is_the_ball_around_them() -> None:
    """With an orthogonal layer and all units active, outputs fill a ball, and the bound is the minimum."""
    torch.manual_seed(0)
    rotation = torch.linalg.qr(torch.randn(6, 6)).Q
    first, last = nn.Linear(6, 6), nn.Linear(6, 2, bias=False)
    with torch.no_grad():
        first.weight.copy_(rotation)
        first.bias.copy_(2 - rotation @ torch.full((6,), 0.5))
    encoder = Encoder(nn.Sequential(first, nn.ReLU(), last), "turned", Domain((6,))).to("cpu", torch.float64)
    x, rows = torch.full((1, 6), 0.5).double(), torch.randn(1, 3, 2).double()
    bound = lower_bound(encoder, x, rows, L2(0.3), Lipschitz())[0]
    exact = rows[0] @ encoder.forward(x)[0] - 0.3 * (rows[0] @ last.weight.double()).norm(dim=1)
    assert torch.allclose(bound, exact, atol=1e-5)
    assert (bound <= exact + 1e-9).all()


@pytest.mark.parametrize("name", rest_slow(RECTIFIED, 2))
@pytest.mark.parametrize("ball", rest_slow([L2(0.5), L2(0.05), L1(1.0), Linf(0.05)]), ids=str)
def test_no_point_lies_below_the_bound(name: str, ball: Ball) -> None:
    encoder = shared(name)
    x = torch.rand(2, *SHAPE, dtype=torch.float64).round(decimals=1)
    specifications = torch.randn(2, 3, encoder.forward(x).shape[1], dtype=torch.float64)
    bound = lower_bound(encoder, x, specifications, ball, Lipschitz())
    for image in range(2):
        least = lowest(encoder, x[image : image + 1], specifications[image], ball, 200)
        assert (bound[image] <= least + 1e-9).all()
    assert bound.isfinite().all()


def rotated(seed: int) -> tuple[Encoder, Tensor, Tensor]:
    """``wide`` with layers that stretch no direction more than others, as regularised training leaves them."""
    encoder, x, specifications = wide(seed)
    for layer in encoder.module.modules():
        if isinstance(layer, nn.Linear):
            nn.init.orthogonal_(layer.weight)
    return encoder, x, specifications


@pytest.mark.parametrize("seed", rest_slow(range(5), 1))
def test_layers_in_a_ball_are_bounded_above_those_in_boxes(seed: int) -> None:
    encoder, x, specifications = rotated(seed)
    for ball in (L2(3.0), L2(5.0)):
        crown, bound = (lower_bound(encoder, x, specifications, ball, method) for method in (Crown(), Lipschitz()))
        least = lowest(encoder, x, specifications[0], ball, 500)
        assert (bound[0] <= least + 1e-9).all()
        assert ((least - bound[0]) < 0.9 * (least - crown[0])).all(), "no gain"


def test_a_ball_too_small_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the tests above would see if the radii were wrong."""

    def shrunk(network: NetworkRelaxation) -> list[EnclosingBall]:
        return [EnclosingBall(ball.centre, 0.05 * ball.radius) for ball in enclosing_balls(network)]

    encoder, x, specifications = wide(0)
    monkeypatch.setattr(lipschitz, "enclosing_balls", shrunk)
    bound = lower_bound(encoder, x, specifications, L2(1.6), Lipschitz())
    assert (bound[0] > lowest(encoder, x, specifications[0], L2(1.6), 500)).any()
