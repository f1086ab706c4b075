"""Populations whose geometry is known."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from holdfast.core.encoder import Domain, Encoder
from holdfast.core.images import Images
from holdfast.core.run_settings import RunSettings


def population(codes: Tensor, labels: Tensor | None = None) -> tuple[Encoder, Images]:
    """An encoder and images that it gives these ``codes``, scaled and moved into [0, 1] and back if they are not there."""
    low, high = min(0.0, float(codes.min())), max(1.0, float(codes.max()))
    layer = nn.Linear(codes.shape[1], codes.shape[1])
    with torch.no_grad():
        layer.weight.copy_((high - low) * torch.eye(codes.shape[1]))
        layer.bias.fill_(low)
    encoder = Encoder(layer.eval().double(), "known", Domain((codes.shape[1],)))
    return encoder, Images(((codes.double() - low) / (high - low)).clamp(0, 1), labels=labels)


EXACT = RunSettings(precision="float64")


def gaussian(n: int, d: int, seed: int = 0) -> Tensor:
    """Codes without any structure."""
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def simplex(classes: int, each: int) -> tuple[Tensor, Tensor]:
    """Codes that collapse to the corners of a regular simplex, and their classes."""
    corners = torch.eye(classes, dtype=torch.float64) - 1 / classes
    labels = torch.arange(classes).repeat_interleave(each)
    return corners[labels], labels
