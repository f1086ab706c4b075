"""Laws over all architectures."""

from __future__ import annotations

import pytest
import torch

from holdfast.core.encoder import Domain, Encoder
from holdfast.core.errors import HoldfastError
from holdfast.encoders.architectures.base import Architecture, architectures
from holdfast.encoders.baseline import random_init

NARROW = {"resnet18": "resnet18:width=8", "resnet50": "resnet50:width=4"}
"""The same networks with fewer weights to draw."""
OWN = [name for name in architectures() if name != "encoder"]


@pytest.mark.parametrize("name", OWN)
def test_it_builds_networks_for_images(name: str) -> None:
    assert str(Architecture.read(name)) == name
    architecture = Architecture.read(NARROW.get(name, name))
    for shape in ((1, 28, 28), (3, 32, 40)):
        module = architecture.build(Domain(shape))
        assert module.training
        assert all(weight.requires_grad for weight in module.parameters())
        codes = module.eval()(torch.rand(2, *shape))
        assert codes.ndim == 2
        assert codes.std() > 0


@pytest.mark.parametrize("name", OWN)
def test_other_inputs_are_refused(name: str) -> None:
    with pytest.raises(HoldfastError, match=f"architecture '{name}' takes images .*, got \\(16,\\)"):
        Architecture.read(name).build(Domain((16,)))


@pytest.mark.parametrize("text", ["base", "small-resnet", "resnet50:width=4", "small-vit:pooling=cls"])
def test_a_random_baseline_can_be_drawn(text: str) -> None:
    domain = Domain((1, 8, 8))
    encoder = Encoder(Architecture.read(text).build(domain).eval(), "mine", domain)
    drawn = random_init(encoder, seed=1)
    assert drawn.fingerprint == random_init(encoder, seed=1).fingerprint != encoder.fingerprint


def test_odd_sizes() -> None:
    for name in ("base", "cnn-a", "cnn-b", "deep", "digits"):
        for height, width in ((4, 5), (7, 6), (9, 11)):
            module = Architecture.read(f"{name}:features=7").build(Domain((2, height, width)))
            assert module(torch.rand(1, 2, height, width)).shape == (1, 7)


def test_mistakes_are_explained() -> None:
    for text, advice in (
        ("basee", "Did you mean 'base'"),
        ("base:width=3", "architecture 'base'.*'width'"),
        ("base:features=0", "base: features must be at least 1, got 0"),
        ("encoder", "needs a reference, as in encoder:timm:resnet18"),
    ):
        with pytest.raises(HoldfastError, match=advice):
            Architecture.read(text)
    with pytest.raises(HoldfastError, match="at least 4 pixels a side, got \\(1, 3, 8\\)"):
        Architecture.read("base").build(Domain((1, 3, 8)))
