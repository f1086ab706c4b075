"""Objectives with a teacher: distillation from the starting encoder, and labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite, log, nan
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, cross_entropy, mse_loss, normalize

from holdfast.core.encoder import Codes
from holdfast.core.errors import Conflict, HoldfastError, OutOfRange
from holdfast.core.objective import ObjectiveFunction
from holdfast.core.settings import check_not_negative, check_positive
from holdfast.training.learner import (
    Batch,
    HeadLearner,
    Learner,
    Setting,
    TrainingObjective,
    check_two_images,
    codes_of,
    frozen_copy,
)
from holdfast.training.objectives.contrastive import info_nce
from holdfast.training.processes import gathered

# Distillation: an encoder keeps the codes of what it was when training began, on attacked images, too.
#
# With the starting encoder ``f0``, frozen, views ``x`` and what an adversary made of them ``x'``:
#
#     loss = ( |f0(x) - f(x')|^2 + clean * |f0(x) - f(x)|^2 ) / ((1 + clean) d),  averaged over the batch
#
# It asks nothing of an encoder but its codes, so it hardens any. ``clean=0`` is the loss of UNTAR and ``clean=1``
# that of TAR for encoders without a contrastive loss (Petrov and Kwiatkowska 2022, https://arxiv.org/abs/2210.04076,
# section 4.4 and listing 3), with the adversaries of these names; ``clean=0`` with an adversary on the loss is FARE
# (Schlarmann et al. 2024, https://arxiv.org/abs/2402.12336; theirs is not divided by ``d``).
#
# With a ``temperature`` InfoNCE takes the place of the squared distances; its keys are the ``f0(x)`` of the batch, so norms
# do not count. ``fresh`` redraws the weights: ``f0`` then teaches a new network of its kind. That teachers help certified
# training: De Palma 2026, https://arxiv.org/abs/2602.02626; its loss is one of features, not this one.
#
# With a floor ``agreement = a``, the clean term becomes a constraint with a learned multiplier ``m`` >= 0:
#
#     loss = ( mean |f0(x) - f(x')|^2 / mean |f0(x)|^2 + m * (a + gap - mean cos(f0(x), f(x))) ) / (1 + m)
#     m <- max(0, m + rate * (a + gap - mean cos(f0(x), f(x))) / (1 - a))     after each step
#
# The constraint by a dual variable is that of LORE (https://arxiv.org/abs/2505.18884). Departures: one multiplier for the
# mean over images, where LORE learns one for each image; and ``gap``, the amount by which training images agree more than
# the lower end of the interval of validation images did after the last epoch. The gradient comes from training images, and
# validation images move the multiplier alone.


FIRST_MULTIPLIER, MOST_MULTIPLIER = 2.0, 1e3
"""The first one weighs clean views as ``clean=1`` does: a small squared distance is twice what cosines lose."""
DUAL_RATE = 0.5
"""Change of the multiplier in a step in which the floor is missed by all that it allows."""
MEMORY = 0.9
"""Weight of earlier steps in the running agreement of training images."""
LEAST_SLACK = 0.05
"""Fraction of what the floor allows that training images may always use."""


@final
@dataclass(frozen=True)
class Distillation(TrainingObjective):
    """Squared distance from the embeddings of the starting encoder.

    With an adversary, it is the distance of the attacked view.
    """

    clean: float = 0.0
    """Weight of the clean view's term, relative to the attacked view's."""
    agreement: float | None = None
    """Floor of the mean cosine similarity to the original embeddings, in (0, 1); it replaces `clean`; none: no floor."""
    temperature: float | None = None
    """Temperature of InfoNCE against the original embeddings, instead of the squared distance; none: the distance."""
    fresh: bool = False
    """True to redraw all weights first, so that the starting encoder is only a teacher."""
    name = "distillation"
    views = 1

    def __post_init__(self) -> None:
        check_not_negative(self, "clean")
        check_positive(self, "temperature")
        if self.agreement is not None and not 0 < self.agreement < 1:
            raise OutOfRange("agreement", self.agreement, "between 0 and 1")
        if self.agreement is not None and (self.fresh or self.temperature is not None):
            raise Conflict("distillation", str(self), "agreement without temperature and fresh")

    def learner(self, encoder: nn.Module, setting: Setting) -> Learner:
        if self.temperature is not None:  # InfoNCE of one image is 0
            check_two_images(self, setting)
        return DistillationLearner(encoder, self)


@final
class DistillationLearner(Learner):
    """An encoder with a frozen copy of what it was, and the multiplier of its floor if there is one."""

    multiplier: Tensor
    gap: Tensor
    agreed: Tensor
    violation: Tensor

    def __init__(self, encoder: nn.Module, settings: Distillation) -> None:
        super().__init__(encoder)
        self.original, self.settings = frozen_copy(encoder).eval(), settings
        self.clean, self.agreement = settings.clean, settings.agreement
        if settings.fresh:
            redraw(encoder)
        if self.agreement is not None:  # buffers are part of every checkpoint
            self.register_buffer("multiplier", torch.tensor(FIRST_MULTIPLIER))
            self.register_buffer("gap", torch.tensor(0.0))
            self.register_buffer("agreed", torch.tensor(1.0))
            self.register_buffer("violation", torch.tensor(0.0))

    def train(self, mode: bool = True) -> DistillationLearner:
        super().train(mode)
        self.original.eval()  # the codes that users know: batch norm by its running statistics, no dropout
        return self

    def forward(self, batch: Batch) -> Float[Tensor, ""]:
        view = batch.views[0]
        target = self.target(batch)
        if batch.attacked is None:
            return self.distance(codes_of(self.encoder, view), target)
        if not self.clean and self.agreement is None:
            return self.distance(codes_of(self.encoder, batch.attacked), target)
        moved, still = codes_of(self.encoder, torch.cat([batch.attacked, view])).chunk(2)
        if self.agreement is not None:
            return self.constrained(moved, still, target)
        return (self.distance(moved, target) + self.clean * self.distance(still, target)) / (1 + self.clean)

    def distance(self, codes: Codes, target: Codes) -> Float[Tensor, ""]:
        """Mean squared distance from the target, or InfoNCE with it.

        Args:
            codes: Embeddings of this process's images, shape (b, d).
            target: Embeddings of the same images by the starting encoder, shape (b, d).
        """
        temperature = self.settings.temperature
        return mse_loss(codes, target) if temperature is None else info_nce(target, temperature)(codes).mean()

    def constrained(self, moved: Codes, still: Codes, target: Codes) -> Float[Tensor, ""]:
        """Lagrangian of the attacked distance under the floor.

        Args:
            moved: Embeddings of attacked views, shape (b, d).
            still: Embeddings of clean views, shape (b, d).
            target: Embeddings of clean views by the starting encoder, shape (b, d).
        """
        assert self.agreement is not None
        cosines = cosine_similarity(still, target)
        wanted = min(self.agreement + float(self.gap), 1 - LEAST_SLACK * (1 - self.agreement))
        agreed = gathered(cosines.detach()).mean()
        self.violation.copy_(wanted - agreed)
        self.agreed.lerp_(agreed.to(self.agreed), 1 - MEMORY)
        distance = (moved - target).square().sum(1).mean() / target.square().sum(1).mean()
        multiplier = float(self.multiplier)
        return (distance + multiplier * (wanted - cosines.mean())) / (1 + multiplier)

    def after_step(self, progress: float) -> None:
        if self.agreement is not None:
            change = DUAL_RATE * float(self.violation) / (1 - self.agreement)
            self.multiplier.add_(change).clamp_(0, MOST_MULTIPLIER)

    def after_epoch(self, numbers: Mapping[str, float]) -> None:
        low = numbers.get("agreement_low", nan)
        if self.agreement is not None and numbers["epoch"] and isfinite(low):
            self.gap.fill_(max(0.0, float(self.agreed) - low))

    def loss_under_attack(self, batch: Batch) -> tuple[nn.Module, ObjectiveFunction]:
        target, temperature = self.target(batch), self.settings.temperature
        if temperature is not None:
            return self.encoder, info_nce(target, temperature)
        return self.encoder, lambda codes: (codes - target).square().sum(dim=1)

    def target(self, batch: Batch) -> Codes:
        """Embeddings of the view by the starting encoder."""
        with torch.no_grad():
            return codes_of(self.original, batch.views[0])


def redraw(module: nn.Module) -> None:
    """Draw all weights of a network again, each as its layer does at first.

    Raises:
        HoldfastError: A part has weights and no ``reset_parameters``.
    """
    for part in module.modules():
        if next(part.parameters(recurse=False), None) is not None:
            draw = getattr(part, "reset_parameters", None)
            if draw is None:
                raise HoldfastError(
                    f"fresh=true draws all weights again, and {type(part).__name__} has no reset_parameters; leave fresh out"
                )
            draw()


# Supervised training, with or without a pull towards a uniform spread of the codes.
#
#     loss = CE(W z, y) + uniformity * log mean_{i<j} exp(-2 |u_i - u_j|^2),   u = z / |z|
#
# The second term: Wang and Isola 2020, https://arxiv.org/abs/2005.10242; as a regulariser of supervised training with
# uniformity 0.01 (more uniform) or -0.01 (less): Zhong et al. 2022, https://arxiv.org/abs/2206.05259, appendix A.2.
# With an adversary on the loss, the attacked view takes the place of the clean one (Madry et al. 2018,
# https://arxiv.org/abs/1706.06083).


def spread(codes: Codes) -> Float[Tensor, ""]:
    """Uniformity of the embeddings of all processes; lower is more uniform.

    It is ``log mean_{i<j} exp(-2 |u_i - u_j|^2)``.

    Example:
        >>> float(spread(torch.tensor([[1.0, 0.0], [0.0, 3.0]])))
        -4.0
    """
    units = normalize(gathered(codes), dim=1)
    above = torch.triu_indices(len(units), len(units), 1, device=units.device)
    squares = (2 - 2 * (units @ units.T))[above[0], above[1]]
    return torch.logsumexp(-2 * squares, dim=0) - log(len(squares))


@final
@dataclass(frozen=True)
class Supervised(TrainingObjective):
    """Cross-entropy of a linear head on one view."""

    uniformity: float = 0.0
    """Weight of the uniformity term: 0.01 spreads embeddings more evenly, -0.01 less (Zhong et al. 2022)."""
    name = "supervised"
    views = 1
    needs_labels = True

    def __post_init__(self) -> None:
        if not isfinite(self.uniformity):
            raise OutOfRange(f"{self.name}: uniformity", self.uniformity, "finite and not 0")

    def learner(self, encoder: nn.Module, setting: Setting) -> Learner:
        if self.uniformity:
            check_two_images(self, setting)
        return SupervisedLearner(encoder, nn.Linear(setting.width, setting.classes), self)


@final
class SupervisedLearner(HeadLearner):
    """An encoder with a linear head."""

    head: nn.Linear
    settings: Supervised

    @property
    def classifier(self) -> nn.Linear:
        return self.head

    def forward(self, batch: Batch) -> Float[Tensor, ""]:
        assert batch.labels is not None
        codes = self.encoder(batch.views[0] if batch.attacked is None else batch.attacked)
        loss = cross_entropy(self.head(codes), batch.labels)
        uniformity = self.settings.uniformity
        return loss + uniformity * spread(codes) if uniformity else loss

    def loss_under_attack(self, batch: Batch) -> tuple[nn.Module, ObjectiveFunction]:
        labels = batch.labels
        assert labels is not None
        return self.network, lambda scores: cross_entropy(scores, labels, reduction="none")
