"""Small encoders and images that tests share: real ones where they matter, hand-made ones where a number is known."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from holdfast.core.encoder import Domain, Encoder
from holdfast.core.images import Images
from holdfast.encoders.builtin import load as load_builtin

DIGITS = Domain((1, 8, 8))


@cache
def _digits() -> tuple[Tensor, Tensor]:
    """The pixels and classes of the scikit-learn digits: unpacking them takes long."""
    from sklearn.datasets import load_digits

    stored = load_digits()
    return torch.tensor(stored.images / 16, dtype=torch.float32)[:, None], torch.tensor(stored.target)


def digits(count: int = 60, start: int = 1200) -> Images:
    """Images of the scikit-learn digits, with their names."""
    pixels = _digits()[0][start : start + count].clone()
    return Images(pixels, ids=[f"digit-{row}" for row in range(start, start + count)], name="digits")


def classes(count: int = 60, start: int = 1200) -> Tensor:
    """Which digits they are."""
    return _digits()[1][start : start + count].clone()


@cache
def builtin(name: str = "digits-contrastive") -> Encoder:
    """One of the encoders that ship with the library: loaded, and traced for bounds, once for all tests."""
    return load_builtin(name)


@cache
def doubled(encoder: Encoder) -> Encoder:
    """The encoder in double precision: the same one each time, so that bounds trace it once."""
    return encoder.to("cpu", torch.float64)


def linear(weight: Tensor, shape: tuple[int, ...]) -> Encoder:
    """The encoder ``x -> weight x``, for which every attack has a known answer."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    layer.weight.data.copy_(weight)
    return Encoder(nn.Sequential(nn.Flatten(), layer).eval(), "linear", Domain(shape))


@cache
def published(folder: Path, name: str, dtype: torch.dtype) -> Encoder:
    """A published contrastive encoder of the reference data (its Sequential is described beside its weights)."""
    recipe = json.loads((folder / "encoders" / f"{name}.json").read_text())
    build = {
        "Conv2d": lambda s: nn.Conv2d(s["in_channels"], s["out_channels"], s["kernel_size"], s["stride"], s["padding"]),
        "ZeroPad2d": lambda s: nn.ZeroPad2d(tuple(s["padding"])),
        "ReLU": lambda s: nn.ReLU(),
        "Flatten": lambda s: nn.Flatten(),
        "Linear": lambda s: nn.Linear(s["in_features"], s["out_features"]),
    }
    module = nn.Sequential(*(build[layer["type"]](layer) for layer in recipe["layers"])).eval()
    module.load_state_dict(torch.load(folder / "encoders" / f"{name}.pt", weights_only=True))
    return Encoder(module, name, Domain(tuple(recipe["input_shape"]))).to("cpu", dtype)


def efficientnet(folder: Path) -> Encoder:
    """EfficientNet-Lite0 of the reference data, trained on ImageNet, without its head: 50 layers, pixels in [0, 1].

    Skips where its module is not installed.
    """
    lite = pytest.importorskip("efficientnet_lite_pytorch", reason="efficientnet-lite-pytorch is not installed")
    module = lite.EfficientNet.from_name("efficientnet-lite0")
    module._fc, module._dropout = nn.Identity(), nn.Identity()
    weights = torch.load(folder / "real" / "efficientnet_lite0.pt", weights_only=True)
    module.load_state_dict({name: value for name, value in weights.items() if not name.startswith("_fc.")})
    shape = Domain((3, 224, 224))
    return Encoder(module.eval(), "efficientnet-lite0", shape, mean=[0.498] * 3, std=[0.502] * 3)
