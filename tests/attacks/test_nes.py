"""Estimated gradients where the best point is known."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from holdfast.attacks.black_box import NaturalEvolution
from holdfast.core.balls import L2, Ball, Linf
from holdfast.core.encoder import Domain, Encoder
from holdfast.core.errors import HoldfastError
from holdfast.core.noise import Noise
from tests.facts import refused


class Counted(nn.Module):
    """The mean of the pixels, and how many images it was asked for."""

    asked = 0

    def forward(self, x: Tensor) -> Tensor:
        Counted.asked += len(x)
        return x.flatten(1).sum(1, keepdim=True)


@pytest.mark.parametrize("ball", [Linf(0.1), L2(0.1)], ids=str)
def test_it_finds_the_top_of_a_linear_objective_and_counts_its_queries(ball: Ball) -> None:
    encoder = Encoder(Counted(), "sum", Domain((1, 2, 2)))
    pixels = torch.full((3, 1, 2, 2), 0.5, dtype=torch.float64)
    attack = NaturalEvolution(queries=500)
    Counted.asked = 0
    moved = attack(encoder, pixels, lambda codes: codes[:, 0], ball, Noise.of(0, ["a", "b", "c"]))
    assert Counted.asked == 3 * attack.forward_passes <= 3 * 500
    best = ball.dual_norm(torch.ones_like(pixels)) * ball.radius
    assert ((moved - pixels).flatten(1).sum(1) / best).tolist() == pytest.approx([1] * 3, abs=0.05)


def test_too_few_queries_for_a_step_are_refused() -> None:
    with refused(HoldfastError, "22 queries", "10 pairs", "got queries=21", "start"):
        NaturalEvolution(queries=21)
