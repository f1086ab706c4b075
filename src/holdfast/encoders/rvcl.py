"""The four encoders of RVCL (Wang and Liu 2022, https://proceedings.mlr.press/v162/wang22q.html, table D.1).

For checkpoints: ``checkpoint:weights.pt --arch holdfast.encoders.rvcl:mnist_cnn_a``. Strides and padding, which the paper
does not give, are those of the weights its authors published. CIFAR-10 is normalised inside, with their constants.
"""

from __future__ import annotations

from torch import nn

from holdfast.core.encoder import Domain, Encoder

MEAN, STD = (0.485, 0.456, 0.406), (0.225, 0.225, 0.225)
CODE = 100
"""Features of every encoder."""


def mnist_base() -> Encoder:
    """Return Base for 1 x 28 x 28 pixels."""
    return _mnist("mnist_base", _two(1, 8, 16, 784))


def mnist_cnn_a() -> Encoder:
    """Return CNN-A for 1 x 28 x 28 pixels."""
    return _mnist("mnist_cnn_a", _two(1, 16, 32, 1568))


def cifar_base() -> Encoder:
    """Return Base for 3 x 32 x 32 pixels."""
    return _cifar("cifar_base", _two(3, 8, 16, 1024))


def cifar_cnn_a() -> Encoder:
    """Return CNN-A for 3 x 32 x 32 pixels."""
    return _cifar("cifar_cnn_a", _two(3, 16, 32, 2048))


def cifar_cnn_b() -> Encoder:
    """Return CNN-B for 3 x 32 x 32 pixels."""
    first = [nn.ZeroPad2d((1, 2, 1, 2)), nn.Conv2d(3, 32, 5, stride=2), nn.ReLU()]
    return _cifar("cifar_cnn_b", [*first, nn.Conv2d(32, 128, 4, stride=2, padding=1), *_end(8192)])


def cifar_deep() -> Encoder:
    """Return Deep for 3 x 32 x 32 pixels."""
    first = [nn.Conv2d(3, 8, 4, stride=2, padding=1), nn.ReLU()]
    middle = [layer for _ in range(2) for layer in (nn.Conv2d(8, 8, 3, padding=1), nn.ReLU())]
    return _cifar("cifar_deep", [*first, *middle, nn.Conv2d(8, 8, 4, stride=2, padding=1), *_end(512)])


def _two(colours: int, first: int, second: int, flat: int) -> list[nn.Module]:
    """Return two convolutions of stride 2 and the linear layer."""
    start = [nn.Conv2d(colours, first, 4, stride=2, padding=1), nn.ReLU()]
    return [*start, nn.Conv2d(first, second, 4, stride=2, padding=1), *_end(flat)]


def _end(flat: int) -> list[nn.Module]:
    return [nn.ReLU(), nn.Flatten(), nn.Linear(flat, CODE)]


def _mnist(name: str, layers: list[nn.Module]) -> Encoder:
    return Encoder(nn.Sequential(*layers).eval(), name, Domain((1, 28, 28)))


def _cifar(name: str, layers: list[nn.Module]) -> Encoder:
    return Encoder(nn.Sequential(*layers).eval(), name, Domain((3, 32, 32)), mean=MEAN, std=STD)
