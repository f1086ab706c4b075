"""Residual networks (He et al. 2016, https://arxiv.org/abs/1512.03385): blocks ``y = relu(x' + F(x))`` of convolutions.

``x'`` is ``x``, or its linear projection where a block halves the sides or changes the width. Convolutions start from He
initialisation, batch norms as identities. Bottlenecks halve in their 3 x 3 convolution, and weights have the names that
torchvision gives them, so that weights published for its ``resnet18`` and ``resnet50`` fit the large stem.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import relu

from holdfast.core.encoder import Domain
from holdfast.encoders.architectures.base import Architecture, image_sizes

Maps = Float[Tensor, "b channels height width"]
MapsAfter = Float[Tensor, "b channels_after height_after width_after"]
LARGE = 64
"""Least pixels a side at which the first layers divide the sides by four, as for ImageNet; below, they keep them."""


@final
@dataclass(frozen=True)
class SmallResNet(Architecture):
    """ResNet of He et al. for 32 pixels: three stages, 4 * width features."""

    width: int = 16
    """Channels of the first stage."""
    blocks: int = 1
    """Basic blocks per stage: ``n`` blocks make the paper's ResNet-(6n + 2)."""
    name = "small-resnet"

    def build(self, domain: Domain) -> nn.Module:
        channels, _, _ = image_sizes(self, domain)
        return _resnet(_small_stem(channels, self.width), BasicBlock, self.width, (self.blocks,) * 3)


@final
@dataclass(frozen=True)
class ResNet18(Architecture):
    """ResNet-18 of 8 width features; below 64 pixels a 3 x 3 stem without pooling."""

    width: int = 64
    """Channels of the first stage."""
    name = "resnet18"

    def build(self, domain: Domain) -> nn.Module:
        return _resnet(_stem(self, domain, self.width), BasicBlock, self.width, (2, 2, 2, 2))


@final
@dataclass(frozen=True)
class ResNet50(Architecture):
    """ResNet-50 of 32 width features; below 64 pixels a 3 x 3 stem without pooling."""

    width: int = 64
    """Channels of the first stage."""
    name = "resnet50"

    def build(self, domain: Domain) -> nn.Module:
        return _resnet(_stem(self, domain, self.width), Bottleneck, self.width, (3, 4, 6, 3))


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions."""

    expansion = 1

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = _conv(channels, width, 3, stride), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = _conv(width, width, 3), nn.BatchNorm2d(width)
        self.downsample = _shortcut(channels, width, stride)

    def forward(self, x: Maps) -> MapsAfter:
        inside = relu(self.bn1(self.conv1(x)))
        return relu(self.bn2(self.conv2(inside)) + self.downsample(x))


class Bottleneck(nn.Module):
    """Convolutions of 1 x 1, 3 x 3 and 1 x 1 pixels, with four times as many channels at the end."""

    expansion = 4

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        wide = width * self.expansion
        self.conv1, self.bn1 = _conv(channels, width, 1), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = _conv(width, width, 3, stride), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = _conv(width, wide, 1), nn.BatchNorm2d(wide)
        self.downsample = _shortcut(channels, wide, stride)

    def forward(self, x: Maps) -> MapsAfter:
        inside = relu(self.bn2(self.conv2(relu(self.bn1(self.conv1(x))))))
        return relu(self.bn3(self.conv3(inside)) + self.downsample(x))


def _resnet(
    stem: dict[str, nn.Module], block: type[BasicBlock | Bottleneck], width: int, depths: Sequence[int]
) -> nn.Module:
    """Return the network with ``depths[i]`` blocks of ``2^i width`` in stage ``i``, and the mean over positions."""
    parts, channels = OrderedDict(stem), width
    for stage, depth in enumerate(depths):
        inner = width * 2**stage
        blocks: list[nn.Module] = []
        for place in range(depth):
            blocks.append(block(channels, inner, stride=2 if stage and not place else 1))
            channels = inner * block.expansion
        parts[f"layer{stage + 1}"] = nn.Sequential(*blocks)
    return nn.Sequential(OrderedDict(**parts, pool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten()))


def _stem(architecture: Architecture, domain: Domain, width: int) -> dict[str, nn.Module]:
    channels, height, breadth = image_sizes(architecture, domain)
    if min(height, breadth) < LARGE:
        return _small_stem(channels, width)
    pool = nn.MaxPool2d(3, stride=2, padding=1)
    return {
        "conv1": _conv(channels, width, 7, stride=2),
        "bn1": nn.BatchNorm2d(width),
        "relu": nn.ReLU(),
        "maxpool": pool,
    }


def _small_stem(channels: int, width: int) -> dict[str, nn.Module]:
    return {"conv1": _conv(channels, width, 3), "bn1": nn.BatchNorm2d(width), "relu": nn.ReLU()}


def _shortcut(channels: int, width: int, stride: int) -> nn.Module:
    if stride == 1 and channels == width:
        return nn.Identity()
    return nn.Sequential(_conv(channels, width, 1, stride), nn.BatchNorm2d(width))


def _conv(channels: int, width: int, size: int, stride: int = 1) -> nn.Conv2d:
    layer = nn.Conv2d(channels, width, size, stride, padding=size // 2, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return layer
