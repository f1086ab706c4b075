"""DINO: a student predicts from each view what a teacher, the average of past students, predicts from another view.

With scores ``s`` of the student and ``t`` of the teacher, cosines of projected embeddings with K prototypes, and the centre
``c`` of the teacher's scores:

    P_t = softmax((t - c) / teacher_temperature),   P_s = softmax(s / temperature)
    loss = mean over whole views x and views x' != x of  -sum_k P_t(x)_k log P_s(x')_k
    teacher <- m teacher + (1 - m) student,   c <- center_momentum c + (1 - center_momentum) mean t

where m rises from ``momentum`` to 1 along half a cosine. Caron et al. 2021, https://arxiv.org/abs/2104.14294, section
3.1. A loss that stays at ln K is a collapse: the teacher predicts the same from every view. With an adversary, the
attacked view is one more view of the student, attacked away from the teacher's prediction of the second view.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from holdfast.core.objective import ObjectiveFunction
from holdfast.core.settings import check_fraction, check_not_negative, check_positive
from holdfast.training.learner import (
    Batch,
    HeadLearner,
    Learner,
    Setting,
    TrainingObjective,
    codes_of_views,
    follow,
    frozen_copy,
    rising,
)
from holdfast.training.objectives.clustering import Prototypes
from holdfast.training.processes import gathered

Scores = Float[Tensor, "b k"]


@final
@dataclass(frozen=True)
class DINO(TrainingObjective):
    """Cross-entropy between the prototypes of a teacher, centred and sharpened, and a student."""

    temperature: float = 0.1
    """Temperature of the student."""
    teacher_temperature: float = 0.07
    """Temperature of the teacher, from `warmup_epochs` on; larger values are unstable."""
    first_temperature: float = 0.04
    """Temperature of the teacher in the first epoch; it rises linearly."""
    warmup_epochs: int = 30
    """Epochs until the teacher reaches `teacher_temperature`."""
    momentum: float = 0.996
    """Momentum of the teacher at the start; it rises to 1 along half a cosine."""
    center_momentum: float = 0.9
    """Momentum of the mean that is subtracted from the teacher's scores."""
    prototypes: int = 1024
    """Number of prototypes; 65536 in the paper, 4096 is usual for CIFAR-10."""
    hidden: int = 512
    """Width of the projection's two hidden layers; 2048 in the paper."""
    projection: int = 256
    """Width of the projection."""
    norm: bool = False
    """True for batch norm before the projection's nonlinearities, an option of the authors."""
    frozen_epochs: int = 1
    """Epochs in which the student's prototypes stay fixed."""
    crops: int = 0
    """Small crops of each image; 8 to 10 in the paper."""
    name = "dino"

    def __post_init__(self) -> None:
        check_positive(self, "temperature", "teacher_temperature", "first_temperature", "prototypes", "hidden")
        check_positive(self, "projection")
        check_fraction(self, "momentum", "center_momentum")
        check_not_negative(self, "warmup_epochs", "frozen_epochs", "crops")

    def learner(self, encoder: nn.Module, setting: Setting) -> Learner:
        layers: list[nn.Module] = []
        for width in (setting.width, self.hidden):
            layers += [nn.Linear(width, self.hidden), *([nn.BatchNorm1d(self.hidden)] if self.norm else []), nn.GELU()]
        layers += [nn.Linear(self.hidden, self.projection), Prototypes(self.projection, self.prototypes)]
        head = nn.Sequential(*layers)
        for layer in head:
            if isinstance(layer, nn.Linear):
                # With torch's own biases, all images have almost the same scores, and the first epochs end in a collapse.
                nn.init.trunc_normal_(layer.weight, std=0.02)
                nn.init.zeros_(layer.bias)
        return DINOLearner(encoder, head, self)

    def teacher_temperature_in(self, epoch: int) -> float:
        """Return the teacher's temperature in this epoch.

        Example:
            >>> [round(DINO().teacher_temperature_in(epoch), 3) for epoch in (0, 15, 30, 99)]
            [0.04, 0.055, 0.07, 0.07]
        """
        share = min(epoch / self.warmup_epochs, 1.0) if self.warmup_epochs else 1.0
        return self.first_temperature + share * (self.teacher_temperature - self.first_temperature)


@final
class DINOLearner(HeadLearner):
    """A student, the encoder with a head, and its teacher."""

    head: nn.Sequential
    settings: DINO

    def __init__(self, encoder: nn.Module, head: nn.Sequential, settings: DINO) -> None:
        super().__init__(encoder, head, settings)
        self.teacher = frozen_copy(self.network)
        self.center: Tensor
        self.register_buffer("center", torch.zeros(settings.prototypes))
        self.epoch = 0  # no buffer, for reading one of a GPU waits for it
        self.teacher_mean = torch.zeros(settings.prototypes)

    def forward(self, batch: Batch) -> Float[Tensor, ""]:
        views = batch.seen()
        student = self.head(codes_of_views(self.encoder, views)).chunk(len(views))
        with torch.no_grad():
            teacher = self.teacher(torch.cat(batch.views[:2]))
        self.teacher_mean = gathered(teacher).mean(dim=0)
        losses = [
            self.losses(scores, target).mean()
            for place, target in enumerate(self.targets(teacher).chunk(2))
            for other, scores in enumerate(student)
            if other != place
        ]
        return torch.stack(losses).mean()

    def targets(self, teacher: Scores) -> Scores:
        """Probabilities of the teacher: centred, so that no prototype dominates, and sharpened."""
        temperature = self.settings.teacher_temperature_in(self.epoch)
        return ((teacher - self.center) / temperature).softmax(dim=1)

    def losses(self, student: Scores, target: Scores) -> Float[Tensor, "b"]:
        return cross_entropy(student / self.settings.temperature, target, reduction="none")

    def loss_under_attack(self, batch: Batch) -> tuple[nn.Module, ObjectiveFunction]:
        with torch.no_grad():
            target = self.targets(self.teacher(batch.views[1]))
        return self.network, lambda scores: self.losses(scores, target)

    def before_epoch(self, epoch: int, codes: Callable[[], Float[Tensor, "n d"]]) -> None:
        self.epoch = epoch

    def get_extra_state(self) -> Tensor:
        """Return what checkpoints hold beside weights and buffers."""
        return torch.tensor(self.epoch)

    def set_extra_state(self, state: Tensor) -> None:
        """Go on from what a checkpoint holds."""
        self.epoch = int(state)

    def before_step(self, progress: float) -> None:
        if self.epoch < self.settings.frozen_epochs:
            self.head[-1].weight.grad = None

    def after_step(self, progress: float) -> None:
        momentum = rising(self.settings.momentum, progress)
        follow(self.teacher.parameters(), self.network.parameters(), momentum)
        self.center.lerp_(self.teacher_mean.to(self.center), 1 - self.settings.center_momentum)
