"""Supervised training, with or without a pull towards a uniform spread of the codes.

    loss = CE(W z, y) + uniformity * log mean_{i<j} exp(-2 |u_i - u_j|^2),   u = z / |z|

The second term: Wang and Isola 2020, https://arxiv.org/abs/2005.10242; as a regulariser of supervised training with
uniformity 0.01 (more uniform) or -0.01 (less): Zhong et al. 2022, https://arxiv.org/abs/2206.05259, appendix A.2. With an
adversary on the loss, the attacked view takes the place of the clean one (Madry et al. 2018, https://arxiv.org/abs/1706.06083).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite, log
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from holdfast.core.encoder import Codes
from holdfast.core.errors import HoldfastError
from holdfast.objectives.base import ObjectiveFunction
from holdfast.training.gathering import gathered
from holdfast.training.learner import Batch, Learner, Setting, TrainingObjective, require_two_images


def spread(codes: Codes) -> Float[Tensor, ""]:
    """Return ``log mean_{i<j} exp(-2 |u_i - u_j|^2)`` of the codes of all processes; lower is more uniform.

    Example:
        >>> float(spread(torch.tensor([[1.0, 0.0], [0.0, 3.0]])))
        -4.0
    """
    units = normalize(gathered(codes), dim=1)
    above = torch.triu_indices(len(units), len(units), 1, device=units.device)
    squares = (2 - 2 * (units @ units.T))[above[0], above[1]]
    return torch.logsumexp(-2 * squares, dim=0) - log(len(squares))


@final
@dataclass(frozen=True)
class Supervised(TrainingObjective):
    """Cross-entropy of a linear head on one view; ``uniformity`` weighs the spread of the codes of a batch."""

    uniformity: float = 0.0
    name = "supervised"
    views = 1
    needs_labels = True

    def __post_init__(self) -> None:
        if not isfinite(self.uniformity):
            raise HoldfastError(f"{self.name}: uniformity must be finite, below or above zero, got {self.uniformity}")

    def learner(self, encoder: nn.Module, setting: Setting) -> Learner:
        if self.uniformity:
            require_two_images(self, setting)
        return SupervisedLearner(encoder, nn.Linear(setting.width, setting.classes), self.uniformity)


@final
class SupervisedLearner(Learner):
    """An encoder with a linear head."""

    def __init__(self, encoder: nn.Module, head: nn.Module, uniformity: float) -> None:
        super().__init__(encoder)
        self.head, self.uniformity = head, uniformity

    def forward(self, batch: Batch) -> Float[Tensor, ""]:
        assert batch.labels is not None
        codes = self.encoder(batch.views[0] if batch.attacked is None else batch.attacked)
        loss = cross_entropy(self.head(codes), batch.labels)
        return loss + self.uniformity * spread(codes) if self.uniformity else loss

    def loss_under_attack(self, batch: Batch) -> tuple[nn.Module, ObjectiveFunction]:
        labels = batch.labels
        assert labels is not None
        return nn.Sequential(self.encoder, self.head), lambda scores: cross_entropy(scores, labels, reduction="none")
