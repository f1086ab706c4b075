"""MoCo v3: InfoNCE between predictions and the projections of a slowly moving copy, both ways, within the batch; no queue.

With predictions ``q`` and the copy's projections ``k``, all of length 1, and temperature ``T``:

    CL(q, k) = 2 T mean_i -log( exp(q_i.k_i / T) / sum_j exp(q_i.k_j / T) ),    loss = CL(q_0, k_1) + CL(q_1, k_0)

Chen, Xie and He 2021, https://arxiv.org/abs/2104.02057, algorithm 1; the copy's momentum rises to 1 along half a cosine.
With an adversary ``CL(q_a, k_1) + CL(q_1, k_a)`` is added for the attacked view (Petrov and Kwiatkowska 2022,
https://arxiv.org/abs/2210.04076, listing 2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from torch import nn

from holdfast.core.encoder import Codes
from holdfast.core.settings import require_positive, require_share
from holdfast.objectives.base import ObjectiveFunction
from holdfast.training.components.heads import mlp
from holdfast.training.components.info_nce import info_nce
from holdfast.training.components.siamese import SiameseLearner
from holdfast.training.learner import Learner, Setting, TrainingObjective


@final
@dataclass(frozen=True)
class MoCoV3(TrainingObjective):
    """InfoNCE with a predictor and a copy that follows with a momentum; keys of the batch are the negatives."""

    temperature: float = 0.2
    momentum: float = 0.99
    """Of the copy, at the start; it rises to 1."""
    hidden: int = 1024
    """Width of the hidden layers of projector and predictor; the paper's is 4096."""
    projection: int = 256
    """Width of projections and predictions."""
    name = "moco-v3"

    def __post_init__(self) -> None:
        require_share(self, "momentum")
        require_positive(self, "temperature", "hidden", "projection")

    def learner(self, encoder: nn.Module, setting: Setting) -> Learner:
        projector = mlp((setting.width, self.hidden, self.hidden, self.projection), norm=True, last_norm=True)
        predictor = mlp((self.projection, self.hidden, self.projection), norm=True, last_norm=True)
        return SiameseLearner(encoder, projector, predictor, self.contrast, self.momentum)

    def contrast(self, keys: Codes) -> ObjectiveFunction:
        """Return each query's part of ``CL`` against ``keys``."""
        loss = info_nce(keys, self.temperature)
        # The factor 2 T keeps one learning rate right for all temperatures.
        return lambda queries: 2 * self.temperature * loss(queries)
