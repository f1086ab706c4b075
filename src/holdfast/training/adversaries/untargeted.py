"""UNTAR: away from the encoder's own code of the clean view, ``max |f(x^) - f(x)|_2``.

Petrov and Kwiatkowska 2022, https://arxiv.org/abs/2210.04076, sections 4.2 and 4.4, with the settings of their fine-tuning.
What moves is the code that the encoder will be used for; the authors' MoCo programs move the output of its head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import nn

from holdfast.core.balls import Ball, Linf
from holdfast.core.divergences import L2Distance
from holdfast.objectives.base import ObjectiveFunction
from holdfast.training.adversary import Adversary
from holdfast.training.learner import Batch, Learner, codes_of


@final
@dataclass(frozen=True)
class Untargeted(Adversary):
    """Move the code as far from that of the clean view as it goes (UNTAR)."""

    ball: Ball = Linf(0.05)
    steps: int = 3
    step: float | None = 0.005
    name = "untargeted"

    def climbed(self, learner: Learner, batch: Batch) -> tuple[nn.Module, ObjectiveFunction]:
        with torch.no_grad():
            clean = codes_of(learner.encoder, batch.views[0])
        return learner.encoder, lambda codes: L2Distance()(codes, clean)
