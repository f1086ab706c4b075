"""The low-pass probe: a linear head that learns, and is asked, behind a low-pass filter.

The filter belongs to what is probed: attacks pass through it. If it costs little accuracy and takes much from an attack,
the attack lives on high frequencies (Wang et al. 2020, https://arxiv.org/abs/1905.13545).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from holdfast.core.encoder import Encoder
from holdfast.core.errors import HoldfastError
from holdfast.core.noise import Noise
from holdfast.core.run_settings import Observed
from holdfast.probes.base import Probe, taught
from holdfast.probes.linear import LinearScores, linear_scores, logistic_regression
from holdfast.protocol.population import Population, represent
from holdfast.transforms.filters import LowPass


class Behind(nn.Module):
    """``module`` behind a low-pass filter of ``radius``."""

    def __init__(self, module: nn.Module, radius: float) -> None:
        super().__init__()
        self.module, self.radius = module, radius

    def forward(self, x: Tensor) -> Tensor:
        nothing_drawn = Noise(torch.zeros(len(x), dtype=torch.int64, device=x.device))
        return self.module(LowPass(self.radius)(x, nothing_drawn))


@final
@dataclass(frozen=True)
class LowPassProbe(Probe):
    """A linear head on images without their frequencies of ``radius`` cycles per image and more, whenever it is asked."""

    radius: float
    name = "low-pass"
    example = "8"
    version = 1

    def __post_init__(self) -> None:
        LowPass(self.radius)  # which says what a radius may be

    def forwards(self, population: Population) -> int:
        return len(population.bank.images)

    def learn(self, population: Population) -> Observed:
        bank, labels, encoder = population.bank, taught(population.bank), self._filtered(population)

        def encoded(rows: Sequence[int]) -> Observed:
            return {"codes": represent(encoder, bank.images, rows, bank.run)}

        return logistic_regression(bank.run.batches(range(len(bank.images)), encoded)["codes"], labels)

    def restore(self, population: Population, learned: Observed) -> LinearScores:
        return linear_scores(self._filtered(population), learned, population.run.device)

    def _filtered(self, population: Population) -> Encoder:
        encoder = population.encoder
        if len(encoder.domain.shape) != 3 or (encoder.domain.low, encoder.domain.high) != (0, 1):
            raise HoldfastError(
                f"{self} filters images in [0, 1], and {encoder.name} takes {encoder.domain.shape} in "
                f"[{encoder.domain.low:g}, {encoder.domain.high:g}]; leave the probe out"
            )
        return Encoder(
            Behind(encoder.module, self.radius),
            f"{encoder.name} behind {self}",
            encoder.domain,
            caution=encoder.caution,
        )
