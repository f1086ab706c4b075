"""A small labelled bank with a population to ask, for tests of probes."""

from __future__ import annotations

import torch
from torch import Tensor

from holdfast.core.images import Images
from holdfast.core.run_settings import RunSettings
from holdfast.measure.population import Population
from tests import tiny


def clouds(count: int, seed: int, classes: int = 3, spread: float = 0.25) -> Images:
    """Images of 2 x 2 pixels around one corner of the cube for each class; labels are 3, 4, 5 ..."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % classes
    middles = torch.tensor([[0.2, 0.8, 0.5, 0.5], [0.8, 0.2, 0.5, 0.5], [0.5, 0.5, 0.8, 0.2], [0.5, 0.2, 0.2, 0.8]])
    pixels = (middles[labels] + spread * torch.randn(count, 4, generator=generator)).clamp(0, 1)
    return Images(pixels.reshape(-1, 1, 2, 2), [f"{seed}-{k}" for k in range(count)], labels + 3, f"clouds {seed}")


def population(bank: Images | None = None, images: Images | None = None, run: RunSettings | None = None) -> Population:
    run = run or RunSettings(precision="float64")
    held = Population(tiny.encoder(), bank or clouds(60, 1), run)
    return Population(tiny.encoder(), images or clouds(30, 2), run, bank=held)


def accuracy(ranks: Tensor) -> float:
    return float((ranks == 0).double().mean())
