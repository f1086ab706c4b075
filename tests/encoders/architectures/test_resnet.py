"""Residual networks: those of the paper, and small ones can be certified."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from holdfast.bounds import lower_bound
from holdfast.core.balls import Linf
from holdfast.core.encoder import Domain, Encoder
from holdfast.encoders.architectures.base import Architecture


@pytest.mark.parametrize(
    ("text", "side", "features", "parameters"),
    [
        ("resnet18", 64, 512, 11_176_512),  # torchvision's without its last layer
        ("resnet50", 64, 2048, 23_508_032),
        ("resnet18", 32, 512, 11_176_512 - 64 * 3 * (7 * 7 - 3 * 3)),
        ("resnet18:width=8", 32, 64, None),
        ("small-resnet:width=16,blocks=3", 32, 64, 272_474 - 650),  # ResNet-20 without its last layer
    ],
)
def test_the_networks_are_those_of_the_paper(text: str, side: int, features: int, parameters: int | None) -> None:
    module = Architecture.read(text).build(Domain((3, side, side))).eval()
    assert module(torch.rand(2, 3, side, side)).shape == (2, features)
    assert parameters in (None, sum(weight.numel() for weight in module.parameters()))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_weights_of_torchvision_give_its_codes(name: str) -> None:
    from holdfast.encoders import load

    other = load(f"torchvision:{name}?pretrained=false&seed=1").module
    theirs = other.get_submodule("module")
    generator = torch.Generator().manual_seed(0)
    for buffer in theirs.buffers():  # running statistics that matter
        if buffer.is_floating_point():
            buffer.copy_(0.5 + torch.rand(buffer.shape, generator=generator))
    module = Architecture.read(name).build(Domain((3, 96, 64))).eval()
    module.load_state_dict(theirs.state_dict())
    pixels = torch.rand(2, 3, 96, 64, generator=generator)
    assert torch.allclose(module(pixels), theirs(pixels), atol=1e-5)


@pytest.mark.slow
def test_small_resnets_can_be_certified() -> None:
    torch.manual_seed(0)
    domain, ball = Domain((1, 8, 8)), Linf(0.002)
    module = Architecture.read("small-resnet:width=2").build(domain)
    module(torch.rand(16, *domain.shape))  # moves the running statistics of the batch norms
    encoder = Encoder(module.eval(), "resnet", domain)
    x = torch.rand(1, *domain.shape)
    specifications = encoder(x).double()[:, None]
    (bound,) = lower_bound(encoder, x, specifications, ball).flatten().tolist()
    moved = (x + ball.radius * (2 * torch.rand(200, *domain.shape) - 1)).clamp(0, 1)
    reached = (encoder(moved).double() @ specifications[0, 0]).min()
    clean = float(specifications.square().sum())
    assert 0.5 * clean < bound < reached < clean


def test_blocks_add_what_they_are_given() -> None:
    module = Architecture.read("small-resnet:width=4").build(Domain((1, 8, 8))).eval()
    block = module.get_submodule("layer1.0")
    last = block.get_submodule("bn2")
    assert isinstance(last, nn.BatchNorm2d)
    nn.init.zeros_(last.weight)
    maps = torch.rand(2, 4, 8, 8)
    assert torch.equal(block(maps), maps)
