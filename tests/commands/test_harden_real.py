"""Hardening a real network with batch norm and stochastic depth, EfficientNet-Lite0 at 64 pixels, on photographs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import holdfast as hf
from holdfast.commands.harden import parted
from holdfast.commands.train import train
from holdfast.core.balls import Linf
from holdfast.core.encoder import Domain, Encoder
from holdfast.training.hardening import agreement_of, recipe_for

pytest.importorskip("lightning_fabric")

BALL = Linf(2 / 255)


def efficientnet_lite0(reference: Path) -> Encoder:
    """The features before the classes."""
    lite = pytest.importorskip("efficientnet_lite_pytorch")
    module = lite.EfficientNet.from_name("efficientnet-lite0")
    module._fc, module._dropout = nn.Identity(), nn.Identity()
    weights = torch.load(reference / "real" / "efficientnet_lite0.pt", weights_only=True)
    module.load_state_dict({name: value for name, value in weights.items() if not name.startswith("_fc.")})
    return Encoder(module.eval(), "lite0", Domain((3, 64, 64)), mean=[0.498] * 3, std=[0.502] * 3)


@pytest.mark.slow
def test_a_trained_network_with_batch_norm_keeps_its_codes_and_gains(reference: Path) -> None:
    original = efficientnet_lite0(reference)
    photos = hf.load_images(reference / "real" / "photos", original)
    taught, held = parted(photos, 100, 0)
    watch = agreement_of(original, held, "cpu")
    settings = {"objective": "distillation:clean=1", "batch": 8, "augmentation": "none"}
    recipe = recipe_for(original, 80, BALL, epochs=2, rate=2e-5, settings=settings)
    hardened = train(recipe, taught, start=original, watch=watch, progress=False)
    after = watch(hardened.module)
    assert after["agreement"] > 0.95  # on batch statistics .91, and falling
    assert after["neighbours_kept"] > 0.7
    attack = hf.GradientAttack(steps=5)
    moved = [hf.attack(encoder, held, BALL, attack=attack, progress=False) for encoder in (original, hardened)]
    before, now = ((images.codes - images.clean_codes).norm(dim=1).mean() for images in moved)
    assert now < 0.95 * before
