"""Probes that change the encoder: fine-tuning, and a linear head behind a low-pass filter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import final

import torch
from jaxtyping import Int
from torch import Tensor, nn

from holdfast.attacks.base import GRADIENT
from holdfast.core.copies import copied
from holdfast.core.encoder import Encoder
from holdfast.core.errors import HoldfastError, UnknownName
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
