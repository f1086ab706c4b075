"""The network of the built-in encoders: small enough to be certified completely (192 ReLUs on 8 x 8 digits)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from torch import nn

from holdfast.core.encoder import Domain
from holdfast.encoders.architectures.base import Architecture, image_sizes


@final
@dataclass(frozen=True)
class Digits(Architecture):
    """Two strided convolutions of 8 and 16 channels, one linear layer: the network of the built-in encoders."""

    features: int = 32
    name = "digits"

    def build(self, domain: Domain) -> nn.Module:
        channels, height, width = image_sizes(self, domain)
        return nn.Sequential(
            nn.Conv2d(channels, 8, kernel_size=3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(8, 16, kernel_size=3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(16 * -(-height // 4) * -(-width // 4), self.features),  # each halves the sides, rounding up
        )
