"""The encoders of RVCL (Wang and Liu 2022, https://proceedings.mlr.press/v162/wang22q.html), as published.

For checkpoints: ``checkpoint:weights.pt --arch holdfast.encoders.rvcl:mnist_cnn_a``. CIFAR-10 is normalised inside, with
the constants of the authors' weights.
"""

from __future__ import annotations

from holdfast.core.encoder import Domain, Encoder
from holdfast.encoders.architectures.base import Architecture
from holdfast.encoders.architectures.plain import Base, CnnA, CnnB, Deep

MEAN, STD = (0.485, 0.456, 0.406), (0.225, 0.225, 0.225)
MNIST, CIFAR = Domain((1, 28, 28)), Domain((3, 32, 32))


def mnist_base() -> Encoder:
    """Return Base for 1 x 28 x 28 pixels."""
    return _mnist("mnist_base", Base())


def mnist_cnn_a() -> Encoder:
    """Return CNN-A for 1 x 28 x 28 pixels."""
    return _mnist("mnist_cnn_a", CnnA())


def cifar_base() -> Encoder:
    """Return Base for 3 x 32 x 32 pixels."""
    return _cifar("cifar_base", Base())


def cifar_cnn_a() -> Encoder:
    """Return CNN-A for 3 x 32 x 32 pixels."""
    return _cifar("cifar_cnn_a", CnnA())


def cifar_cnn_b() -> Encoder:
    """Return CNN-B for 3 x 32 x 32 pixels."""
    return _cifar("cifar_cnn_b", CnnB())


def cifar_deep() -> Encoder:
    """Return Deep for 3 x 32 x 32 pixels."""
    return _cifar("cifar_deep", Deep())


def _mnist(name: str, architecture: Architecture) -> Encoder:
    return Encoder(architecture.build(MNIST).eval(), name, MNIST)


def _cifar(name: str, architecture: Architecture) -> Encoder:
    return Encoder(architecture.build(CIFAR).eval(), name, CIFAR, mean=MEAN, std=STD)
