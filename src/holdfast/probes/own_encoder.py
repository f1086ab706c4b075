"""Probes that change the encoder: fine-tuning (also under attack), and a linear head behind a low-pass filter."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from holdfast.attacks.base import GRADIENT
from holdfast.attacks.gradient import GradientAttack
from holdfast.attacks.objectives.simple import cross_entropy
from holdfast.core.balls import Ball, Linf
from holdfast.core.copies import copied
from holdfast.core.encoder import Codes, Encoder, Pixels
from holdfast.core.errors import HoldfastError, OutOfRange, UnknownName
from holdfast.core.noise import Noise
from holdfast.core.optimised import codes_of
from holdfast.core.run_settings import Observed
from holdfast.core.settings import check_positive
from holdfast.measure.evaluation import LATER
from holdfast.measure.population import Population, represent
from holdfast.probes.base import Probe, taught
from holdfast.probes.linear import (
    LinearScores,
    check_recipe,
    copy_codes,
    descend,
    head,
    learned_head,
    linear_scores,
    logistic_regression,
    zero_head,
)
from holdfast.transforms.filters import LowPass

# Fine-tuning: a linear head and a copy of the encoder learn together.
#
# Ten epochs with a learning rate that falls to zero along a cosine: ``sgd`` (rate 0.002, momentum 0.9) or ``adamw``
# (0.001).
# The encoder that is measured stays as it is; attacks on this probe go through the copy.
#
# Departures: the head begins at the linear probe, so that a random one does not spoil the features first (Kumar et
# al. 2022, https://arxiv.org/abs/2202.10054); and layers with two modes stay in the one in which the encoder is
# measured.

OPTIMISERS: dict[str, Callable[[list[Tensor]], torch.optim.Optimizer]] = {
    "sgd": lambda weights: torch.optim.SGD(weights, lr=2e-3, momentum=0.9),
    "adamw": lambda weights: torch.optim.AdamW(weights, lr=1e-3),
}
ENCODER = "encoder."
"""How the names of the copy's weights begin among what is learned."""


@final
@dataclass(frozen=True)
class FineTuned(Probe):
    """Linear head, trained together with the encoder on the reference set."""

    optimiser: str = "sgd"
    """`sgd` (0.002, momentum 0.9) or `adamw` (0.001)."""
    epochs: int = 10
    """Training epochs."""
    batch: int = 64
    """Images per training step."""
    name = "fine-tune"
    version = 1

    def __post_init__(self) -> None:
        if self.optimiser not in OPTIMISERS:
            raise UnknownName("fine-tune: optimiser", self.optimiser, OPTIMISERS)
        check_positive(self, "epochs", "batch")

    def forward_passes(self, population: Population) -> int:
        return GRADIENT * self.epochs * len(population.bank.images)

    def learn(self, population: Population) -> Observed:
        bank, labels = population.bank, taught(population.bank)
        plain = logistic_regression(bank.codes, labels)
        places = torch.searchsorted(plain["classes"].to(labels.device), labels)
        module = copied(bank.encoder.module).requires_grad_(True)
        head = nn.Linear(bank.codes.shape[1], len(plain["classes"]), dtype=bank.codes.dtype, device=bank.codes.device)
        head.load_state_dict({name: plain[name] for name in ("weight", "bias")})
        optimiser = OPTIMISERS[self.optimiser]([*module.parameters(), *head.parameters()])
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, self.epochs)
        order = bank.run.noise(bank.images.ids).fork(self.name)

        def loss(epoch: int, batch: Int[Tensor, "b"]) -> Tensor:
            codes = module(bank.pixels(batch.tolist()))
            if not codes.requires_grad:
                raise HoldfastError(
                    f"{bank.encoder.name} has no weights that gradients reach, so there is nothing to tune; leave "
                    f"{self} out"
                )
            return nn.functional.cross_entropy(head(codes.to(bank.codes.dtype)), places[batch])

        descend(optimiser, schedule, order, self.epochs, self.batch, loss)
        return with_weights(learned_head(head, plain["classes"]), module)

    def restore(self, population: Population, learned: Observed) -> LinearScores:
        return restored(population, learned, str(self))


def with_weights(learned: Observed, module: nn.Module) -> Observed:
    """Add the weights of a tuned copy of the encoder to what was learned of its head."""
    return {f"{ENCODER}{name}": value.detach().clone() for name, value in module.state_dict().items()} | learned


def restored(population: Population, learned: Observed, name: str) -> LinearScores:
    """Load a linear head with the tuned encoder that ``learned`` holds, or else with the measured one."""
    encoder = population.encoder
    weights = {key.removeprefix(ENCODER): value for key, value in learned.items() if key.startswith(ENCODER)}
    if weights:
        module = copied(encoder.module)
        module.load_state_dict(weights)
        encoder = Encoder(module, f"{encoder.name}, {name}", encoder.domain, caution=encoder.caution)
    return linear_scores(encoder, learned, population.run.device)


# The low-pass probe: a linear head that learns, and is asked, behind a low-pass filter.
#
# The filter belongs to what is probed: attacks pass through it. If it costs little accuracy and takes much from an
# attack, the attack lives on high frequencies (Wang et al. 2020, https://arxiv.org/abs/1905.13545).


class Behind(nn.Module):
    """``module`` after a low-pass filter.

    Args:
        radius: Cycles per image that the filter keeps.
    """

    def __init__(self, module: nn.Module, radius: float) -> None:
        super().__init__()
        self.module, self.radius = module, radius

    def forward(self, x: Tensor) -> Tensor:
        nothing_drawn = Noise(torch.zeros(len(x), dtype=torch.int64, device=x.device))
        return self.module(LowPass(self.radius)(x, nothing_drawn))


@final
@dataclass(frozen=True)
class LowPassProbe(Probe):
    """Linear head on images without high frequencies, in training and in use."""

    radius: float
    """Radius of the low-pass filter, in cycles per image."""
    recipe: str = field(default="lbfgs", metadata=LATER)
    """As for `linear`."""
    crops: int = field(default=0, metadata=LATER)
    """As for `linear`."""
    name = "low-pass"
    example = "8"
    version = 1

    def __post_init__(self) -> None:
        LowPass(self.radius)  # which says what a radius may be
        check_recipe(self.name, self.recipe, self.crops)

    def forward_passes(self, population: Population) -> int:
        return max(1, self.crops) * len(population.bank.images)

    def learn(self, population: Population) -> Observed:
        bank, encoder = population.bank, self._filtered(population)

        def encoded(rows: Sequence[int]) -> Observed:
            return {"codes": represent(encoder, bank.images, rows, bank.run)}

        crops = [copy_codes(bank, lambda pixels: codes_of(encoder, pixels), k) for k in range(self.crops)]
        copies = crops or [bank.run.batches(range(len(bank.images)), encoded)["codes"]]
        return head(bank, copies, self.recipe, self.name)

    def restore(self, population: Population, learned: Observed) -> LinearScores:
        return linear_scores(self._filtered(population), learned, population.run.device)

    def _filtered(self, population: Population) -> Encoder:
        encoder = population.encoder
        if len(encoder.domain.shape) != 3 or (encoder.domain.low, encoder.domain.high) != (0, 1):
            raise HoldfastError(
                f"{self} filters images in [0, 1], and {encoder.name} takes {encoder.domain.shape} in "
                f"[{encoder.domain.low:g}, {encoder.domain.high:g}]; leave the probe out"
            )
        module, name = Behind(encoder.module, self.radius), f"{encoder.name} behind {self}"
        return Encoder(module, name, encoder.domain, caution=encoder.caution)


# The three ways in which RobustSSL fine-tunes an encoder before it is attacked: SLF, ALF and AFF.
#
#     SLF  standard linear fine-tuning        -log softmax(A f(x) + b)_y                               head alone
#     ALF  adversarial linear fine-tuning     max over x' in the ball of -log softmax(A f(x') + b)_y   head alone
#     AFF  adversarial full fine-tuning       TRADES: -log softmax(g(x))_y + 6 max over x' of KL(g(x) | g(x'))   all weights
#
# https://github.com/GodXuxilie/RobustSSL_Benchmark; TRADES: Zhang et al. 2019, https://arxiv.org/abs/1901.08573. Heads start
# at zero. SGD has momentum 0.9 and weight decay 2e-4; PGD takes 10 steps of a quarter of the radius.
#
# Departures: training images are neither cropped nor mirrored, and batch normalisation keeps its statistics. PGD on the KL
# divergence starts at 1% of the radius, because its gradient at the clean image is 0.

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
class ALF(Adversarial):
    """Adversarial linear fine-tuning of RobustSSL: a linear head on images attacked through the frozen encoder."""

    name = "alf"

    def loss(self, encoder: Encoder, head: Head, pixels: Pixels, places: Int[Tensor, "b"], noise: Noise) -> Tensor:
        moved = self.attack(encoder, pixels, cross_entropy(head, places), self.ball, noise)
        return functional.cross_entropy(head(frozen(encoder, moved)), places)


@final
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
