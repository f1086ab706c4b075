"""Noise instead of an attack, or on top of one: the views that the smoothed encoder sees.

    x^ = x' + sigma n,   n ~ N(0, 1) in every pixel,   x' = x,
    or with steps of an attack the point of the ball at which the loss of x' + sigma n is highest

Noise alone is the training of Cohen et al. 2019, https://arxiv.org/abs/1902.02918; the attack on the smoothed network, with
one draw of noise for each image, is SmoothAdv (Salman et al. 2019, https://arxiv.org/abs/1906.04584, equation 5). With the
objective ``distillation`` codes of noisy copies are held at the clean codes, without labels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import nn

from holdfast.core.balls import L2, Ball
from holdfast.core.encoder import Codes, Domain, Pixels
from holdfast.core.settings import require_not_negative, require_positive
from holdfast.objectives.base import ObjectiveFunction
from holdfast.training.adversary import Adversary, Prepared
from holdfast.training.learner import Batch, Learner, OfRows


@final
@dataclass(frozen=True)
class GaussianNoise(Adversary):
    """Add normal noise of deviation ``sigma``; ``steps`` of an attack move what it is added to inside ``ball``, 0 nothing.

    As in smoothing, noisy views leave the range of the pixels.
    """

    ball: Ball = L2(0.25)
    steps: int = 0
    sigma: float = 0.25
    name = "noise"

    def __post_init__(self) -> None:
        require_positive(self, "sigma", "step")
        require_not_negative(self, "steps")

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
