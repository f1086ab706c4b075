"""Random baselines: seeded, complete, or refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from holdfast.core.encoder import Domain, Encoder
from holdfast.core.errors import HoldfastError
from holdfast.core.geometry import Geometry
from holdfast.encoders.baseline import random_init, raw_pixels

DOMAIN = Domain((3, 8, 8))


class Attentive(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 4, 4)
        self.norm = nn.BatchNorm2d(8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        tokens = self.norm(self.patches(x)).flatten(2).mT
        return self.attention(tokens, tokens, tokens)[0].mean(1)


class WithToken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.zeros(3))

    def forward(self, x):
        return x.mean((2, 3)) + self.token


def trained() -> Encoder:
    module = Attentive()
    for weight in module.state_dict().values():
        if weight.is_floating_point():
            weight.fill_(0.25)
    return Encoder(module.eval(), "mine", DOMAIN, (0.5,) * 3, (0.2,) * 3, "python", Geometry(9, (8, 8), "bicubic"))


def test_every_weight_is_drawn_anew_and_the_rest_stays():
    encoder = trained()
    fresh = random_init(encoder)
    for name, weight in fresh.module.named_parameters():
        assert not (weight == 0.25).any(), name
    running = fresh.module.get_buffer("module.norm.running_mean")
    assert torch.equal(running, torch.zeros(8))
    assert torch.equal(fresh.module.get_buffer("std"), encoder.module.get_buffer("std"))
    assert (fresh.domain, fresh.geometry) == (encoder.domain, encoder.geometry)
    assert (encoder.module.get_parameter("module.patches.weight") == 0.25).all(), "the original must stay"


def test_seed_decides():
    assert random_init(trained(), 1).fingerprint == random_init(trained(), 1).fingerprint
    assert random_init(trained(), 1).fingerprint != random_init(trained(), 2).fingerprint


def test_generator_is_left_alone():
    encoder = trained()
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    random_init(encoder)
    assert torch.equal(torch.rand(1), expected)


def test_weights_without_reset_keep_their_values_in_another_order():
    module = WithToken().eval()
    module.token.data = torch.arange(3.0)
    fresh = next(random_init(Encoder(module, "token", DOMAIN), 1).module.parameters())
    assert sorted(fresh.tolist()) == [0, 1, 2]
    assert fresh.tolist() != [0, 1, 2]
    assert module.token.tolist() == [0, 1, 2], "the original must stay"


def test_nothing_to_draw_is_refused():
    with pytest.raises(HoldfastError, match="no weights"):
        random_init(raw_pixels(DOMAIN))
