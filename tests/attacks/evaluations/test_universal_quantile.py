"""Universal quantiles of two encoders are compared image by image."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from holdfast.attacks.evaluations.displacement import Displacement
from holdfast.attacks.gradient import GradientAttack
from holdfast.core.balls import Linf
from holdfast.core.divergences import L2Distance
from holdfast.core.encoder import Domain, Encoder
from holdfast.core.images import Images
from holdfast.core.records import Result
from holdfast.core.statistics.differences import unpaired
from holdfast.report.comparison.compare import compare

RADIUS = 0.1


def identity() -> Encoder:
    return Encoder(nn.Flatten().eval(), "identity", Domain((1, 1, 1)))


def measured(encoder: Encoder, values: torch.Tensor, **settings: Any) -> Result:
    images = Images(values.reshape(-1, 1, 1, 1), ids=[f"v{k}" for k in range(len(values))])
    chosen: dict[str, Any] = {
        "balls": (Linf(RADIUS),),
        "attacks": (GradientAttack(steps=3, stride=0.5),),
        "divergences": (L2Distance(),),
    }
    return Displacement(**chosen, **settings)(encoder, images)


def influence(result: Result) -> np.ndarray:
    return np.array(next(s.values for s in result.series if s.quantity == "universal_quantile_influence"))


def test_where_all_are_carried_alike_only_neighbours_count() -> None:
    """By hand: the share of the others within .1 of each image, twice, about the share of all pairs."""
    values = torch.tensor([0.2, 0.25, 0.27, 0.5, 0.9])
    result = measured(identity(), values)
    near = np.array([2, 2, 2, 0, 0]) / 4
    assert result.estimate("universal_quantile").value == pytest.approx(near.mean())
    assert influence(result) == pytest.approx(2 * near - near.mean())


def test_copies_are_counted_once_and_have_no_part_as_neighbours() -> None:
    result = measured(identity(), torch.tensor([0.2, 0.25, 0.27, 0.5, 0.9, 0.9]))
    near = np.array([2, 2, 2, 0, 0]) / 4
    moved = influence(result) - near.mean()
    assert moved[:5] == pytest.approx((2 * near - 2 * near.mean()), abs=1e-6)
    assert moved[5] == pytest.approx(0, abs=1e-6)


class Stretched(nn.Module):
    """Codes of which some are carried farther and others less far, by this much."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        away = pixels.flatten(1) - 0.5
        return away + self.factor * torch.sin(12 * away)


def test_encoders_are_paired_by_an_interval_shorter_than_both_of_theirs_allow() -> None:
    values = torch.rand(400, generator=torch.Generator().manual_seed(0)) * 0.8 + 0.1
    calm, wild = (
        measured(Encoder(Stretched(factor).eval(), name, Domain((1, 1, 1))), values)
        for name, factor in (("calm", 0.0), ("wild", 0.15))
    )
    (contest,) = [contest for contest in compare([calm, wild]).contests if contest.quantity == "universal_quantile"]
    (pair,) = contest.pairs
    first, second = (result.estimate("universal_quantile") for result in (calm, wild))
    assert pair.difference.paired
    assert pair.difference.value == pytest.approx(first.value - second.value)
    assert pair.difference.outcome != "tied"
    apiece = unpaired(first, second)
    assert pair.difference.high - pair.difference.low < 0.85 * (apiece.high - apiece.low)
