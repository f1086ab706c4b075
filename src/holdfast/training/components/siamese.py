"""Learners with a prediction of one view on one side and a fixed projection of the other view on the other side.

With the online encoder ``f``, projector ``g`` and predictor ``h``, and the target network ``f', g'``, each view ``v_i``
has a query ``q_i = h(g(f(v_i)))`` and a key ``k_i = g'(f'(v_i))`` that takes no gradient. The loss is the sum

    D(q_0, k_1) + D(q_1, k_0),    and with an attacked first view a also    + D(q_a, k_1) + D(q_1, k_a)

BYOL, SimSiam and MoCo v3 are this with three ``D``; the attacked terms: Petrov and Kwiatkowska 2022,
https://arxiv.org/abs/2210.04076, listing 2, for MoCo v3, and by analogy for the others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from holdfast.core.encoder import Codes, Pixels
from holdfast.objectives.base import ObjectiveFunction
from holdfast.training.components.heads import follow, frozen_copy, rising
from holdfast.training.learner import Batch, Learner

Comparison = Callable[[Codes], ObjectiveFunction]
"""``D``: from keys to each sample's loss as a function of its query."""


@final
class SiameseLearner(Learner):
    """An encoder with a projector and a predictor, and a target network.

    ``momentum`` makes the target a copy of encoder and projector that follows them, ever more slowly: its momentum rises
    from this number to 1 along half a cosine. Without it the target is encoder and projector themselves.
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
        views = (*batch.views[:2], *(() if batch.attacked is None else (batch.attacked,)))
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
