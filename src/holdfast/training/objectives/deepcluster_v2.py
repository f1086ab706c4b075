"""DeepCluster v2: before each epoch the images are clustered, and in it all views of an image say which cluster it is in.

With unit projections ``z`` of the views and, for each of several heads, unit centroids ``C`` and clusters ``a`` of the
images that spherical k-means finds among the projections of the epoch before:

    a_i = argmax_k z_i.C_k,   C_k <- sum_{i: a_i = k} z_i / |sum_{i: a_i = k} z_i|                (10 times)
    loss = mean over views, samples i and heads of  -log softmax(C z_i / temperature)_{a_i}

Caron et al. 2020, https://arxiv.org/abs/2006.09882, section 3 and appendix: the clustering of DeepCluster (Caron et al.
2018, https://arxiv.org/abs/1807.05520) with centroids for a classifier. The projections are remembered as training makes
them, those of the first view for one head and those of the second for the next, so that clustering needs no pass over the
images. With an adversary the attacked view is one more view, and the attack drives it out of its image's clusters.
"""

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
from holdfast.core.settings import require_not_negative, require_positive
from holdfast.objectives.base import ObjectiveFunction
from holdfast.training.components.heads import mlp
from holdfast.training.gathering import gathered
from holdfast.training.learner import Batch, Learner, Setting, TrainingObjective, codes_of_views

BLOCK = 8192
"""Images whose cosines with all centroids are held at once."""


def spherical_kmeans(
    units: Float[Tensor, "n d"], start: Float[Tensor, "k d"], iterations: int
) -> tuple[Float[Tensor, "k d"], Int[Tensor, "n"]]:
    """Return unit centroids and each vector's cluster; a cluster that loses all its vectors keeps its centroid.

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
    """Cross-entropy of all views with the clusters of the images, which are found anew before each epoch."""

    temperature: float = 0.1
    prototypes: int = 300
    """Clusters of each head, at most one for each image; 3000 in the paper."""
    heads: int = 3
    """Clusterings, from different random starts."""
    iterations: int = 10
    """Of k-means."""
    hidden: int = 512
    """Width of the projection's hidden layer; 2048 in the paper."""
    projection: int = 128
    """Width of the projection."""
    crops: int = 0
    """Small crops of each image; 6 in the paper."""
    name = "deepcluster-v2"

    def __post_init__(self) -> None:
        require_positive(self, "temperature", "prototypes", "heads", "iterations", "hidden", "projection")
        require_not_negative(self, "crops")

    def learner(self, encoder: nn.Module, setting: Setting) -> Learner:
        head = mlp((setting.width, self.hidden, self.projection), norm=True)
        return DeepClusterLearner(encoder, head, self, setting)


@final
class DeepClusterLearner(Learner):
    """An encoder with a projection, the last projection of every image from two views, and clusters of them."""

    def __init__(self, encoder: nn.Module, head: nn.Module, settings: DeepClusterV2, setting: Setting) -> None:
        super().__init__(encoder)
        self.head, self.settings, self.batch = head, settings, setting.batch
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
        moved = () if batch.attacked is None else (batch.attacked,)
        views = (*batch.views, *moved)
        projected = self.head(codes_of_views(self.encoder, views))
        first, second, *_ = normalize(projected.detach(), dim=1).chunk(len(views))
        self.seen = gathered(batch.rows), torch.stack([gathered(first), gathered(second)])
        return self.losses(projected, batch.rows.repeat(len(views))).mean()

    def losses(self, projected: Codes, rows: Int[Tensor, "b"]) -> Float[Tensor, "b"]:
        """Return the mean loss over the heads of projections of views of these images."""
        units = normalize(projected, dim=1) / self.settings.temperature
        losses = [
            cross_entropy(units @ centroids.to(units).T, clusters[rows], reduction="none")
            for centroids, clusters in zip(self.centroids, self.clusters, strict=True)
        ]
        return torch.stack(losses).mean(dim=0)

    def loss_under_attack(self, batch: Batch) -> tuple[nn.Module, ObjectiveFunction]:
        return nn.Sequential(self.encoder, self.head), lambda projected: self.losses(projected, batch.rows)

    @torch.no_grad()
    def before_epoch(self, epoch: int, codes: Callable[[], Float[Tensor, "n d"]]) -> None:
        if not self.memory.any():
            known = codes()
            # In batches, for the head's batch norm has seen nothing before.
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
