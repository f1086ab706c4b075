"""MoCo v2: a query finds its key, made by a slowly moving copy of the network, among a queue of keys of earlier batches.

With queries ``q_i`` of the first view, keys ``k_i`` of the second and the ``n_j`` of the queue, all of length 1:

    loss = mean_i -log( exp(q_i.k_i / T) / (exp(q_i.k_i / T) + sum_j exp(q_i.n_j / T)) )

    key network <- m key network + (1 - m) query network;    the oldest keys of the queue give way to k

He et al. 2020, https://arxiv.org/abs/1911.05722, algorithm 1; head and temperature of Chen et al. 2020,
https://arxiv.org/abs/2003.04297. With an adversary the queries are [clean; attacked], their keys [k; k], and clean keys
alone enter the queue (Petrov and Kwiatkowska 2022, https://arxiv.org/abs/2210.04076, listing 1).

Batches are not shuffled. On one device that changes no batch's statistics, so it would not keep batch norm from telling
keys of this batch from those of the queue: that leak is not prevented. An encoder without batch norm has none.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from holdfast.core.encoder import Codes
from holdfast.core.errors import HoldfastError, HoldfastWarning
from holdfast.core.settings import require_not_negative, require_positive, require_share
from holdfast.objectives.base import ObjectiveFunction
from holdfast.training.components.heads import follow, frozen_copy, mlp
from holdfast.training.gathering import gathered
from holdfast.training.learner import Batch, Learner, Setting, TrainingObjective


@final
@dataclass(frozen=True)
class MoCoV2(TrainingObjective):
    """InfoNCE against a queue of keys from a copy of the network that follows with a momentum."""

    temperature: float = 0.2
    momentum: float = 0.999
    queue: int = 4096
    """Keys that are kept, a multiple of the batch; the paper's number is 65536."""
    hidden: int = 0
    """Width of the projection's hidden layer; 0 is that of the codes."""
    projection: int = 128
    """Width of the projection."""
    name = "moco-v2"

    def __post_init__(self) -> None:
        require_share(self, "momentum")
        require_positive(self, "temperature", "queue", "projection")
        require_not_negative(self, "hidden")

    def learner(self, encoder: nn.Module, setting: Setting) -> Learner:
        if self.queue % setting.batch:
            fitting = max(1, round(self.queue / setting.batch)) * setting.batch
            raise HoldfastError(
                f"moco-v2: the queue must hold whole batches, and {self.queue} is no multiple of {setting.batch}; "
                f"set queue={fitting}, or change the batch"
            )
        if self.queue > setting.samples:
            warnings.warn(
                f"moco-v2: a queue of {self.queue} keys holds older keys of the very images it is compared with, for "
                f"there are only {setting.samples}; set queue to a smaller multiple of {setting.batch}",
                HoldfastWarning,
                stacklevel=2,
            )
        return MoCoV2Learner(encoder, mlp((setting.width, self.hidden or setting.width, self.projection)), self)


@final
class MoCoV2Learner(Learner):
    """An encoder with a projection, a copy of both, and the copy's latest keys."""

    def __init__(self, encoder: nn.Module, head: nn.Module, settings: MoCoV2) -> None:
        super().__init__(encoder)
        self.head, self.settings = head, settings
        self.key_network = frozen_copy(self.query_network)
        self.queue: Tensor
        self.register_buffer("queue", normalize(torch.randn(settings.queue, settings.projection), dim=1))
        self.oldest: Tensor
        self.register_buffer("oldest", torch.zeros((), dtype=torch.long))
        self.latest: Codes | None = None  # until the step is done and they enter the queue

    @property
    def query_network(self) -> nn.Sequential:
        """Return encoder and projection."""
        return nn.Sequential(self.encoder, self.head)

    def forward(self, batch: Batch) -> Float[Tensor, ""]:
        views = (batch.views[0], *(() if batch.attacked is None else (batch.attacked,)))
        self.latest = self.keys(batch)
        loss = self.contrast(self.latest)
        return torch.cat([loss(self.query_network(view)) for view in views]).mean()

    @torch.no_grad()
    def keys(self, batch: Batch) -> Codes:
        """Return the keys of the second view."""
        return normalize(self.key_network(batch.views[1]), dim=1)

    def contrast(self, keys: Codes) -> ObjectiveFunction:
        """Return each query's loss against its key and the queue."""

        def loss(queries: Codes) -> Float[Tensor, "b"]:
            queries = normalize(queries, dim=1)
            positives = (queries * keys).sum(dim=1, keepdim=True)
            logits = torch.cat([positives, queries @ self.queue.T], dim=1) / self.settings.temperature
            return cross_entropy(logits, torch.zeros_like(logits[:, 0], dtype=torch.long), reduction="none")

        return loss

    def loss_under_attack(self, batch: Batch) -> tuple[nn.Module, ObjectiveFunction]:
        return self.query_network, self.contrast(self.keys(batch))

    @torch.no_grad()
    def after_step(self, progress: float) -> None:
        follow(self.key_network.parameters(), self.query_network.parameters(), self.settings.momentum)
        assert self.latest is not None
        keys = gathered(self.latest)
        rows = (self.oldest + torch.arange(len(keys), device=keys.device)) % len(self.queue)
        self.queue[rows] = keys.to(self.queue.dtype)
        self.oldest.copy_((self.oldest + len(keys)) % len(self.queue))
        self.latest = None
