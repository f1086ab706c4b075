"""Small networks, one for each operation that can be bounded, and random ones that mix them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional

from holdfast.core.encoder import Domain, Encoder

SHAPE = (2, 6, 6)


class Apply(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Residual(nn.Module):
    """``relu(norm(conv(x))) + conv(x)``, with strides that make the two windows differ."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, 4, 3, 2, 1)
        self.norm = trained(nn.BatchNorm2d(4))
        self.second = nn.Conv2d(4, 4, 3, 1, 1)
        self.short = nn.Conv2d(channels, 4, 1, 2)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.second(torch.relu(self.norm(self.first(x)))) + self.short(x))


class Attention(nn.Module):
    """A block of a vision transformer on four tokens of four features, and the class token."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(2, 4, 3, 3)
        self.token = nn.Parameter(torch.randn(1, 1, 4))
        self.norm, self.out = nn.LayerNorm(4), nn.Linear(4, 3)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(len(x), -1, -1), tokens], 1)
        y = self.norm(tokens)
        return self.out((tokens + self.attention(y, y, y, need_weights=False)[0])[:, 0])


def trained(norm: nn.BatchNorm2d) -> nn.BatchNorm2d:
    """A batch norm with statistics and weights that are not those it starts with."""
    for tensor in (norm.running_mean, norm.weight.data, norm.bias.data):
        assert tensor is not None
        nn.init.normal_(tensor)
    assert norm.running_var is not None
    nn.init.uniform_(norm.running_var, 0.3, 2.0)
    return norm


def head(module: nn.Module, shape: tuple[int, ...] = SHAPE) -> nn.Module:
    """The module followed by a linear map to three features."""
    with torch.no_grad():
        size = module.eval()(torch.zeros(1, *shape)).numel()
    return nn.Sequential(module, nn.Flatten(), nn.Linear(size, 3))


def after(function: Callable[[Tensor], Tensor]) -> Callable[[], nn.Module]:
    """A convolution, the function, another convolution, a ReLU: the function inside a network."""
    return lambda: head(nn.Sequential(nn.Conv2d(2, 4, 3, 1, 1), Apply(function), nn.LazyConv2d(3, 2), nn.ReLU()))


OPERATIONS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Sequential(nn.Flatten(), nn.Linear(72, 16), nn.ReLU(), nn.Linear(16, 3)),
    "conv": after(torch.relu),
    "strided": lambda: head(
        nn.Sequential(nn.Conv2d(2, 4, 4, 2, 1), nn.ReLU(), nn.Conv2d(4, 3, (2, 3), 1, (1, 0)), nn.ReLU())
    ),
    "dilated": lambda: head(
        nn.Sequential(nn.Conv2d(2, 4, 2, 1, 1, 2), nn.ReLU(), nn.Conv2d(4, 4, 3, 2, 1, groups=2), nn.ReLU())
    ),
    "unrectified": lambda: head(nn.Sequential(nn.Conv2d(2, 3, 3, 1, 1), nn.Conv2d(3, 3, 3, 1, 1), nn.ReLU())),
    "transposed": lambda: head(
        nn.Sequential(nn.Conv2d(2, 3, 3, 2), nn.ReLU(), nn.ConvTranspose2d(3, 2, 2, 2), nn.ReLU())
    ),
    "conv1d": lambda: head(
        nn.Sequential(nn.Flatten(2), nn.Conv1d(2, 3, 5, 3), nn.ReLU(), nn.Conv1d(3, 2, 2), nn.ReLU())
    ),
    "residual": lambda: head(nn.Sequential(Residual(2), Residual(4))),
    "batch norm": lambda: head(nn.Sequential(nn.Conv2d(2, 4, 3), trained(nn.BatchNorm2d(4)), nn.ReLU())),
    "average pool": after(lambda x: functional.avg_pool2d(torch.relu(x), 2)),
    "global pool": lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
    "max pool": after(lambda x: functional.max_pool2d(x, 2)),
    "padded max pool": after(lambda x: functional.max_pool2d(x, 3, 2, 1)),
    "leaky relu": after(lambda x: functional.leaky_relu(x, 0.2)),
    "relu6": after(lambda x: functional.relu6(4 * x) + functional.hardtanh(x, -0.3, 0.2)),
    "clamp": after(lambda x: torch.maximum(x.clamp(-0.2, 0.1), x.abs().clamp_max(0.4)) + x.clamp_min(0.1)),
    "sigmoid": after(torch.sigmoid),
    "tanh": after(lambda x: torch.tanh(3 * x)),
    "gelu": after(lambda x: functional.gelu(4 * x)),
    "gelu tanh": after(lambda x: functional.gelu(4 * x, approximate="tanh")),
    "silu": after(lambda x: functional.silu(6 * x)),
    "mish": after(lambda x: functional.mish(6 * x)),
    "hardswish": after(lambda x: functional.hardswish(9 * x) - functional.hardsigmoid(5 * x)),
    "exponential units": after(lambda x: functional.elu(3 * x, 0.5) + functional.selu(2 * x) - functional.celu(x, 0.2)),
    "prelu": after(lambda x: functional.prelu(x, torch.linspace(-0.5, 1.5, 4).to(x)) + functional.softplus(x, 9)),
    "resizing": after(
        lambda x: functional.pixel_shuffle(functional.interpolate(torch.relu(x), scale_factor=0.7, mode="bilinear"), 2)
    ),
    "rounded max pool": after(
        lambda x: functional.adaptive_max_pool2d(functional.max_pool2d(x, 3, 2, ceil_mode=True), (2, 5))
    ),
    "instance norm": after(lambda x: functional.instance_norm(x, eps=0.1)),
    "powers": after(lambda x: torch.exp(x) / (1 + x**2) - (1 + x * x).sqrt() + torch.rsqrt(0.5 + x**2)),
    "softmax": after(lambda x: torch.softmax(3 * x, 1)),
    "layer norm": after(lambda x: functional.layer_norm(x, [6], torch.linspace(-1, 1, 6).to(x), torch.ones(6).to(x))),
    "group norm": after(lambda x: functional.group_norm(x, 2, torch.linspace(-1, 2, 4).to(x), torch.ones(4).to(x))),
    "unit length": lambda: nn.Sequential(nn.Flatten(), nn.Linear(72, 4), Apply(lambda x: functional.normalize(x))),
    "products": after(lambda x: x * torch.relu(x.flip(1)) - 0.5 * (1 - x)),
    "attention": Attention,
    "views": after(
        lambda x: torch.stack([*torch.cat(x.chunk(2, 1), 1).unbind(1)], 1).transpose(2, 3).roll(1, 2)[:, :, 1:] / 0.5
    ),
    "chosen": after(
        lambda x: torch.where(torch.arange(6) % 2 == 0, torch.relu(x), torch.where(x.isnan(), 0.0, 0.5 - x.flip(3)))
    ),
    "padding": after(
        lambda x: functional.pad(torch.relu(-x), (1, 0, 2, 1), value=0.3).mean(3, keepdim=True) * torch.ones(4)
    ),
}


def build(name: str, seed: int = 0) -> Encoder:
    """The network of that name with random weights, large enough that its ReLUs switch."""
    torch.manual_seed(seed)
    module = OPERATIONS[name]()
    with torch.no_grad():
        module.eval()(torch.zeros(1, *SHAPE))  # lets lazy layers know their sizes
    return Encoder(module, name, Domain(SHAPE)).to("cpu", torch.float64)


@cache
def shared(name: str) -> Encoder:
    """The network of that name, for tests that leave it as it is: built and traced once."""
    return build(name)
