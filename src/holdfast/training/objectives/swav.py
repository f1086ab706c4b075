"""SwAV: the prototypes that one view of an image is assigned to are predicted from its other views.

With cosines ``s`` of projected codes with K prototypes, and assignments ``Q`` of one whole view of all images of the batch
at a time, which Sinkhorn and Knopp's iterations balance so that each prototype gets as many images:

    Q = diag(u) exp(s / epsilon) diag(v),  rows sum to 1, columns to n / K
    loss = mean over whole views x and views x' != x of  -sum_k Q(x)_k log softmax(s(x') / temperature)_k

Caron et al. 2020, https://arxiv.org/abs/2006.09882, equations 2 to 5, with the queue of section 3.1 that lends small batches
the projections of past ones. With an adversary the attacked view is one more view that predicts; the attack keeps it from
predicting what the second view is assigned to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from holdfast.core.encoder import Codes
from holdfast.core.settings import require_not_negative, require_positive
from holdfast.objectives.base import ObjectiveFunction
from holdfast.training.components.heads import mlp
from holdfast.training.components.prototypes import Prototypes
from holdfast.training.gathering import gathered, own_rows
from holdfast.training.learner import Batch, Learner, Setting, TrainingObjective, codes_of_views

Scores = Float[Tensor, "b k"]


@torch.no_grad()
def sinkhorn(scores: Scores, epsilon: float, iterations: int) -> Scores:
    """Return assignments: each row sums to 1, and columns to almost the same.

    Example:
        >>> sinkhorn(torch.tensor([[1.0, 0.5], [1.0, 0.0]]), epsilon=0.1, iterations=50).round(decimals=2)
        tensor([[0.0800, 0.9200],
                [0.9200, 0.0800]])
    """
    logs = scores / epsilon
    for _ in range(iterations):
        logs = logs - logs.logsumexp(dim=0)  # sums of exponentials would be 0 for prototypes far from all images
        logs = logs - logs.logsumexp(dim=1, keepdim=True)
    return logs.exp()


@final
@dataclass(frozen=True)
class SwAV(TrainingObjective):
    """Swapped prediction of balanced assignments to prototypes."""

    temperature: float = 0.1
    epsilon: float = 0.05
    """How soft assignments are."""
    iterations: int = 3
    """Of Sinkhorn and Knopp's."""
    prototypes: int = 300
    """K; 3000 in the paper."""
    hidden: int = 512
    """Width of the projection's hidden layer; 2048 in the paper."""
    projection: int = 128
    """Width of the projection."""
    queue: int = 0
    """Past images that are assigned beside those of the batch; 3840 in the paper where batches are small."""
    queue_epoch: int = 15
    """The epoch, from 0, in which the queue begins to fill; it is used once it is full."""
    frozen_epochs: int = 1
    """Epochs in which the prototypes stay as they are."""
    crops: int = 0
    """Small crops of each image, which predict alone; 6 in the paper."""
    name = "swav"

    def __post_init__(self) -> None:
        require_positive(self, "temperature", "epsilon", "iterations", "prototypes", "hidden", "projection")
        require_not_negative(self, "queue", "queue_epoch", "frozen_epochs", "crops")

    def learner(self, encoder: nn.Module, setting: Setting) -> Learner:
        head = mlp((setting.width, self.hidden, self.projection), norm=True)
        return SwAVLearner(encoder, head, self)


@final
class SwAVLearner(Learner):
    """An encoder with a projection, prototypes and a queue of projections, shape (2, queue, d)."""

    def __init__(self, encoder: nn.Module, head: nn.Module, settings: SwAV) -> None:
        super().__init__(encoder)
        self.head, self.settings = head, settings
        self.prototypes = Prototypes(settings.projection, settings.prototypes)
        self.queue: Tensor
        self.register_buffer("queue", torch.zeros(2, settings.queue, settings.projection))
        self.epoch, self.queued = 0, 0  # no buffers, for reading one of a GPU waits for it
        self.projected = self.queue

    def forward(self, batch: Batch) -> Float[Tensor, ""]:
        moved = () if batch.attacked is None else (batch.attacked,)
        views = (*batch.views, *moved)
        projected = normalize(self.head(codes_of_views(self.encoder, views)), dim=1).chunk(len(views))
        self.projected = torch.stack([gathered(view.detach()) for view in projected[:2]])
        scores = [self.prototypes(view) for view in projected]
        losses = [
            self.losses(view, assignments).mean()
            for place, assignments in enumerate(self.assign(scores[place], place) for place in (0, 1))
            for other, view in enumerate(scores)
            if other != place
        ]
        return torch.stack(losses).mean()

    @torch.no_grad()
    def assign(self, scores: Scores, place: int) -> Scores:
        """Return the assignments of this process's images, from their whole view at this ``place``."""
        everybody = gathered(scores.detach())
        if self.queued >= self.settings.queue:
            everybody = torch.cat([everybody, self.prototypes(self.queue[place]).to(scores)])
        assignments = sinkhorn(everybody.float() if scores.itemsize < 4 else everybody, *self.balance)
        return assignments[own_rows(len(scores), scores.device)]

    @property
    def balance(self) -> tuple[float, int]:
        return self.settings.epsilon, self.settings.iterations

    def losses(self, scores: Scores, assignments: Scores) -> Float[Tensor, "b"]:
        return cross_entropy(scores / self.settings.temperature, assignments, reduction="none")

    def loss_under_attack(self, batch: Batch) -> tuple[nn.Module, ObjectiveFunction]:
        network = nn.Sequential(self.encoder, self.head, self.prototypes)
        with torch.no_grad():
            assignments = self.assign(network(batch.views[1]), 1)

        def loss(scores: Codes) -> Float[Tensor, "b"]:
            return self.losses(scores, assignments)

        return network, loss

    def before_epoch(self, epoch: int, codes: Callable[[], Float[Tensor, "n d"]]) -> None:
        self.epoch = epoch

    def get_extra_state(self) -> Tensor:
        """Return what checkpoints hold beside weights and buffers."""
        return torch.tensor([self.epoch, self.queued])

    def set_extra_state(self, state: Tensor) -> None:
        """Go on from what a checkpoint holds."""
        self.epoch, self.queued = state.tolist()

    def before_step(self, progress: float) -> None:
        if self.epoch < self.settings.frozen_epochs:
            self.prototypes.weight.grad = None

    def after_step(self, progress: float) -> None:
        if self.settings.queue and self.epoch >= self.settings.queue_epoch:
            newest = torch.cat([self.projected.to(self.queue), self.queue], dim=1)
            self.queue.copy_(newest[:, : self.settings.queue])
            self.queued = min(self.queued + self.projected.shape[1], self.settings.queue)
