"""Objectives that decorrelate features: Barlow Twins and VICReg."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import mse_loss, relu

from holdfast.core.encoder import Codes
from holdfast.core.objective import ObjectiveFunction
from holdfast.core.settings import check_not_negative, check_positive
from holdfast.training.learner import Batch, HeadLearner, Learner, Setting, TrainingObjective, mlp
from holdfast.training.processes import gathered

# Barlow Twins: the features of two views are the same, and none of them says what another one does.
#
# With the projections of two views, each feature brought to mean 0 and variance 1 over the batch of ``n``, as rows of
# ``A`` and ``B``, and their cross-correlation ``C = A^T B / n``:
#
#     loss = sum_i (1 - C_ii)^2 + redundancy * sum_{i != j} C_ij^2
#
# Zbontar et al. 2021, https://arxiv.org/abs/2103.03230, equations 1 and 2. With an adversary the loss is the mean of
# that between both views and that between the attacked view and the second one.

BARLOW_EPS = 1e-5
"""Added to variances, as in the authors' program, whose standardisation is a batch norm."""


def barlow(first: Codes, two: Codes, redundancy: float) -> Float[Tensor, ""]:
    """Barlow Twins loss between two views, over the images of all processes.

    Args:
        first: Projections of the first view in this process, shape (b, d).
        two: Projections of the second view, shape (b, d).
        redundancy: Weight of correlations between different features.
    """
    A, B = standardised(gathered(first)), standardised(gathered(two))
    C = A.T @ B / len(A)
    same = torch.diagonal(C)
    return (1 - same).square().sum() + redundancy * (C.square().sum() - same.square().sum())


def standardised(codes: Codes, like: Float[Tensor, "n d"] | None = None) -> Codes:
    """Standardise each feature over the batch, or with the statistics of ``like``.

    Args:
        like: Embeddings whose mean and standard deviation are used, shape (n, d); None: ``codes``.
    """
    variance, mean = torch.var_mean(codes if like is None else like, dim=0, correction=0)
    return (codes - mean) / (variance + BARLOW_EPS).sqrt()


@final
@dataclass(frozen=True)
class BarlowTwins(TrainingObjective):
    """The cross-correlation of the projections of two views is brought to the identity."""

    redundancy: float = 0.0051
    """Weight of the correlations between different features."""
    hidden: int = 512
    """Width of the projection's two hidden layers; 8192 in the paper."""
    projection: int = 512
    """Width of the projection; 8192 in the paper, whose results grow with it."""
    name = "barlow-twins"

    def __post_init__(self) -> None:
        check_positive(self, "redundancy", "hidden", "projection")

    def learner(self, encoder: nn.Module, setting: Setting) -> Learner:
        widths = (setting.width, self.hidden, self.hidden, self.projection)
        return BarlowTwinsLearner(encoder, mlp(widths, norm=True, bias=False), self)


@final
class BarlowTwinsLearner(HeadLearner):
    """An encoder with a projection."""

    settings: BarlowTwins

    def forward(self, batch: Batch) -> Float[Tensor, ""]:
        first, second, *attacked = map(self.network, batch.seen(2))
        losses = [barlow(view, second, self.settings.redundancy) for view in (first, *attacked)]
        return torch.stack(losses).mean()

    def loss_under_attack(self, batch: Batch) -> tuple[nn.Module, ObjectiveFunction]:
        """Part of ``sum_i (1 - C_ii)`` per sample: half the squared distance of its two rows.

        The loss itself is no sum over samples. Features are standardised as those of the clean views are.
        """
        network = self.network
        with torch.no_grad():
            clean, other = network(batch.views[0]), network(batch.views[1])
            like = gathered(clean)
            target = standardised(other, gathered(other))

        return network, lambda codes: (standardised(codes, like) - target).square().sum(dim=1) / 2


# VICReg: two views agree, each feature varies over the batch, and no two features vary together.
#
# With the expanded codes ``Z`` and ``Z'`` of two views, shape (n, d), and the covariance matrix ``K(Z)``:
#
#     s(Z, Z') = mean_ij (Z_ij - Z'_ij)^2                              invariance
#     v(Z) = mean_j max(0, 1 - sqrt(K(Z)_jj + 1e-4))                   variance
#     c(Z) = sum_{i != j} K(Z)_ij^2 / d                                covariance
#
#     loss = invariance * s + variance * (v(Z) + v(Z')) / 2 + covariance * (c(Z) + c(Z'))
#
# Bardes, Ponce and LeCun 2022, https://arxiv.org/abs/2105.04906, equations 1 to 6; the halves of the variance and the
# mean over features in ``s``, whose square norm the paper sums, are those of the authors' program, which the weights
# belong to. With an adversary the loss is the mean of that between both views and that between the attacked view and
# the second one.

EPS = 1e-4
"""Added to variances, because the slope of a square root at 0 has no end."""


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
    """Weighted invariance, variance and covariance of the expanded embeddings of two views."""

    invariance: float = 25.0
    """Weight of the distance between views."""
    variance: float = 25.0
    """Weight of features that vary less than 1."""
    covariance: float = 1.0
    """Weight of features that vary together."""
    hidden: int = 512
    """Width of the expander's two hidden layers; 8192 in the paper."""
    projection: int = 512
    """Width of the projection; 8192 in the paper."""
    name = "vicreg"

    def __post_init__(self) -> None:
        check_not_negative(self, "invariance", "variance", "covariance")
        check_positive(self, "hidden", "projection")

    def learner(self, encoder: nn.Module, setting: Setting) -> Learner:
        widths = (setting.width, self.hidden, self.hidden, self.projection)
        return VICRegLearner(encoder, mlp(widths, norm=True, bias=False), self)


@final
class VICRegLearner(HeadLearner):
    """An encoder with an expander."""

    settings: VICReg

    def forward(self, batch: Batch) -> Float[Tensor, ""]:
        first, second, *attacked = map(self.network, batch.seen(2))
        return torch.stack([self.between(view, second) for view in (first, *attacked)]).mean()

    def between(self, first: Codes, two: Codes) -> Float[Tensor, ""]:
        """Loss between two views: distances of this process, statistics of all.

        Args:
            first: Expanded embeddings of the first view, shape (b, d).
            two: Expanded embeddings of the second view, shape (b, d).
        """
        (v, c), (v_two, c_two) = variance_and_covariance(gathered(first)), variance_and_covariance(gathered(two))
        weights = self.settings
        spread = weights.variance * (v + v_two) / 2 + weights.covariance * (c + c_two)
        return weights.invariance * mse_loss(first, two) + spread

    def loss_under_attack(self, batch: Batch) -> tuple[nn.Module, ObjectiveFunction]:
        """Invariance term of each sample against the second view; other terms have no samples."""
        with torch.no_grad():
            target = self.network(batch.views[1])
        return self.network, lambda codes: (codes - target).square().mean(dim=1)
