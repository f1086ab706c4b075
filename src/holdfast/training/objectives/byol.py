"""BYOL: from one view predict what a slowly moving copy of the network makes of the other; no negatives.

With predictions ``q`` and the copy's projections ``k``, ``D(q, k) = |q/|q| - k/|k||^2 = 2 - 2 cos(q, k)``, and

    loss = mean D(q_0, k_1) + mean D(q_1, k_0)
    copy <- m copy + (1 - m) network,    m = 1 - (1 - m_0) (cos(pi t) + 1) / 2

at the share ``t`` of all steps. Grill et al. 2020, https://arxiv.org/abs/2006.07733, equations 1 and 2 and section 3.3. The
loss is a sum: taking the mean of both halves the step, which cost others eleven points of accuracy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from torch import nn
from torch.nn.functional import cosine_similarity

from holdfast.core.encoder import Codes
from holdfast.core.settings import require_positive, require_share
from holdfast.objectives.base import ObjectiveFunction
from holdfast.training.components.heads import mlp
from holdfast.training.components.siamese import SiameseLearner
from holdfast.training.learner import Learner, Setting, TrainingObjective


def distance(keys: Codes) -> ObjectiveFunction:
    """Return each query's squared distance from its key, both at length 1."""
    return lambda queries: 2 - 2 * cosine_similarity(queries, keys, dim=1)


@final
@dataclass(frozen=True)
class BYOL(TrainingObjective):
    """Predict the projection of the other view by a copy that follows with a momentum."""

    momentum: float = 0.996
    """Of the copy, at the start; it rises to 1."""
    hidden: int = 1024
    """Width of the hidden layers of projector and predictor; the paper's is 4096."""
    projection: int = 256
    """Width of projections and predictions."""
    name = "byol"

    def __post_init__(self) -> None:
        require_share(self, "momentum")
        require_positive(self, "hidden", "projection")

    def learner(self, encoder: nn.Module, setting: Setting) -> Learner:
        projector = mlp((setting.width, self.hidden, self.projection), norm=True)
        predictor = mlp((self.projection, self.hidden, self.projection), norm=True)
        return SiameseLearner(encoder, projector, predictor, distance, self.momentum)
