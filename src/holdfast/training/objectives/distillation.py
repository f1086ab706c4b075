"""Distillation: an encoder keeps the codes of what it was when training began, on attacked images, too.

With the starting encoder ``f0``, frozen, views ``x`` and what an adversary made of them ``x'``:

    loss = ( |f0(x) - f(x')|^2 + clean * |f0(x) - f(x)|^2 ) / ((1 + clean) d),  averaged over the batch

It asks nothing of an encoder but its codes, so it hardens any. ``clean=0`` is the loss of UNTAR and ``clean=1`` that of
TAR for encoders without a contrastive loss (Petrov and Kwiatkowska 2022, https://arxiv.org/abs/2210.04076, section 4.4
and listing 3), with the adversaries of these names; ``clean=0`` with an adversary on the loss is FARE (Schlarmann et al.
2024, https://arxiv.org/abs/2402.12336; theirs is not divided by ``d``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from holdfast.core.encoder import Codes
from holdfast.core.settings import require_not_negative
from holdfast.objectives.base import ObjectiveFunction
from holdfast.training.components.heads import frozen_copy
from holdfast.training.learner import Batch, Learner, Setting, TrainingObjective, codes_of


@final
@dataclass(frozen=True)
class Distillation(TrainingObjective):
    """Squared distance of the codes from those of the starting encoder; with an adversary, of the attacked view's."""

    clean: float = 0.0
    """Weight of the term of the view that is not attacked, beside one of the attacked view."""
    name = "distillation"
    views = 1

    def __post_init__(self) -> None:
        require_not_negative(self, "clean")

    def learner(self, encoder: nn.Module, setting: Setting) -> Learner:
        return DistillationLearner(encoder, self.clean)


@final
class DistillationLearner(Learner):
    """An encoder with a frozen copy of what it was."""

    def __init__(self, encoder: nn.Module, clean: float) -> None:
        super().__init__(encoder)
        self.original, self.clean = frozen_copy(encoder).eval(), clean

    def train(self, mode: bool = True) -> DistillationLearner:
        super().train(mode)
        self.original.eval()  # the codes that users know: batch norm by its running statistics, no dropout
        return self

    def forward(self, batch: Batch) -> Float[Tensor, ""]:
        view = batch.views[0]
        target = self.target(batch)
        if batch.attacked is None:
            return mse_loss(codes_of(self.encoder, view), target)
        if not self.clean:
            return mse_loss(codes_of(self.encoder, batch.attacked), target)
        moved, still = codes_of(self.encoder, torch.cat([batch.attacked, view])).chunk(2)
        return (mse_loss(moved, target) + self.clean * mse_loss(still, target)) / (1 + self.clean)

    def loss_under_attack(self, batch: Batch) -> tuple[nn.Module, ObjectiveFunction]:
        target = self.target(batch)

        def loss(codes: Codes) -> Float[Tensor, "b"]:
            return (codes - target).square().sum(dim=1)

        return self.encoder, loss

    def target(self, batch: Batch) -> Codes:
        """Return the codes of the view that the starting encoder gives."""
        with torch.no_grad():
            return codes_of(self.original, batch.views[0])
