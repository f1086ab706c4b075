"""SimSiam: predict the projection of one view from the other; the projection predicted takes no gradient.

With projections ``z`` and predictions ``p``:

    loss = -mean cos(p_0, stop(z_1)) / 2 - mean cos(p_1, stop(z_0)) / 2

Chen and He 2021, https://arxiv.org/abs/2011.10566, equations 3 and 4. Without the stopped gradient, or without the
predictor, every image gets the same code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from torch import nn
from torch.nn.functional import cosine_similarity

from holdfast.core.encoder import Codes
from holdfast.core.settings import require_positive
from holdfast.objectives.base import ObjectiveFunction
from holdfast.training.components.heads import mlp
from holdfast.training.components.siamese import SiameseLearner
from holdfast.training.learner import Learner, Setting, TrainingObjective


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
        require_positive(self, "projection", "bottleneck")

    def learner(self, encoder: nn.Module, setting: Setting) -> Learner:
        wide = self.projection
        projector = mlp((setting.width, wide, wide, wide), norm=True, last_norm=True)
        return SiameseLearner(encoder, projector, mlp((wide, self.bottleneck, wide), norm=True), half_distance)
