"""The encoders of RVCL (Wang and Liu 2022, https://proceedings.mlr.press/v162/wang22q.html), as published.

For checkpoints: ``checkpoint:weights.pt --arch holdfast.encoders.rvcl:mnist_cnn_a``. CIFAR-10 is normalised inside, with
the constants of the authors' weights.
"""

from __future__ import annotations

from functools import partial

from holdfast.core.encoder import Domain, Encoder
from holdfast.encoders.architectures.base import Architecture
from holdfast.encoders.architectures.plain import Base, CnnA, CnnB, Deep

MEAN, STD = (0.485, 0.456, 0.406), (0.225, 0.225, 0.225)
MNIST, CIFAR = Domain((1, 28, 28)), Domain((3, 32, 32))


def _mnist(name: str, architecture: Architecture) -> Encoder:
    return Encoder(architecture.build(MNIST).eval(), name, MNIST)


def _cifar(name: str, architecture: Architecture) -> Encoder:
    return Encoder(architecture.build(CIFAR).eval(), name, CIFAR, mean=MEAN, std=STD)


mnist_base = partial(_mnist, "mnist_base", Base())
mnist_cnn_a = partial(_mnist, "mnist_cnn_a", CnnA())
cifar_base = partial(_cifar, "cifar_base", Base())
cifar_cnn_a = partial(_cifar, "cifar_cnn_a", CnnA())
cifar_cnn_b = partial(_cifar, "cifar_cnn_b", CnnB())
cifar_deep = partial(_cifar, "cifar_deep", Deep())
