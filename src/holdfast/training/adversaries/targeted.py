"""TAR: towards the code of the image before it in the batch, ``min |f(x_i^) - f(x_{i-1}')|_2``.

``x'`` is the second view where there is one, else the first; the batch is a ring. Petrov and Kwiatkowska 2022,
https://arxiv.org/abs/2210.04076, sections 4.2 and 4.4, with the settings of their fine-tuning. What moves is the code that
the encoder will be used for; the authors' MoCo programs move the output of its head.
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
from holdfast.training.gathering import gathered, own_rows
from holdfast.training.learner import Batch, Learner, codes_of


@final
@dataclass(frozen=True)
class Targeted(Adversary):
    """Move the code towards that of another image of the batch (TAR)."""

    ball: Ball = Linf(0.05)
    steps: int = 3
    step: float | None = 0.005
    name = "targeted"

    def climbed(self, learner: Learner, batch: Batch) -> tuple[nn.Module, ObjectiveFunction]:
        with torch.no_grad():
            everybody = gathered(codes_of(learner.encoder, batch.views[:2][-1]))
        targets = everybody.roll(1, dims=0)[own_rows(len(batch.rows), everybody.device)]
        return learner.encoder, lambda codes: -L2Distance()(codes, targets)
