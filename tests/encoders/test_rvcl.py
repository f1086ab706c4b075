"""The published architectures: their shapes, and published weights in them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from holdfast.encoders import Options, load, rvcl
from tests.samples import published

PUBLISHED = {
    "mnist_base": "mnist_base",
    "mnist_cnn_4layer_a_adv3": "mnist_cnn_a",
    "cifar10_base_adv4": "cifar_base",
    "cifar10_cnn_4layer_b": "cifar_cnn_b",
}


@pytest.mark.parametrize(
    ("name", "flat", "parameters"),
    [
        ("mnist_base", 784, 80_700),
        ("mnist_cnn_a", 1568, 165_396),
        ("cifar_base", 1024, 104_956),
        ("cifar_cnn_a", 2048, 213_908),
        ("cifar_cnn_b", 8192, 887_396),
        ("cifar_deep", 512, 53_892),
    ],
)
def test_architectures_are_those_of_the_paper(name: str, flat: int, parameters: int) -> None:
    encoder = getattr(rvcl, name)()
    assert encoder(torch.rand(2, *encoder.domain.shape)).shape == (2, 100)
    linear = [layer for layer in encoder.module.modules() if isinstance(layer, nn.Linear)]
    assert [layer.in_features for layer in linear] == [flat]
    assert encoder.parameters == parameters


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_weights_load_and_give_their_codes(reference: Path, name: str) -> None:
    file = reference / "encoders" / f"{name}.pt"
    encoder = load(f"checkpoint:{file}", Options(arch=f"holdfast.encoders.rvcl:{PUBLISHED[name]}"))
    pixels = torch.rand(3, *encoder.domain.shape, generator=torch.Generator().manual_seed(0))
    plain = published(reference, name, torch.float32)
    inputs = pixels
    if name.startswith("cifar"):
        mean, std = (torch.tensor(values)[:, None, None] for values in (rvcl.MEAN, rvcl.STD))
        inputs = (pixels - mean) / std
    assert torch.allclose(encoder(pixels), plain.forward(inputs), atol=1e-5)
