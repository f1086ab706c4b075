"""Pairs of encoders of which it is known what became of the space, and images that tell them apart."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from holdfast.core.encoder import Domain, Encoder
from holdfast.core.geometry import Geometry, Interpolation

DOMAIN, SIDE = Domain((3, 16, 16)), 24
MEAN, STD = (0.498,) * 3, (0.502,) * 3
GEOMETRY = Geometry(16, (16, 16), "bicubic")


def photographs(folder: Path, count: int = 150) -> Path:
    """Write files with colour, coarse shapes and fine texture, so that resizing and channel order matter."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    for k in range(count):
        coarse = np.kron(rng.uniform(0, 1, (3, 3, 3)), np.ones((8, 8, 1)))
        tint = rng.uniform(0, 1, 3)
        values = 0.25 * coarse + 0.15 * tint + 0.6 * rng.uniform(0, 1, (SIDE, SIDE, 3))
        Image.fromarray((255 * values).round().astype(np.uint8)).save(folder / f"{k:03}.png")
    return folder


def network(seed: int = 0, features: int = 24) -> nn.Module:
    """A small network that is far from linear."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(392, 64), nn.ReLU(), nn.Linear(64, features)
    ).eval()


class Reordered(nn.Module):
    """Takes BGR for RGB."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        return self.module(x.flip(1))


class Fixed(nn.Module):
    """A normalisation that nobody states."""

    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        super().__init__()
        self.mean, self.std = (torch.tensor(values)[:, None, None] for values in (mean, std))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.std


class Turned(nn.Module):
    """Rotates the codes of another module, scales and shifts them."""

    def __init__(self, module: nn.Module, features: int, shift: float = 0.0) -> None:
        super().__init__()
        self.module, self.shift = module, shift
        noise = torch.randn(features, features, generator=torch.Generator().manual_seed(1))
        self.turn = nn.Parameter(torch.linalg.qr(noise).Q)

    def forward(self, x: Tensor) -> Tensor:
        return 2 * self.module(x) @ self.turn + self.shift


def encoder(
    module: nn.Module,
    name: str,
    mean: tuple[float, ...] = MEAN,
    std: tuple[float, ...] = STD,
    interpolation: Interpolation = "bicubic",
) -> Encoder:
    return Encoder(module, name, DOMAIN, mean, std, geometry=Geometry(16, (16, 16), interpolation))


def quantised(module: nn.Module) -> nn.Module:
    """Linear layers in int8, their inputs quantised as they come."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made: nn.Module = torch.ao.quantization.quantize_dynamic(module, {nn.Linear}, torch.qint8)
    return made


Pair = tuple[Callable[[], Encoder | str], str, str]
PAIRS: dict[str, Pair] = {
    "same": (lambda: encoder(network(), "same"), "same to rounding", ""),
    "fp16": (lambda: "float16", "same to rounding", ""),
    "int8": (lambda: encoder(quantised(network()), "int8"), "same neighbours", "as it is"),
    "wrong mean": (
        lambda: encoder(network(), "wrong mean", (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        "another space",
        "the normalisation of reference",
    ),
    "BGR": (lambda: encoder(Reordered(network()), "BGR"), "another space", "channels in the opposite order"),
    "bilinear": (
        lambda: encoder(network(), "bilinear", interpolation="bilinear"),
        "another space",
        "the resizing of reference (shorter side to 16, centre 16 x 16, bicubic)",
    ),
    "another seed": (lambda: encoder(network(seed=1), "another seed"), "another space", "as it is"),
    "rotation": (lambda: encoder(Turned(network(), 24), "rotation"), "a rotated copy", "as it is"),
}
"""What is compared with the network of seed 0; the verdict, and the preprocessing that is named as the cause."""
