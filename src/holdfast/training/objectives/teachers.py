"""Objectives with a teacher: distillation from the starting encoder, and labels."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite, log
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss, normalize

from holdfast.core.encoder import Codes
from holdfast.core.errors import OutOfRange
from holdfast.core.objective import ObjectiveFunction
from holdfast.core.settings import check_not_negative
from holdfast.training.learner import (
    Batch,
    Learner,
    Setting,
    TrainingObjective,
    check_two_images,
    codes_of,
    frozen_copy,
)
from holdfast.training.processes import gathered

# Distillation: an encoder keeps the codes of what it was when training began, on attacked images, too.
#
# With the starting encoder ``f0``, frozen, views ``x`` and what an adversary made of them ``x'``:
#
#     loss = ( |f0(x) - f(x')|^2 + clean * |f0(x) - f(x)|^2 ) / ((1 + clean) d),  averaged over the batch
#
# It asks nothing of an encoder but its codes, so it hardens any. ``clean=0`` is the loss of UNTAR and ``clean=1``
# that of TAR for encoders without a contrastive loss (Petrov and Kwiatkowska 2022, https://arxiv.org/abs/2210.04076,
# section 4.4 and listing 3), with the adversaries of these names; ``clean=0`` with an adversary on the loss is FARE
# (Schlarmann et al. 2024, https://arxiv.org/abs/2402.12336; theirs is not divided by ``d``).


@final
@dataclass(frozen=True)
class Distillation(TrainingObjective):
    """Squared distance from the embeddings of the starting encoder.

    With an adversary, it is the distance of the attacked view.
    """

    clean: float = 0.0
    """Weight of the clean view's term, relative to the attacked view's."""
    name = "distillation"
    views = 1

    def __post_init__(self) -> None:
        check_not_negative(self, "clean")

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
        """Embeddings of the view by the starting encoder."""
        with torch.no_grad():
            return codes_of(self.original, batch.views[0])


# Supervised training, with or without a pull towards a uniform spread of the codes.
#
#     loss = CE(W z, y) + uniformity * log mean_{i<j} exp(-2 |u_i - u_j|^2),   u = z / |z|
#
# The second term: Wang and Isola 2020, https://arxiv.org/abs/2005.10242; as a regulariser of supervised training with
# uniformity 0.01 (more uniform) or -0.01 (less): Zhong et al. 2022, https://arxiv.org/abs/2206.05259, appendix A.2.
# With an adversary on the loss, the attacked view takes the place of the clean one (Madry et al. 2018,
# https://arxiv.org/abs/1706.06083).


def spread(codes: Codes) -> Float[Tensor, ""]:
    """Uniformity of the embeddings of all processes; lower is more uniform.

    It is ``log mean_{i<j} exp(-2 |u_i - u_j|^2)``.

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
    """Cross-entropy of a linear head on one view."""

    uniformity: float = 0.0
    """Weight of the uniformity term: 0.01 spreads embeddings more evenly, -0.01 less (Zhong et al. 2022)."""
    name = "supervised"
    views = 1
    needs_labels = True

    def __post_init__(self) -> None:
        if not isfinite(self.uniformity):
            raise OutOfRange(f"{self.name}: uniformity", self.uniformity, "finite and not 0")

    def learner(self, encoder: nn.Module, setting: Setting) -> Learner:
        if self.uniformity:
            check_two_images(self, setting)
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
