"""Objectives without negatives: BYOL and SimSiam, with the learner that both share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity

from holdfast.core.encoder import Codes, Pixels
from holdfast.core.objective import ObjectiveFunction
from holdfast.core.settings import check_fraction, check_positive
from holdfast.training.learner import Batch, Learner, Setting, TrainingObjective, follow, frozen_copy, mlp, rising

# Learners with a prediction of one view on one side and a fixed projection of the other view on the other side.
#
# With the online encoder ``f``, projector ``g`` and predictor ``h``, and the target network ``f', g'``, each view
# ``v_i`` has a query ``q_i = h(g(f(v_i)))`` and a key ``k_i = g'(f'(v_i))`` that takes no gradient. The loss is the
# sum
#
#     D(q_0, k_1) + D(q_1, k_0),    and with an attacked first view a also    + D(q_a, k_1) + D(q_1, k_a)
#
# BYOL, SimSiam and MoCo v3 are this with three ``D``; the attacked terms: Petrov and Kwiatkowska 2022,
# https://arxiv.org/abs/2210.04076, listing 2, for MoCo v3, and by analogy for the others.

Comparison = Callable[[Codes], ObjectiveFunction]
"""``D``: from keys to each sample's loss as a function of its query."""


@final
class SiameseLearner(Learner):
    """Encoder with a projector and a predictor, and a target network.

    With ``momentum``, the target is a copy of encoder and projector. Its momentum rises to 1 along half a cosine.
    Without, the target is encoder and projector themselves.

    Args:
        encoder: Network from pixels to embeddings.
        projector: Network from embeddings to projections.
        predictor: Network from projections to predictions.
        comparison: Loss between predictions and target projections.
        momentum: Weight of the old copy at the start, 0 to 1; None without a copy.
    """

    def __init__(
        self,
        encoder: nn.Module,
        projector: nn.Module,
        predictor: nn.Module,
        comparison: Comparison,
        momentum: float | None = None,
    ) -> None:
        super().__init__(encoder)
        self.projector, self.predictor = projector, predictor
        self.comparison, self.momentum = comparison, momentum
        self.target = None if momentum is None else frozen_copy(self.online)

    @property
    def online(self) -> nn.Sequential:
        """Return the network that the target follows."""
        return nn.Sequential(self.encoder, self.projector)

    def forward(self, batch: Batch) -> Float[Tensor, ""]:
        # View by view, as the authors' programs do it: batch norm sees one view at a time.
        views = batch.seen(2)
        queries, keys = zip(*map(self.both, views), strict=True)
        compare = [self.comparison(key) for key in keys]
        pairs = ((0, 1), (1, 0), (2, 1), (1, 2))[: 2 * len(views) - 2]
        return torch.stack([compare[key](queries[query]).mean() for query, key in pairs]).sum()

    def both(self, view: Pixels) -> tuple[Codes, Codes]:
        """Return the queries and keys of a view."""
        projections = self.online(view)
        if self.target is None:
            return self.predictor(projections), projections.detach()
        with torch.no_grad():
            keys: Codes = self.target(view)
        return self.predictor(projections), keys

    def loss_under_attack(self, batch: Batch) -> tuple[nn.Module, ObjectiveFunction]:
        with torch.no_grad():
            keys = (self.target or self.online)(batch.views[1])
        return nn.Sequential(self.encoder, self.projector, self.predictor), self.comparison(keys)

    def after_step(self, progress: float) -> None:
        if self.target is not None and self.momentum is not None:
            follow(self.target.parameters(), self.online.parameters(), rising(self.momentum, progress))


# BYOL: from one view predict what a slowly moving copy of the network makes of the other; no negatives.
#
# With predictions ``q`` and the copy's projections ``k``, ``D(q, k) = |q/|q| - k/|k||^2 = 2 - 2 cos(q, k)``, and
#
#     loss = mean D(q_0, k_1) + mean D(q_1, k_0)
#     copy <- m copy + (1 - m) network,    m = 1 - (1 - m_0) (cos(pi t) + 1) / 2
#
# at the share ``t`` of all steps. Grill et al. 2020, https://arxiv.org/abs/2006.07733, equations 1 and 2 and section
# 3.3. The loss is a sum: taking the mean of both halves the step, which cost others eleven points of accuracy.


def distance(keys: Codes) -> ObjectiveFunction:
    """Return each query's squared distance from its key, both at length 1."""
    return lambda queries: 2 - 2 * cosine_similarity(queries, keys, dim=1)


@final
@dataclass(frozen=True)
class BYOL(TrainingObjective):
    """Predict the projection of the other view by a copy that follows with a momentum."""

    momentum: float = 0.996
    """Momentum of the target network at the start; it rises to 1."""
    hidden: int = 1024
    """Width of the hidden layers of projector and predictor; the paper's is 4096."""
    projection: int = 256
    """Width of projections and predictions."""
    name = "byol"

    def __post_init__(self) -> None:
        check_fraction(self, "momentum")
        check_positive(self, "hidden", "projection")

    def learner(self, encoder: nn.Module, setting: Setting) -> Learner:
        projector = mlp((setting.width, self.hidden, self.projection), norm=True)
        predictor = mlp((self.projection, self.hidden, self.projection), norm=True)
        return SiameseLearner(encoder, projector, predictor, distance, self.momentum)


# SimSiam: predict the projection of one view from the other; the projection predicted takes no gradient.
#
# With projections ``z`` and predictions ``p``:
#
#     loss = -mean cos(p_0, stop(z_1)) / 2 - mean cos(p_1, stop(z_0)) / 2
#
# Chen and He 2021, https://arxiv.org/abs/2011.10566, equations 3 and 4. Without the stopped gradient, or without the
# predictor, every image gets the same code.


def half_distance(keys: Codes) -> ObjectiveFunction:
    """Return minus half the cosine of each query with its key."""
    return lambda queries: -cosine_similarity(queries, keys, dim=1) / 2


@final
@dataclass(frozen=True)
class SimSiam(TrainingObjective):
    """Predict the projection of the other view, by the same network."""

    projection: int = 512
    """Width of the projector's three layers and of the predictions; the paper's is 2048."""
    bottleneck: int = 128
    """Width of the predictor's hidden layer: a quarter of the projection's."""
    name = "simsiam"

    def __post_init__(self) -> None:
        check_positive(self, "projection", "bottleneck")

    def learner(self, encoder: nn.Module, setting: Setting) -> Learner:
        wide = self.projection
        projector = mlp((setting.width, wide, wide, wide), norm=True, last_norm=True)
        return SiameseLearner(encoder, projector, mlp((wide, self.bottleneck, wide), norm=True), half_distance)
