"""Codes that differ by rounding alone prove nothing."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from holdfast.attacks.adaptive import AdaptiveAttack
from holdfast.bounds import Crown
from holdfast.bounds.certified_pairs import CertifiedEncoder
from holdfast.bounds.evaluations.certified_displacement import CertifiedDisplacement
from holdfast.bounds.evaluations.certified_overlap import CertifiedOverlap
from holdfast.bounds.evaluations.certified_radius import CertifiedRadius
from holdfast.bounds.evaluations.instance_accuracy import InstanceAccuracy
from holdfast.bounds.network.tracing import trace
from holdfast.bounds.outputs import OutputBounds
from holdfast.core.balls import Linf
from holdfast.core.divergences import Cosine
from holdfast.core.encoder import Domain, Encoder
from holdfast.core.images import Images

WEAK = AdaptiveAttack(restarts=1, steps=10)
SHAPE = (1, 4, 4)


def images(count: int) -> Images:
    return Images(torch.rand(count, *SHAPE, generator=torch.Generator().manual_seed(0)))


def test_an_encoder_that_has_all_but_collapsed_is_certified_nothing() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(16, 4))
    with torch.no_grad():
        next(iter(module[1].parameters())).mul_(1e-9)
    encoder = Encoder(module, "collapsed", Domain(SHAPE))
    radius = CertifiedRadius(samples=6, negatives=3, attack=WEAK)(encoder, images(6))
    accuracy = InstanceAccuracy(balls=(Linf(0.05),), samples=6, negatives=3, attack=WEAK)(encoder, images(6))
    for result in (radius, accuracy):
        for series in result.series:
            assert all(value != value for value in series.values), series


@pytest.mark.parametrize("seed", range(10))
def test_parallel_codes_can_be_brought_together(seed: int) -> None:
    torch.manual_seed(seed)
    module = nn.Sequential(nn.Linear(4, 8, bias=False), nn.ReLU(), nn.Linear(8, 3, bias=False)).double()
    encoder = Encoder(module, "homogeneous", Domain((4,)))
    near = torch.rand(1, 4).double() * 0.5 + 0.1
    far = near * 1.5
    reach = OutputBounds(CertifiedEncoder(encoder, trace(encoder)), Crown(), Linf(0.01))
    assert reach.nearest(Cosine(), far, encoder(near)).item() <= Cosine()(encoder(far), encoder(near)).item() + 1e-15


def brightness(levels: list[float]) -> Tensor:
    """One image at several brightnesses, exact in float32."""
    base = torch.randint(8, 64, (1, *SHAPE), generator=torch.Generator().manual_seed(1)) * 2 / 256
    return base * torch.tensor(levels).reshape(-1, 1, 1, 1)


@pytest.mark.parametrize("seed", range(3))
def test_copies_of_other_brightness_have_no_margin_under_cosine(seed: int) -> None:
    torch.manual_seed(seed)
    module = nn.Sequential(nn.Flatten(), nn.Linear(16, 8, bias=False), nn.ReLU(), nn.Linear(8, 4, bias=False))
    overlap = CertifiedOverlap(balls=(Linf(0.0005),), divergences=(Cosine(),), attack=WEAK, samples=6)
    result = overlap(Encoder(module, "homogeneous", Domain(SHAPE)), Images(brightness([1, 1.5, 0.5, 0.75, 1.25, 1.75])))
    assert result.estimate("contradictions").value == 0
    for series in result.series:
        assert all(value != value or abs(value) < 1e6 for value in series.values)


def test_codes_of_one_feature_have_a_displacement() -> None:
    torch.manual_seed(0)
    encoder = Encoder(nn.Sequential(nn.Flatten(), nn.Linear(16, 1)), "one", Domain(SHAPE))
    result = CertifiedDisplacement(balls=(Linf(0.005),), attack=WEAK)(encoder, images(12))
    found = {e.conditions["divergence"]: e for e in result.estimates if e.quantity == "contradictions"}
    assert found
    assert all(estimate.value == 0 for estimate in found.values())
