"""L-PGD: climb the training loss itself (Petrov and Kwiatkowska 2022, https://arxiv.org/abs/2210.04076, section 4.4).

With SimCLR it is the instance-wise attack of RoCL, with a supervised loss that of Madry et al. 2018, and with distillation
from a frozen copy that of FARE (Schlarmann et al. 2024, https://arxiv.org/abs/2402.12336).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from torch import nn

from holdfast.objectives.base import ObjectiveFunction
from holdfast.training.adversary import Adversary
from holdfast.training.learner import Batch, Learner


@final
@dataclass(frozen=True)
class OnLoss(Adversary):
    """Climb each sample's training loss (L-PGD; RoCL, FARE and adversarial supervised training are this, too)."""

    name = "loss"

    def climbed(self, learner: Learner, batch: Batch) -> tuple[nn.Module, ObjectiveFunction]:
        return learner.loss_under_attack(batch)
