"""Objectives that cluster: SwAV and DeepCluster v2, with the prototypes they share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize, one_hot
from torch.nn.parallel import DistributedDataParallel

from holdfast.core.encoder import Codes
from holdfast.core.objective import ObjectiveFunction
from holdfast.core.settings import check_not_negative, check_positive
from holdfast.training.learner import Batch, HeadLearner, Learner, Setting, TrainingObjective, codes_of_views, mlp
from holdfast.training.processes import gathered, own_rows


class Prototypes(nn.Module):
    """Cosines of embeddings with learned directions.

    The weights are divided by their norms in the forward pass, as the authors of DINO do. Those of SwAV divide the
    weights themselves after each step.

    Args:
        width: Features of an embedding.
        count: Number of directions.
    """

    def __init__(self, width: int, count: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(count, width))

    def forward(self, codes: Codes) -> Float[Tensor, "b k"]:
        return normalize(codes, dim=1) @ normalize(self.weight, dim=1).T


# SwAV: the prototypes that one view of an image is assigned to are predicted from its other views.
#
# With cosines ``s`` of projected codes with K prototypes, and assignments ``Q`` of one whole view of all images of
# the batch at a time, which Sinkhorn and Knopp's iterations balance so that each prototype gets as many images:
#
#     Q = diag(u) exp(s / epsilon) diag(v),  rows sum to 1, columns to n / K
#     loss = mean over whole views x and views x' != x of  -sum_k Q(x)_k log softmax(s(x') / temperature)_k
#
# Caron et al. 2020, https://arxiv.org/abs/2006.09882, equations 2 to 5, with the queue of section 3.1 that lends
# small batches the projections of past ones. With an adversary the attacked view is one more view that predicts; the
# attack keeps it from predicting what the second view is assigned to.

Scores = Float[Tensor, "b k"]


@torch.no_grad()
def sinkhorn(scores: Scores, epsilon: float, iterations: int) -> Scores:
    """Balanced assignments: rows sum to 1, columns to almost the same.

    Args:
        scores: Scores of images and prototypes, shape (n, k).
        epsilon: Softness of the assignments, above 0.
        iterations: Iterations of Sinkhorn and Knopp.

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
    """Temperature of the predictions."""
    epsilon: float = 0.05
    """Softness of assignments (entropy weight)."""
    iterations: int = 3
    """Iterations of the Sinkhorn-Knopp balancing."""
    prototypes: int = 300
    """Number of prototypes; 3000 in the paper."""
    hidden: int = 512
    """Width of the projection's hidden layer; 2048 in the paper."""
    projection: int = 128
    """Width of the projection."""
    queue: int = 0
    """Past images that are assigned beside the batch; 3840 in the paper for small batches."""
    queue_epoch: int = 15
    """Epoch, from 0, in which the queue begins to fill; it is used once it is full."""
    frozen_epochs: int = 1
    """Epochs in which the prototypes stay fixed."""
    crops: int = 0
    """Small crops of each image, which only predict; 6 in the paper."""
    name = "swav"

    def __post_init__(self) -> None:
        check_positive(self, "temperature", "epsilon", "iterations", "prototypes", "hidden", "projection")
        check_not_negative(self, "queue", "queue_epoch", "frozen_epochs", "crops")

    def learner(self, encoder: nn.Module, setting: Setting) -> Learner:
        head = mlp((setting.width, self.hidden, self.projection), norm=True)
        return SwAVLearner(encoder, head, self)


@final
class SwAVLearner(HeadLearner):
    """Encoder with projection, prototypes and a queue of projections, shape (2, queue, d)."""

    settings: SwAV

    def __init__(self, encoder: nn.Module, head: nn.Module, settings: SwAV) -> None:
        super().__init__(encoder, head, settings)
        self.prototypes = Prototypes(settings.projection, settings.prototypes)
        self.queue: Tensor
        self.register_buffer("queue", torch.zeros(2, settings.queue, settings.projection))
        self.epoch, self.queued = 0, 0  # no buffers, for reading one of a GPU waits for it
        self.projected = self.queue

    def forward(self, batch: Batch) -> Float[Tensor, ""]:
        views = batch.seen()
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
        """Assignments of this process's images, from one of their whole views.

        Args:
            place: Number of the view, 0 or 1.
        """
        everybody = gathered(scores.detach())
        if self.queued >= self.settings.queue:
            everybody = torch.cat([everybody, self.prototypes(self.queue[place]).to(scores)])
        epsilon, iterations = self.settings.epsilon, self.settings.iterations
        assignments = sinkhorn(everybody.float() if scores.itemsize < 4 else everybody, epsilon, iterations)
        return assignments[own_rows(len(scores), scores.device)]

    def losses(self, scores: Scores, assignments: Scores) -> Float[Tensor, "b"]:
        return cross_entropy(scores / self.settings.temperature, assignments, reduction="none")

    def loss_under_attack(self, batch: Batch) -> tuple[nn.Module, ObjectiveFunction]:
        network = nn.Sequential(self.encoder, self.head, self.prototypes)
        with torch.no_grad():
            assignments = self.assign(network(batch.views[1]), 1)
        return network, lambda scores: self.losses(scores, assignments)

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


# DeepCluster v2: before each epoch the images are clustered, and in it all views of an image say which cluster it is
# in.
#
# With unit projections ``z`` of the views and, for each of several heads, unit centroids ``C`` and clusters ``a`` of
# the images that spherical k-means finds among the projections of the epoch before:
#
#     a_i = argmax_k z_i.C_k,   C_k <- sum_{i: a_i = k} z_i / |sum_{i: a_i = k} z_i|                (10 times)
#     loss = mean over views, samples i and heads of  -log softmax(C z_i / temperature)_{a_i}
#
# Caron et al. 2020, https://arxiv.org/abs/2006.09882, section 3 and appendix: the clustering of DeepCluster (Caron et
# al. 2018, https://arxiv.org/abs/1807.05520) with centroids for a classifier. The projections are remembered as
# training makes them, those of the first view for one head and those of the second for the next, so that clustering
# needs no pass over the images. With an adversary the attacked view is one more view, and the attack drives it out of
# its image's clusters.

BLOCK = 8192
"""Images whose cosines with all centroids are held at once."""


def spherical_kmeans(
    units: Float[Tensor, "n d"], start: Float[Tensor, "k d"], iterations: int
) -> tuple[Float[Tensor, "k d"], Int[Tensor, "n"]]:
    """Unit centroids and cluster of each vector; empty clusters keep their centroid.

    Args:
        units: Unit vectors, shape (n, d).
        start: Unit centroids to start from, shape (k, d).

    Example:
        >>> around = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, -1.0]])
        >>> centroids, clusters = spherical_kmeans(around, around[1:], iterations=5)
        >>> clusters.tolist()
        [0, 0, 1]
    """
    centroids = start
    for _ in range(iterations):
        sums = torch.zeros_like(centroids)
        for part in units.split(BLOCK):
            # A product, for index_add_ adds in any order on a GPU, and processes must agree.
            sums += one_hot((part @ centroids.T).argmax(dim=1), len(centroids)).to(part).T @ part
        occupied = sums.norm(dim=1, keepdim=True) > 0
        centroids = torch.where(occupied, normalize(sums, dim=1), centroids)
    return centroids, torch.cat([(part @ centroids.T).argmax(dim=1) for part in units.split(BLOCK)])


@final
@dataclass(frozen=True)
class DeepClusterV2(TrainingObjective):
    """Cross-entropy of all views with clusters of the images, found before each epoch."""

    temperature: float = 0.1
    """Temperature of the cosines with centroids."""
    prototypes: int = 300
    """Clusters of each head, at most one for each image; 3000 in the paper."""
    heads: int = 3
    """Number of clusterings, from different random starts."""
    iterations: int = 10
    """Iterations of k-means."""
    hidden: int = 512
    """Width of the projection's hidden layer; 2048 in the paper."""
    projection: int = 128
    """Width of the projection."""
    crops: int = 0
    """Small crops of each image; 6 in the paper."""
    name = "deepcluster-v2"

    def __post_init__(self) -> None:
        check_positive(self, "temperature", "prototypes", "heads", "iterations", "hidden", "projection")
        check_not_negative(self, "crops")

    def learner(self, encoder: nn.Module, setting: Setting) -> Learner:
        head = mlp((setting.width, self.hidden, self.projection), norm=True)
        return DeepClusterLearner(encoder, head, self, setting)


@final
class DeepClusterLearner(HeadLearner):
    """Encoder with projection, latest projections of every image from two views, and clusters."""

    settings: DeepClusterV2

    def __init__(self, encoder: nn.Module, head: nn.Module, settings: DeepClusterV2, setting: Setting) -> None:
        super().__init__(encoder, head, settings)
        self.batch = setting.batch
        count, width = min(settings.prototypes, setting.samples), settings.projection
        self.memory: Tensor
        self.centroids: Tensor
        self.clusters: Tensor
        self.seed: Tensor
        self.register_buffer("memory", torch.zeros(2, setting.samples, width))
        self.register_buffer("centroids", torch.zeros(settings.heads, count, width))
        self.register_buffer("clusters", torch.zeros(settings.heads, setting.samples, dtype=torch.long))
        self.register_buffer("seed", torch.randint(2**31, ()))
        self.seen = torch.zeros(0, dtype=torch.long), self.memory[:, :0]
        # All processes keep the same ones; otherwise they would be sent around in each step.
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(self, ["memory", "clusters"])

    def forward(self, batch: Batch) -> Float[Tensor, ""]:
        views = batch.seen()
        projected = self.head(codes_of_views(self.encoder, views))
        first, second, *_ = normalize(projected.detach(), dim=1).chunk(len(views))
        self.seen = gathered(batch.rows), torch.stack([gathered(first), gathered(second)])
        return self.losses(projected, batch.rows.repeat(len(views))).mean()

    def losses(self, projected: Codes, rows: Int[Tensor, "b"]) -> Float[Tensor, "b"]:
        """Loss of each image, as a mean over the heads.

        Args:
            projected: Projections of views, shape (b, d).
            rows: Position of each image in the training set, shape (b,).
        """
        units = normalize(projected, dim=1) / self.settings.temperature
        losses = [
            cross_entropy(units @ centroids.to(units).T, clusters[rows], reduction="none")
            for centroids, clusters in zip(self.centroids, self.clusters, strict=True)
        ]
        return torch.stack(losses).mean(dim=0)

    def loss_under_attack(self, batch: Batch) -> tuple[nn.Module, ObjectiveFunction]:
        return self.network, lambda projected: self.losses(projected, batch.rows)

    @torch.no_grad()
    def before_epoch(self, epoch: int, codes: Callable[[], Float[Tensor, "n d"]]) -> None:
        if not self.memory.any():
            known = codes()
            # In batches, because the head's batch norm has seen nothing before.
            parts = known.tensor_split(max(1, len(known) // self.batch))
            self.memory.copy_(normalize(torch.cat([self.head(part) for part in parts]), dim=1))
        generator = torch.Generator().manual_seed(int(self.seed) + epoch)
        for head, centroids in enumerate(self.centroids):
            units = self.memory[head % 2]
            start = units[torch.randperm(len(units), generator=generator)[: len(centroids)].to(units.device)]
            means, self.clusters[head] = spherical_kmeans(units, start, self.settings.iterations)
            centroids.copy_(means)

    def after_step(self, progress: float) -> None:
        rows, projected = self.seen
        self.memory[:, rows] = projected.to(self.memory)
