"""Alignment and uniformity: two views agree, and the images spread over the sphere.

With the codes ``u_i``, ``v_i`` of two views of ``n`` images, scaled to length 1:

    loss = mean_i |u_i - v_i|^2 + uniformity * log mean_{i < j} exp(-2 |u_i - u_j|^2)

Wang and Isola 2020, https://arxiv.org/abs/2005.10242, equations 2 and 3, with alpha = t = 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import normalize, pdist

from holdfast.extend import (
    Batch,
    Learner,
    Setting,
    TrainingObjective,
    check_not_negative,
    check_two_images,
    gathered,
)


@final
@dataclass(frozen=True)
class AlignUniform(TrainingObjective):
    """Pull the two views of an image together, and push all images apart."""

    uniformity: float = 1.0
    name = "align-uniform"

    def __post_init__(self) -> None:
        check_not_negative(self, "uniformity")

    def learner(self, encoder: nn.Module, setting: Setting) -> Learner:
        check_two_images(self, setting)
        return AlignUniformLearner(encoder, self.uniformity)


@final
class AlignUniformLearner(Learner):
    """The encoder alone."""

    def __init__(self, encoder: nn.Module, uniformity: float) -> None:
        super().__init__(encoder)
        self.uniformity = uniformity

    def forward(self, batch: Batch) -> Float[Tensor, ""]:
        moved = batch.views[0] if batch.attacked is None else batch.attacked
        first, second = (normalize(self.encoder(view)) for view in (moved, batch.views[1]))
        spread = torch.logsumexp(-2 * pdist(gathered(first)).square(), 0)
        pairs = len(gathered(first)) * (len(gathered(first)) - 1) / 2
        return (first - second).square().sum(1).mean() + self.uniformity * (spread - torch.tensor(pairs).log())
