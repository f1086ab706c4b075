"""Adversaries that attack views of a batch: by the loss, towards or away from embeddings, by noise."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import torch
from torch import nn

from holdfast.core.balls import L2, Ball, Linf
from holdfast.core.divergences import L2Distance
from holdfast.core.encoder import Codes, Domain, Pixels
from holdfast.core.objective import ObjectiveFunction
from holdfast.core.settings import check_fraction, check_not_negative, check_positive
from holdfast.training.adversaries.base import Adversary, Prepared
from holdfast.training.learner import Batch, Learner, OfRows, codes_of
from holdfast.training.processes import gathered, own_rows

# L-PGD: climb the training loss itself (Petrov and Kwiatkowska 2022, https://arxiv.org/abs/2210.04076, section 4.4).
#
# With SimCLR it is the instance-wise attack of RoCL, with a supervised loss that of Madry et al. 2018, and with
# distillation from a frozen copy that of FARE (Schlarmann et al. 2024, https://arxiv.org/abs/2402.12336).


SMALLEST = 1e-3
"""The ramp of the radius begins at this fraction of it."""


@final
@dataclass(frozen=True)
class OnLoss(Adversary):
    """Maximise each sample's training loss (L-PGD; also RoCL, FARE and adversarial training)."""

    ramp: float = 0.0
    """Fraction of the training over which the radius grows from 0, in [0, 1]."""
    name = "loss"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fraction(self, "ramp")

    def __call__(self, learner: Learner, batch: Batch, domain: Domain, prepared: Prepared) -> Pixels:
        if batch.progress >= self.ramp:
            return super().__call__(learner, batch, domain, prepared)
        # The views of the first step of all are clean, up to a ball of next to no size.
        share = max(SMALLEST, batch.progress / self.ramp)
        within = replace(self, ball=self.ball.scaled(share), ramp=0.0)
        return super(OnLoss, within).__call__(learner, batch, domain, prepared)


# TAR: towards the code of the image before it in the batch, ``min |f(x_i^) - f(x_{i-1}')|_2``.
#
# ``x'`` is the second view where there is one, else the first; the batch is a ring. Petrov and Kwiatkowska 2022,
# https://arxiv.org/abs/2210.04076, sections 4.2 and 4.4, with the settings of their fine-tuning. What moves is the
# code that the encoder will be used for; the authors' MoCo programs move the output of its head.


@final
@dataclass(frozen=True)
class Targeted(Adversary):
    """Move the embedding towards that of another image of the batch (TAR)."""

    ball: Ball = Linf(0.05)
    """Perturbation set of the attack in training."""
    steps: int = 3
    """Attack steps per batch, 0 or more."""
    step: float | None = 0.005
    """Step size in pixel units; None: 2.5 * radius / ``steps``."""
    name = "targeted"

    def climbed(self, learner: Learner, batch: Batch) -> tuple[nn.Module, ObjectiveFunction]:
        with torch.no_grad():
            everybody = gathered(codes_of(learner.encoder, batch.views[:2][-1]))
        targets = everybody.roll(1, dims=0)[own_rows(len(batch.rows), everybody.device)]
        return learner.encoder, lambda codes: -L2Distance()(codes, targets)


# UNTAR: away from the encoder's own code of the clean view, ``max |f(x^) - f(x)|_2``.
#
# Petrov and Kwiatkowska 2022, https://arxiv.org/abs/2210.04076, sections 4.2 and 4.4, with the settings of their
# fine-tuning.
# What moves is the code that the encoder will be used for; the authors' MoCo programs move the output of its head.


@final
@dataclass(frozen=True)
class Untargeted(Adversary):
    """Move the embedding as far as possible from that of the clean view (UNTAR)."""

    ball: Ball = Linf(0.05)
    """Perturbation set of the attack in training."""
    steps: int = 3
    """Attack steps per batch, 0 or more."""
    step: float | None = 0.005
    """Step size in pixel units; None: 2.5 * radius / ``steps``."""
    name = "untargeted"

    def climbed(self, learner: Learner, batch: Batch) -> tuple[nn.Module, ObjectiveFunction]:
        with torch.no_grad():
            clean = codes_of(learner.encoder, batch.views[0])
        return learner.encoder, lambda codes: L2Distance()(codes, clean)


# Noise instead of an attack, or on top of one: the views that the smoothed encoder sees.
#
#     x^ = x' + sigma n,   n ~ N(0, 1) in every pixel,   x' = x,
#     or with steps of an attack the point of the ball at which the loss of x' + sigma n is highest
#
# Noise alone is the training of Cohen et al. 2019, https://arxiv.org/abs/1902.02918; the attack on the smoothed
# network, with one draw of noise for each image, is SmoothAdv (Salman et al. 2019, https://arxiv.org/abs/1906.04584,
# equation 5). With the objective ``distillation`` codes of noisy copies are held at the clean codes, without labels.


@final
@dataclass(frozen=True)
class GaussianNoise(Adversary):
    """Add normal noise; optionally, an attack moves the image to which noise is added.

    As in smoothing, noisy views leave the range of the pixels.
    """

    ball: Ball = L2(0.25)
    """Perturbation set of the attack."""
    steps: int = 0
    """Attack steps per batch; 0: noise alone."""
    sigma: float = 0.25
    """Standard deviation of the noise, in pixel units."""
    name = "noise"

    def __post_init__(self) -> None:
        check_positive(self, "sigma", "step")
        check_not_negative(self, "steps")

    def climbed(self, learner: Learner, batch: Batch) -> tuple[nn.Module, ObjectiveFunction]:
        network, gain = learner.loss_under_attack(batch)
        if isinstance(network, OfRows):
            network = network.among(torch.arange(len(batch.rows), device=batch.rows.device))
        return Noisy(network, self.drawn(batch)), gain

    def drawn(self, batch: Batch) -> Pixels:
        """Return the noise of each first view."""
        view = batch.views[0]
        return self.sigma * batch.noise.fork("training noise").gaussian(view.shape[1:], view.dtype)

    def __call__(self, learner: Learner, batch: Batch, domain: Domain, prepared: Prepared) -> Pixels:
        moved = super().__call__(learner, batch, domain, prepared) if self.steps else batch.views[0]
        return moved + self.drawn(batch)


class Noisy(nn.Module):
    """``module(x + noise)``, each image with its own."""

    def __init__(self, module: nn.Module, noise: Pixels) -> None:
        super().__init__()
        self.module, self.noise = module, noise

    def forward(self, x: Pixels) -> Codes:
        codes: Codes = self.module(x + self.noise)
        return codes
