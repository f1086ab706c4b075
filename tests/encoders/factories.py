"""What users write in a module of their own to load checkpoints with ``--arch tests.encoders.factories:NAME``."""

from __future__ import annotations

import torch
from torch import nn

from holdfast.core.encoder import Domain, Encoder
from holdfast.core.geometry import Geometry
from holdfast.core.text_tower import TextModel, TextTower

STATED = Domain((1, 8, 8))


def plain() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5))


class Wrapped(nn.Module):
    """A network as one part of another module."""

    def __init__(self) -> None:
        super().__init__()
        self.net = plain()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)


def wrapped() -> nn.Module:
    return Wrapped()


class Stated(nn.Sequential):
    domain = STATED
    geometry = Geometry(10, (8, 8), "bicubic")


def stated() -> nn.Module:
    return Stated(*plain())


def encoder() -> Encoder:
    return Encoder(plain().eval(), "mine", STATED, mean=(0.5,), std=(0.25,), geometry=Geometry(9, (8, 8)))


def no_text_model() -> TextModel:
    raise AssertionError("nobody asks for it")


TEXTS = TextTower(no_text_model)


def with_texts() -> Encoder:
    return Encoder(plain().eval(), "mine", STATED, texts=TEXTS)


def tied() -> nn.Sequential:
    """Two layers that share their weight."""
    first, second = nn.Linear(64, 64, bias=False), nn.Linear(64, 64, bias=False)
    second.weight = first.weight
    return nn.Sequential(nn.Flatten(), first, nn.ReLU(), second)


def hidden_randomness() -> nn.Module:
    """A buffer outside of the state dict, drawn at construction."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 5))
    module.register_buffer("draw", torch.rand(3), persistent=False)
    return module


def number() -> int:
    return 3


def broken() -> nn.Module:
    raise KeyError("width")


not_callable = 7
