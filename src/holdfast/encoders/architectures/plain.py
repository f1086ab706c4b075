"""Plain convolutional networks: that of the built-in encoders, and the four of RVCL."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from torch import nn

from holdfast.core.encoder import Domain
from holdfast.encoders.architectures.base import Architecture, image_sizes


@final
@dataclass(frozen=True)
class Digits(Architecture):
    """Two strided convolutions and one linear layer: the network of the built-in encoders."""

    features: int = 32
    """Dimension of the embedding."""
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


# The four architectures of RVCL (Wang and Liu 2022, https://proceedings.mlr.press/v162/wang22q.html, table D.1).
#
# Two to four convolutions with ReLU and one linear layer, which complete verifiers can handle. Strides and padding,
# which the paper does not give, are those of the weights its authors published: the convolutions halve each side
# twice.


@final
@dataclass(frozen=True)
class Base(Architecture):
    """Base of RVCL: convolutions of 8 and 16 channels, one linear layer."""

    features: int = 100
    """Dimension of the embedding."""
    name = "base"

    def build(self, domain: Domain) -> nn.Module:
        return _two(self, domain, (8, 16), self.features)


@final
@dataclass(frozen=True)
class CnnA(Architecture):
    """CNN-A of RVCL: Base with twice the channels."""

    features: int = 100
    """Dimension of the embedding."""
    name = "cnn-a"

    def build(self, domain: Domain) -> nn.Module:
        return _two(self, domain, (16, 32), self.features)


@final
@dataclass(frozen=True)
class CnnB(Architecture):
    """CNN-B of RVCL: convolutions of 32 and 128 channels, one linear layer."""

    features: int = 100
    """Dimension of the embedding."""
    name = "cnn-b"

    def build(self, domain: Domain) -> nn.Module:
        channels, *sides = image_sizes(self, domain, least=4)
        first = [nn.ZeroPad2d((1, 2, 1, 2)), nn.Conv2d(channels, 32, 5, stride=2), nn.ReLU()]
        return nn.Sequential(*first, _halving(32, 128), *_end(128, sides, self.features))


@final
@dataclass(frozen=True)
class Deep(Architecture):
    """Deep of RVCL: four convolutions of 8 channels, one linear layer."""

    features: int = 100
    """Dimension of the embedding."""
    name = "deep"

    def build(self, domain: Domain) -> nn.Module:
        channels, *sides = image_sizes(self, domain, least=4)
        first = [_halving(channels, 8), nn.ReLU()]
        middle = [layer for _ in range(2) for layer in (nn.Conv2d(8, 8, 3, padding=1), nn.ReLU())]
        return nn.Sequential(*first, *middle, _halving(8, 8), *_end(8, sides, self.features))


def _two(architecture: Architecture, domain: Domain, widths: tuple[int, int], features: int) -> nn.Module:
    channels, *sides = image_sizes(architecture, domain, least=4)
    first, second = widths
    return nn.Sequential(_halving(channels, first), nn.ReLU(), _halving(first, second), *_end(second, sides, features))


def _halving(channels: int, width: int) -> nn.Conv2d:
    return nn.Conv2d(channels, width, 4, stride=2, padding=1)


def _end(width: int, sides: Sequence[int], features: int) -> list[nn.Module]:
    """Return the linear layer on ``width`` maps whose ``sides`` were halved twice, rounding down."""
    height, breadth = sides
    return [nn.ReLU(), nn.Flatten(), nn.Linear(width * (height // 4) * (breadth // 4), features)]
