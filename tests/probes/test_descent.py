"""How probes that descend go through the bank, and in which units."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from holdfast.core.balls import Linf
from holdfast.core.encoder import Domain, Encoder
from holdfast.core.noise import Noise
from holdfast.core.run_settings import RunSettings
from holdfast.measure.population import Population
from holdfast.probes.base import Probe
from holdfast.probes.linear import Linear, RobustProbe, batches
from tests.probes.known import clouds


def test_each_epoch_meets_every_sample_once_in_an_order_of_its_own() -> None:
    noise = Noise.of(0, [f"image {k}" for k in range(30)])
    epochs = [torch.cat(batches(noise, epoch, 8)).tolist() for epoch in range(3)]
    assert all(sorted(order) == [*range(30)] for order in epochs)
    assert len({tuple(order) for order in epochs}) == 3
    assert [len(batch) for batch in batches(noise, 0, 8)] == [8, 8, 8, 6]


class Stretched(nn.Module):
    """``factors * x``, flattened."""

    factors: Tensor

    def __init__(self, factors: list[float]) -> None:
        super().__init__()
        self.register_buffer("factors", torch.tensor(factors))

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) * self.factors


def scores(probe: Probe, factors: list[float]) -> Tensor:
    run, encoder = RunSettings(precision="float64"), Encoder(Stretched(factors), "stretched", Domain((1, 2, 2)))
    population = Population(encoder, clouds(20, 2), run, bank=Population(encoder, clouds(60, 1), run))
    return population.learned(probe).scores(population.codes)


@pytest.mark.parametrize("probe", [Linear(), RobustProbe(Linf(0.05), epochs=3)], ids=str)
def test_the_units_of_a_feature_change_no_score(probe: Probe) -> None:
    """Heads learn from standardised features: as many thousands of one of them, and hundredths of another, are the same."""
    plain = scores(probe, [1.0, 1.0, 1.0, 1.0])
    torch.testing.assert_close(scores(probe, [1000.0, 0.01, 1.0, 7.0]), plain, rtol=1e-2, atol=1e-2)
    assert plain.std() > 0.5, "vacuous"


def test_the_robust_probe_begins_at_the_linear_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a learning rate of zero it stays there."""
    adam = torch.optim.Adam
    monkeypatch.setattr(torch.optim, "Adam", lambda weights, lr: adam(weights, lr=0.0))
    factors = [3.0, 1.0, 0.5, 7.0]
    still = scores(RobustProbe(Linf(0.05), epochs=1, steps=1), factors)
    torch.testing.assert_close(still, scores(Linear(), factors))
