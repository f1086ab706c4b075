"""The three ways in which RobustSSL fine-tunes an encoder before it is attacked: SLF, ALF and AFF.

    SLF  standard linear fine-tuning        -log softmax(A f(x) + b)_y                               head alone
    ALF  adversarial linear fine-tuning     max over x' in the ball of -log softmax(A f(x') + b)_y   head alone
    AFF  adversarial full fine-tuning       TRADES: -log softmax(g(x))_y + 6 max over x' of KL(g(x) | g(x'))   all weights

https://github.com/GodXuxilie/RobustSSL_Benchmark; TRADES: Zhang et al. 2019, https://arxiv.org/abs/1901.08573. Heads start
at zero. SGD has momentum 0.9 and weight decay 2e-4; PGD takes 10 steps of a quarter of the radius.

Departures: training images are neither cropped nor mirrored, and batch normalisation keeps its statistics. PGD on the KL
divergence starts at 1% of the radius, because its gradient at the clean image is 0.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from holdfast.attacks.base import GRADIENT
from holdfast.attacks.gradient import GradientAttack
from holdfast.attacks.objectives.simple import cross_entropy
from holdfast.core.balls import Ball, Linf
from holdfast.core.copies import copied
from holdfast.core.encoder import Codes, Encoder, Pixels
from holdfast.core.errors import OutOfRange
from holdfast.core.noise import Noise
from holdfast.core.run_settings import Observed
from holdfast.measure.population import Population
from holdfast.probes.base import Probe, taught
from holdfast.probes.linear import LinearScores, descend, learned_head, zero_head
from holdfast.probes.own_encoder import restored, with_weights

TRADES = 6.0
"""Weight of the KL divergence."""
Head = Callable[[Codes], Float[Tensor, "b c"]]


@dataclass(frozen=True)
class RobustSSL(Probe):
    """One way to fine-tune."""

    epochs: int = 25
    """Training epochs."""
    version = 1
    batch: ClassVar[int] = 512
    rate: ClassVar[float] = 0.01
    drops: ClassVar[tuple[int, int]] = (10, 20)
    """Epochs of 25 after which the learning rate is divided by ten."""
    whole: ClassVar[bool] = False
    """True if the encoder is trained too."""

    def __post_init__(self) -> None:
        if self.epochs < 1:
            raise OutOfRange(f"{self.name}: epochs", self.epochs, "at least 1")

    @abstractmethod
    def loss(self, encoder: Encoder, head: Head, pixels: Pixels, places: Int[Tensor, "b"], noise: Noise) -> Tensor:
        """Loss of a batch, whose gradients reach the weights that are trained."""

    def forward_passes(self, population: Population) -> int:
        return GRADIENT * self.epochs * len(population.bank.images)

    def learn(self, population: Population) -> Observed:
        bank = population.bank
        classes, places = taught(bank).unique(return_inverse=True)
        encoder = bank.encoder
        if self.whole:
            module = copied(encoder.module).requires_grad_(True)
            encoder = Encoder(module, f"{encoder.name}, {self}", encoder.domain)
        head = zero_head(bank.codes, classes)
        weights = [*head.parameters(), *(encoder.module.parameters() if self.whole else ())]
        optimiser = torch.optim.SGD(weights, lr=self.rate, momentum=0.9, weight_decay=2e-4)
        schedule = torch.optim.lr_scheduler.MultiStepLR(optimiser, [*self.drops], gamma=0.1)
        order = bank.run.noise(bank.images.ids).fork(self.name)

        def loss(epoch: int, batch: Int[Tensor, "b"]) -> Tensor:
            return self.loss(encoder, head, bank.pixels(batch.tolist()), places[batch], order[batch].fork(epoch))

        descend(optimiser, schedule, order, self.epochs, self.batch, loss)
        tensors = learned_head(head, classes)
        return with_weights(tensors, encoder.module) if self.whole else tensors

    def restore(self, population: Population, learned: Observed) -> LinearScores:
        return restored(population, learned, str(self))


@final
@dataclass(frozen=True)
class SLF(RobustSSL):
    """Standard linear fine-tuning of RobustSSL: a linear head on clean images."""

    name = "slf"

    def loss(self, encoder: Encoder, head: Head, pixels: Pixels, places: Int[Tensor, "b"], noise: Noise) -> Tensor:
        return functional.cross_entropy(head(frozen(encoder, pixels)), places)


@dataclass(frozen=True)
class Adversarial(RobustSSL):
    """Fine-tuning on attacked images."""

    ball: Ball = Linf(8 / 255)
    """Perturbation set of adversarial training."""
    steps: int = 10
    """PGD steps per training step, of a quarter of the radius."""

    def __post_init__(self) -> None:
        super().__post_init__()
        assert self.attack.steps == self.steps  # which says what steps may be

    @property
    def attack(self) -> GradientAttack:
        """PGD as published, which keeps the last point."""
        return GradientAttack(steps=self.steps, stride=0.25, keep="last")

    def forward_passes(self, population: Population) -> int:
        return (self.steps + 1) * super().forward_passes(population)


@final
@dataclass(frozen=True)
class ALF(Adversarial):
    """Adversarial linear fine-tuning of RobustSSL: a linear head on images attacked through the frozen encoder."""

    name = "alf"

    def loss(self, encoder: Encoder, head: Head, pixels: Pixels, places: Int[Tensor, "b"], noise: Noise) -> Tensor:
        moved = self.attack(encoder, pixels, cross_entropy(head, places), self.ball, noise)
        return functional.cross_entropy(head(frozen(encoder, moved)), places)


@final
@dataclass(frozen=True)
class AFF(Adversarial):
    """Adversarial full fine-tuning of RobustSSL: head and encoder by TRADES."""

    name = "aff"
    batch = 128
    rate = 0.1
    drops = (15, 20)
    whole = True

    def loss(self, encoder: Encoder, head: Head, pixels: Pixels, places: Int[Tensor, "b"], noise: Noise) -> Tensor:
        here = head(encoder.module(pixels))
        fixed = here.detach()
        attack = replace(self.attack, start=0.01)
        moved = attack(encoder, pixels, lambda codes: divergence(fixed, head(codes)), self.ball, noise)
        there = head(encoder.module(moved))
        return functional.cross_entropy(here, places) + TRADES * divergence(here, there).mean()


def frozen(encoder: Encoder, pixels: Pixels) -> Codes:
    """Embeddings without gradients, shape (b, d)."""
    with torch.no_grad():
        return encoder.forward(pixels)


def divergence(here: Float[Tensor, "b c"], there: Float[Tensor, "b c"]) -> Float[Tensor, "b"]:
    """Kullback-Leibler divergence of the classes at ``there`` from those at ``here``, from logits.

    Example:
        >>> divergence(torch.tensor([[0.0, 0.0]]), torch.tensor([[0.0, 0.0]]))
        tensor([0.])
    """
    known = here.log_softmax(1)
    return (known.exp() * (known - there.log_softmax(1))).sum(1)
