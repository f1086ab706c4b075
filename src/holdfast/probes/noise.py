"""The noise probe: a linear head trained on codes of noisy images, the one that randomized smoothing asks for.

Codes of ``x + N(0, sigma^2 I)``, the noise added at the encoder's resolution and not clipped, as in Cohen et al. 2019
(https://arxiv.org/abs/1902.02918), then the linear probe.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch

from holdfast.core.errors import HoldfastError
from holdfast.core.run_settings import Observed
from holdfast.probes.base import Probe, taught
from holdfast.probes.linear import LinearScores, linear_scores, logistic_regression
from holdfast.protocol.population import Population


@final
@dataclass(frozen=True)
class NoiseProbe(Probe):
    """A linear head that learns from ``draws`` noisy copies of each image of the bank."""

    sigma: float = 0.25
    draws: int = 1
    name = "noise"
    version = 1

    def __post_init__(self) -> None:
        if not self.sigma > 0 or self.draws < 1:
            raise HoldfastError(
                f"noise: sigma and draws must be greater than 0, got sigma={self.sigma} and draws={self.draws}; "
                "without noise the probe is linear"
            )

    def forwards(self, population: Population) -> int:
        return self.draws * len(population.bank.images)

    def learn(self, population: Population) -> Observed:
        bank, labels = population.bank, taught(population.bank)
        noisy = [self._codes(bank, draw) for draw in range(self.draws)]
        return logistic_regression(torch.cat(noisy), labels.repeat(self.draws))

    def restore(self, population: Population, learned: Observed) -> LinearScores:
        return linear_scores(population.encoder, learned, population.run.device)

    def _codes(self, bank: Population, draw: int) -> torch.Tensor:
        def encoded(rows: Sequence[int]) -> Observed:
            pixels = bank.pixels(rows)
            noise = bank.run.noise([bank.images.ids[row] for row in rows]).fork("noise probe", draw)
            return {"codes": bank.encode(pixels + self.sigma * noise.normal(pixels.shape[1:], pixels.dtype))}

        return bank.run.batches(range(len(bank.images)), encoded)["codes"]
