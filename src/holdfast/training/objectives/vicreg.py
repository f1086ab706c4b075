"""VICReg: two views agree, each feature varies over the batch, and no two features vary together.

With the expanded codes ``Z`` and ``Z'`` of two views, shape (n, d), and the covariance matrix ``K(Z)``:

    s(Z, Z') = mean_ij (Z_ij - Z'_ij)^2                              invariance
    v(Z) = mean_j max(0, 1 - sqrt(K(Z)_jj + 1e-4))                   variance
    c(Z) = sum_{i != j} K(Z)_ij^2 / d                                covariance

    loss = invariance * s + variance * (v(Z) + v(Z')) / 2 + covariance * (c(Z) + c(Z'))

Bardes, Ponce and LeCun 2022, https://arxiv.org/abs/2105.04906, equations 1 to 6; the halves of the variance and the mean
over features in ``s``, whose square norm the paper sums, are those of the authors' program, which the weights belong to.
With an adversary the loss is the mean of that between both views and that between the attacked view and the second one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import mse_loss, relu

from holdfast.core.encoder import Codes
from holdfast.core.settings import require_not_negative, require_positive
from holdfast.objectives.base import ObjectiveFunction
from holdfast.training.components.heads import mlp
from holdfast.training.gathering import gathered
from holdfast.training.learner import Batch, Learner, Setting, TrainingObjective

EPS = 1e-4
"""Added to variances, for the slope of a square root at 0 has no end."""


def variance_and_covariance(codes: Codes) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Return ``v(Z)`` and ``c(Z)``.

    Example:
        >>> variance_and_covariance(torch.tensor([[-3.0, 0.0], [3.0, 0.0]]))
        (tensor(0.4950), tensor(0.))
    """
    centred = codes - codes.mean(dim=0)
    K = centred.T @ centred / (len(codes) - 1)
    variances = torch.diagonal(K)
    variance = relu(1 - (variances + EPS).sqrt()).mean()
    return variance, (K.square().sum() - variances.square().sum()) / codes.shape[1]


@final
@dataclass(frozen=True)
class VICReg(TrainingObjective):
    """Invariance, variance and covariance of the expanded codes of two views, each with its weight."""

    invariance: float = 25.0
    variance: float = 25.0
    covariance: float = 1.0
    hidden: int = 512
    """Width of the expander's two hidden layers; 8192 in the paper."""
    projection: int = 512
    """Width of the expanded codes; 8192 in the paper."""
    name = "vicreg"

    def __post_init__(self) -> None:
        require_not_negative(self, "invariance", "variance", "covariance")
        require_positive(self, "hidden", "projection")

    def learner(self, encoder: nn.Module, setting: Setting) -> Learner:
        widths = (setting.width, self.hidden, self.hidden, self.projection)
        return VICRegLearner(encoder, mlp(widths, norm=True, bias=False), self)


@final
class VICRegLearner(Learner):
    """An encoder with an expander."""

    def __init__(self, encoder: nn.Module, head: nn.Module, weights: VICReg) -> None:
        super().__init__(encoder)
        self.head, self.weights = head, weights

    def forward(self, batch: Batch) -> Float[Tensor, ""]:
        moved = () if batch.attacked is None else (batch.attacked,)
        first, second, *attacked = (self.head(self.encoder(view)) for view in (*batch.views[:2], *moved))
        return torch.stack([self.between(view, second) for view in (first, *attacked)]).mean()

    def between(self, first: Codes, two: Codes) -> Float[Tensor, ""]:
        """Return the loss between two views of the images; distances of this process's, statistics of all."""
        (v, c), (v_two, c_two) = variance_and_covariance(gathered(first)), variance_and_covariance(gathered(two))
        weights = self.weights
        spread = weights.variance * (v + v_two) / 2 + weights.covariance * (c + c_two)
        return weights.invariance * mse_loss(first, two) + spread

    def loss_under_attack(self, batch: Batch) -> tuple[nn.Module, ObjectiveFunction]:
        """Return each sample's invariance term against the second view; the others belong to no sample."""
        network = nn.Sequential(self.encoder, self.head)
        with torch.no_grad():
            target = network(batch.views[1])

        def loss(codes: Codes) -> Float[Tensor, "b"]:
            return (codes - target).square().mean(dim=1)

        return network, loss
