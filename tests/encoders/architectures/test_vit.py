"""Vision transformers: blocks are torch's own, tokens know their places, and small ones can be certified."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from holdfast.bounds import lower_bound
from holdfast.core.balls import Linf
from holdfast.core.encoder import Domain, Encoder
from holdfast.core.errors import HoldfastError
from holdfast.encoders.architectures.base import Architecture
from holdfast.encoders.architectures.vit import Block, VisionTransformer

DOMAIN = Domain((3, 16, 8))


def build(text: str) -> VisionTransformer:
    torch.manual_seed(0)
    module = Architecture.read(f"small-vit:{text}").build(DOMAIN)
    assert isinstance(module, VisionTransformer)
    return module.eval()


def test_blocks_are_those_of_torch() -> None:
    block = Block(8, heads=2)
    theirs = nn.TransformerEncoderLayer(8, 2, 32, 0.0, "gelu", batch_first=True, norm_first=True).eval()
    names = {
        "self_attn.in_proj_": "qkv.",
        "self_attn.out_proj.": "out.",
        "linear1.": "mlp.0.",
        "linear2.": "mlp.2.",
        "norm1.": "norm1.",
        "norm2.": "norm2.",
    }
    for name, value in theirs.state_dict().items():
        prefix = next(prefix for prefix in names if name.startswith(prefix))
        block.get_parameter(name.replace(prefix, names[prefix])).data.copy_(value)
    tokens = torch.randn(3, 5, 8)
    assert torch.allclose(block(tokens), theirs(tokens), atol=1e-5)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_codes_depend_on_where_patches_are(pooling: str) -> None:
    module = build(f"width=8,depth=2,heads=2,pooling={pooling}")
    pixels = torch.rand(2, *DOMAIN.shape)
    codes, upside_down = module(pixels), module(torch.cat([pixels[:, :, 8:], pixels[:, :, :8]], dim=2))
    assert codes.shape == (2, 8)
    assert not torch.allclose(codes, upside_down, atol=1e-6)
    nn.init.zeros_(module.embed.positions)
    swapped = torch.cat([pixels[:, :, 8:], pixels[:, :, :8]], dim=2)
    assert torch.allclose(module(pixels), module(swapped), atol=1e-6)


def test_patches_are_read_row_by_row() -> None:
    module = build("width=8,depth=1,heads=2")
    pixels = torch.zeros(1, *DOMAIN.shape)
    before = module.embed(pixels)
    pixels[:, :, 4:8, :4] = 1
    changed = (module.embed(pixels) != before).any(dim=2)[0]
    assert changed.tolist() == [False, False, True, *[False] * 5]


def test_mistakes_are_explained() -> None:
    for text, advice in (
        ("patch=3", "patches of 3 pixels, got 16 x 8; choose a patch that divides both sides"),
        ("heads=3", "3 heads cannot share a width of 128"),
        ("pooling=max", "pool.*'max'.*cls, mean"),
        ("depth=0", "depth must be at least 1, got 0"),
    ):
        with pytest.raises(HoldfastError, match=advice):
            build(text)


@pytest.mark.slow
@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_small_transformers_can_be_certified(pooling: str) -> None:
    encoder = Encoder(build(f"width=8,depth=1,heads=2,pooling={pooling}"), "vit", DOMAIN)
    x, ball = torch.rand(1, *DOMAIN.shape), Linf(0.001)
    specifications = encoder(x).double()[:, None]
    (bound,) = lower_bound(encoder, x, specifications, ball).flatten().tolist()
    moved = (x + ball.radius * (2 * torch.rand(200, *DOMAIN.shape) - 1)).clamp(0, 1)
    reached = (encoder(moved).double() @ specifications[0, 0]).min()
    assert 0 < bound < reached
