"""Attacks on pairs leave nothing behind."""

from __future__ import annotations

import gc

import pytest
import torch

from holdfast import GradientAttack, Images, Linf, RunSettings, load_encoder
from holdfast.bounds.certified_pairs import PairAttack, image_pairs
from holdfast.measure.population import Population


@pytest.mark.slow
def test_what_an_attack_computed_is_freed() -> None:
    """A hook that held its own tensor once kept every step of every attack in memory."""
    images = Images(torch.rand(4, 1, 8, 8))
    population = Population(load_encoder("builtin:digits-robust"), images, RunSettings(batch_size=4))
    attack = PairAttack(image_pairs(population, range(4), 2, 50_000), Linf(1.0), GradientAttack(steps=3))

    def alive() -> int:
        gc.collect()
        return sum(isinstance(one, torch.Tensor) for one in gc.get_objects())

    radii = torch.full((8,), 0.1, dtype=torch.float64)
    attack(radii, "once")
    before = alive()
    for time in range(5):
        attack(radii, f"time {time}")
    assert alive() <= before
