"""A perceptron: linear layers on all pixels, the simplest network there is."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import final

from torch import nn

from holdfast.extend import Architecture, Domain


@final
@dataclass(frozen=True)
class Perceptron(Architecture):
    """One hidden layer of ``width`` ReLUs, and ``features`` linear functions of them."""

    width: int = 256
    features: int = 64
    name = "perceptron"

    def build(self, domain: Domain) -> nn.Module:
        pixels = prod(domain.shape)
        return nn.Sequential(
            nn.Flatten(), nn.Linear(pixels, self.width), nn.ReLU(), nn.Linear(self.width, self.features)
        )
