"""Contrastive objectives: InfoNCE, SimCLR, MoCo v2 and v3, and supervised contrastive learning."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, log_softmax, nll_loss, normalize

from holdfast.core.encoder import Codes
from holdfast.core.errors import Conflict, HoldfastError, HoldfastWarning
from holdfast.core.objective import ObjectiveFunction
from holdfast.core.settings import check_fraction, check_not_negative, check_positive
from holdfast.training.learner import (
    Batch,
    HeadLearner,
    Learner,
    Setting,
    TrainingObjective,
    check_two_images,
    follow,
    frozen_copy,
    mlp,
)
from holdfast.training.objectives.siamese import SiameseLearner
from holdfast.training.processes import gathered, own_rows

# InfoNCE: a query finds its own key among the keys of all images of the batch.
#
#     loss_i = -log( exp(q_i.k_i / T) / sum_j exp(q_i.k_j / T) ),    q, k of length 1
#
# van den Oord et al. 2018, https://arxiv.org/abs/1807.03748, equation 4.


def info_nce(keys: Codes, temperature: float) -> ObjectiveFunction:
    """InfoNCE of each query as a function of the queries, against keys of all processes.

    Args:
        keys: Key of each query, shape (b, d).
        temperature: Temperature of the softmax, above 0.

    Example:
        >>> import torch
        >>> keys = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
        >>> info_nce(keys, temperature=0.1)(keys)
        tensor([4.5...e-05, 4.5...e-05])
    """
    everybody, rows = gathered(normalize(keys, dim=1)), own_rows(len(keys), keys.device)
    return lambda queries: cross_entropy(normalize(queries, dim=1) @ everybody.T / temperature, rows, reduction="none")


# SimCLR: the views of an image are alike, and unlike the views of all other images of the batch.
#
# With unit projections ``z`` of the ``V n`` views of ``n`` images, temperature ``T`` and the other views ``P(i)`` of
# view ``i``'s image:
#
#     loss = mean_i sum_{p in P(i)} -log( exp(z_i.z_p / T) / sum_{k != i} exp(z_i.z_k / T) )       (NT-Xent)
#
# Chen et al. 2020, https://arxiv.org/abs/2002.05709, equation 1, for two views. With an adversary that climbs the
# loss it is RoCL (Kim, Tack and Hwang 2020, https://arxiv.org/abs/2006.07589): that sum over both views and the
# attacked one, all ``3 n`` in one denominator, and 1/256 of NT-Xent between attacked and second view, as in its
# authors' program (https://github.com/Kim-Minseon/RoCL). Two departures from the program: gradients pass through both
# sides of a product, where there the side that an anchor is compared with is held still; and its attack has the other
# attacked images among the negatives, where this one is of each image alone.
#
# ``v2`` is the head of SimCLR v2 (Chen et al. 2020, https://arxiv.org/abs/2006.10029): linear layers without bias, each with
# batch norm. The last norm has no weights, where theirs has a scale.

EXTRA = 1 / 256
"""RoCL's weight of the additional term between the attacked view and the second one."""


def nt_xent(views: Sequence[Codes], temperature: float) -> Float[Tensor, ""]:
    """NT-Xent among views: anchors of this process, negatives of all processes.

    Args:
        views: Embeddings of each view, each of shape (b, d).
        temperature: Temperature of the softmax, above 0.
    """
    units = [normalize(view, dim=1) for view in views]
    everybody = torch.cat([gathered(view) for view in units])
    rows, count = own_rows(len(units[0]), units[0].device), len(everybody) // len(units)
    losses = []
    for place, view in enumerate(units):
        logits = view @ everybody.T / temperature
        logits = logits.scatter(1, (rows + place * count)[:, None], -torch.inf)
        chances = logits.log_softmax(dim=1)
        losses += [nll_loss(chances, rows + other * count) for other in range(len(units)) if other != place]
    return torch.stack(losses).sum() / len(units)


@final
@dataclass(frozen=True)
class SimCLR(TrainingObjective):
    """NT-Xent between the projections of two views; with an adversary on the loss, RoCL."""

    temperature: float = 0.5
    """Temperature of the cosines; 0.5 is the paper's best on CIFAR-10, and RoCL's."""
    hidden: int = 0
    """Width of the projection's hidden layers; 0: embedding width + 200, as in RoCL, or embedding width with `v2`."""
    projection: int = 0
    """Width of the projection; 0: that of the embeddings, or 128 with `v2`."""
    head: bool = True
    """True for a projection; without one, the loss is on embeddings, as certified training needs."""
    v2: bool = False
    """True for SimCLR v2's projection: three layers, each with batch norm."""
    name = "simclr"

    def __post_init__(self) -> None:
        check_positive(self, "temperature")
        check_not_negative(self, "hidden", "projection")
        if self.v2 and not self.head:
            raise HoldfastError("simclr: v2 is a projection, got head=false. Leave one of them out.")

    def learner(self, encoder: nn.Module, setting: Setting) -> Learner:
        check_two_images(self, setting)
        width = setting.width
        if not self.head:
            head: nn.Module = nn.Identity()
        elif self.v2:
            hidden = self.hidden or width
            head = mlp((width, hidden, hidden, self.projection or 128), norm=True, last_norm=True)
        else:
            head = mlp((width, self.hidden or width + 200, self.projection or width))
        return SimCLRLearner(encoder, head, self)


@final
class SimCLRLearner(HeadLearner):
    """An encoder with a projection."""

    settings: SimCLR

    def forward(self, batch: Batch) -> Float[Tensor, ""]:
        views, temperature = batch.seen(2), self.settings.temperature
        # One pass, so that batch norm sees one batch.
        parts = self.network(torch.cat(views)).chunk(len(views))
        loss = nt_xent(parts, temperature)
        return loss if batch.attacked is None else loss + EXTRA * nt_xent((parts[2], parts[1]), temperature)

    def loss_under_attack(self, batch: Batch) -> tuple[nn.Module, ObjectiveFunction]:
        with torch.no_grad():
            return self.network, info_nce(self.network(batch.views[1]), self.settings.temperature)


# MoCo v2: a query finds its key, made by a slowly moving copy of the network, among a queue of keys of earlier batches.
#
# With queries ``q_i`` of the first view, keys ``k_i`` of the second and the ``n_j`` of the queue, all of length 1:
#
#     loss = mean_i -log( exp(q_i.k_i / T) / (exp(q_i.k_i / T) + sum_j exp(q_i.n_j / T)) )
#
#     key network <- m key network + (1 - m) query network;    the oldest keys of the queue give way to k
#
# He et al. 2020, https://arxiv.org/abs/1911.05722, algorithm 1; head and temperature of Chen et al. 2020,
# https://arxiv.org/abs/2003.04297. With an adversary the queries are [clean; attacked], their keys [k; k], and clean
# keys alone enter the queue (Petrov and Kwiatkowska 2022, https://arxiv.org/abs/2210.04076, listing 1).
#
# Batches are not shuffled. On one device that changes no batch's statistics, so it would not keep batch norm from
# telling keys of this batch from those of the queue: that leak is not prevented. An encoder without batch norm has
# none.


@final
@dataclass(frozen=True)
class MoCoV2(TrainingObjective):
    """InfoNCE against a queue of keys from a copy of the network that follows with a momentum."""

    temperature: float = 0.2
    """Temperature of the cosines."""
    momentum: float = 0.999
    """Momentum of the key encoder, constant."""
    queue: int = 4096
    """Number of keys to keep, a multiple of the batch; 65536 in the paper."""
    hidden: int = 0
    """Width of the projection's hidden layer; 0: that of the embeddings."""
    projection: int = 128
    """Width of the projection."""
    linear: bool = False
    """True for a projection of one linear layer, as MoCo v1 has."""
    name = "moco-v2"

    def __post_init__(self) -> None:
        check_fraction(self, "momentum")
        check_positive(self, "temperature", "queue", "projection")
        check_not_negative(self, "hidden")
        if self.linear and self.hidden:
            raise Conflict("moco-v2", f"linear=true and hidden={self.hidden}", "one of the two")

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
        hidden = () if self.linear else (self.hidden or setting.width,)
        return MoCoV2Learner(encoder, mlp((setting.width, *hidden, self.projection)), self)


@final
class MoCoV2Learner(HeadLearner):
    """An encoder with a projection, a copy of both, and the copy's latest keys."""

    settings: MoCoV2

    def __init__(self, encoder: nn.Module, head: nn.Module, settings: MoCoV2) -> None:
        super().__init__(encoder, head, settings)
        self.key_network = frozen_copy(self.network)
        self.queue: Tensor
        self.register_buffer("queue", normalize(torch.randn(settings.queue, settings.projection), dim=1))
        self.oldest: Tensor
        self.register_buffer("oldest", torch.zeros((), dtype=torch.long))
        self.latest: Codes | None = None  # until the step is done and they enter the queue

    def forward(self, batch: Batch) -> Float[Tensor, ""]:
        self.latest = self.keys(batch)
        loss = self.contrast(self.latest)
        return torch.cat([loss(self.network(view)) for view in batch.seen(1)]).mean()

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
        return self.network, self.contrast(self.keys(batch))

    def move_key_network(self) -> None:
        """Move the key network towards the query network."""
        follow(self.key_network.parameters(), self.network.parameters(), self.settings.momentum)

    @torch.no_grad()
    def after_step(self, progress: float) -> None:
        self.move_key_network()
        assert self.latest is not None
        keys = gathered(self.latest)
        rows = (self.oldest + torch.arange(len(keys), device=keys.device)) % len(self.queue)
        self.queue[rows] = keys.to(self.queue.dtype)
        self.oldest.copy_((self.oldest + len(keys)) % len(self.queue))
        self.latest = None


# MoCo v3: InfoNCE between predictions and the projections of a slowly moving copy, both ways, within the batch; no
# queue.
#
# With predictions ``q`` and the copy's projections ``k``, all of length 1, and temperature ``T``:
#
#     CL(q, k) = 2 T mean_i -log( exp(q_i.k_i / T) / sum_j exp(q_i.k_j / T) ),    loss = CL(q_0, k_1) + CL(q_1, k_0)
#
# Chen, Xie and He 2021, https://arxiv.org/abs/2104.02057, algorithm 1; the copy's momentum rises to 1 along half a
# cosine.
# With an adversary ``CL(q_a, k_1) + CL(q_1, k_a)`` is added for the attacked view (Petrov and Kwiatkowska 2022,
# https://arxiv.org/abs/2210.04076, listing 2).


@final
@dataclass(frozen=True)
class MoCoV3(TrainingObjective):
    """InfoNCE with a predictor against a momentum copy; keys of the batch are negatives."""

    temperature: float = 0.2
    """Temperature of the cosines."""
    momentum: float = 0.99
    """Momentum of the key encoder at the start; it rises to 1."""
    hidden: int = 1024
    """Width of the hidden layers of projector and predictor; the paper's is 4096."""
    projection: int = 256
    """Width of projections and predictions."""
    name = "moco-v3"

    def __post_init__(self) -> None:
        check_fraction(self, "momentum")
        check_positive(self, "temperature", "hidden", "projection")

    def learner(self, encoder: nn.Module, setting: Setting) -> Learner:
        projector = mlp((setting.width, self.hidden, self.hidden, self.projection), norm=True, last_norm=True)
        predictor = mlp((self.projection, self.hidden, self.projection), norm=True, last_norm=True)
        return SiameseLearner(encoder, projector, predictor, self.contrast, self.momentum)

    def contrast(self, keys: Codes) -> ObjectiveFunction:
        """Return each query's part of ``CL`` against ``keys``."""
        loss = info_nce(keys, self.temperature)
        # The factor 2 T keeps one learning rate right for all temperatures.
        return lambda queries: 2 * self.temperature * loss(queries)


# SupCon: supervised contrastive learning; views of images of one class are alike, and unlike those of other classes.
#
# With unit projections ``z`` of all views, temperature ``T``, and ``P(i)`` the other views of the class of view ``i``:
#
#     loss = mean_i mean_{p in P(i)} -log( exp(z_i.z_p / T) / sum_{a != i} exp(z_i.z_a / T) )
#
# Khosla et al. 2020, https://arxiv.org/abs/2004.11362, equation 2 (L_out). With an adversary the attacked views are a
# third view of each image.


def sup_con(logits: Float[Tensor, "b n"], alike: Bool[Tensor, "b n"]) -> Float[Tensor, "b"]:
    """Loss of each anchor against views of the same class.

    Args:
        logits: Similarity of each anchor with all other views, shape (b, n).
        alike: Mask of views of the same class, shape (b, n).
    """
    return -log_softmax(logits, dim=1).where(alike, 0).sum(dim=1) / alike.sum(dim=1)


@final
@dataclass(frozen=True)
class SupCon(TrainingObjective):
    """Contrastive learning of the classes of the labels, by two views."""

    temperature: float = 0.1
    """Temperature of the cosines."""
    hidden: int = 0
    """Width of the projection's hidden layer; 0: that of the embeddings."""
    projection: int = 128
    """Width of the projection."""
    name = "supcon"
    needs_labels = True

    def __post_init__(self) -> None:
        check_positive(self, "temperature", "projection")
        check_not_negative(self, "hidden")

    def learner(self, encoder: nn.Module, setting: Setting) -> Learner:
        check_two_images(self, setting)
        head = mlp((setting.width, self.hidden or setting.width, self.projection))
        return SupConLearner(encoder, head, self)


@final
class SupConLearner(HeadLearner):
    """An encoder with a projection."""

    settings: SupCon

    def forward(self, batch: Batch) -> Float[Tensor, ""]:
        views = batch.seen(2)
        parts = normalize(self.network(torch.cat(views)), dim=1).chunk(len(views))
        everybody = torch.cat([gathered(part) for part in parts])
        alike = self.alike(batch).repeat(1, len(views))
        rows, count = own_rows(len(batch.rows), everybody.device), len(everybody) // len(views)
        losses = []
        for place, part in enumerate(parts):
            itself = (rows + place * count)[:, None]
            logits = (part @ everybody.T / self.settings.temperature).scatter(1, itself, -torch.inf)
            losses.append(sup_con(logits, alike.scatter(1, itself, False)))
        return torch.cat(losses).mean()

    def alike(self, batch: Batch) -> Bool[Tensor, "b n"]:
        """Return which images of the whole batch have the class of each image of this process."""
        assert batch.labels is not None
        return batch.labels[:, None] == gathered(batch.labels)

    def loss_under_attack(self, batch: Batch) -> tuple[nn.Module, ObjectiveFunction]:
        alike, temperature = self.alike(batch), self.settings.temperature
        with torch.no_grad():
            others = gathered(normalize(self.network(batch.views[1]), dim=1))
        return self.network, lambda codes: sup_con(normalize(codes, dim=1) @ others.T / temperature, alike)
