"""The robust probe: a linear head trained against an attack on the pixels, through the frozen encoder.

    minimise over A, b:   mean over the bank of  max over x' in the ball around x of  -log softmax(A f(x') + b)_y

with the inner maximum by ten steps of PGD (Madry et al. 2018, https://arxiv.org/abs/1706.06083), as in SynBench (Ko et al.
2023, https://arxiv.org/abs/2210.02989, section 4), which suggests the radius at which an encoder's synthetic score is best.

Departure: the head begins at the linear probe, from which it has little to go, and so takes few epochs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from holdfast.attacks.base import GRADIENT, Attack
from holdfast.attacks.gradient import GradientAttack
from holdfast.core.balls import Ball
from holdfast.core.encoder import Codes
from holdfast.core.errors import HoldfastError
from holdfast.core.run_settings import Observed
from holdfast.objectives.misclassification import cross_entropy
from holdfast.probes.base import Probe, taught
from holdfast.probes.linear import LinearScores, batches, linear_scores, logistic_regression
from holdfast.protocol.population import Population


@final
@dataclass(frozen=True)
class RobustProbe(Probe):
    """A linear head that learns from images attacked within ``ball``."""

    ball: Ball
    epochs: int = 10
    steps: int = 10
    batch: int = 64
    name = "robust"
    version = 1

    def __post_init__(self) -> None:
        if min(self.epochs, self.steps, self.batch) < 1:
            raise HoldfastError(
                f"robust: epochs, steps and batch must be at least 1, got epochs={self.epochs}, steps={self.steps} and "
                f"batch={self.batch}"
            )

    def forwards(self, population: Population) -> int:
        return self.epochs * (GRADIENT * self.steps + 1) * len(population.bank.images)

    def learn(self, population: Population) -> Observed:
        bank, labels = population.bank, taught(population.bank)
        plain = logistic_regression(bank.codes, labels)
        places = torch.searchsorted(plain["classes"].to(labels.device), labels)
        # The head descends on standardised features, or a step would mean something else for each of them.
        centre, spread = bank.codes.double().mean(0), bank.codes.double().std(0).clamp_min(1e-9)
        weight, bias = (plain[name].to(centre.device) for name in ("weight", "bias"))
        head = nn.Linear(weight.shape[1], len(weight), dtype=torch.float64, device=centre.device)
        head.load_state_dict({"weight": weight * spread, "bias": bias + weight @ centre})
        attack: Attack = GradientAttack(steps=self.steps, stride=2.5 / self.steps)
        optimiser = torch.optim.Adam(head.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, self.epochs)
        order = bank.run.noise(bank.images.ids).fork(self.name)

        def standardised(codes: Codes) -> Codes:
            return (codes.double() - centre) / spread

        def logits(codes: Codes) -> Float[Tensor, "b c"]:
            return functional.linear(standardised(codes), head.weight.detach(), head.bias.detach())

        for epoch in range(self.epochs):
            for batch in batches(order, epoch, self.batch):
                objective, noise = cross_entropy(logits, places[batch]), order[batch].fork(epoch)
                moved = attack(bank.encoder, bank.pixels(batch.tolist()), objective, self.ball, noise)
                optimiser.zero_grad()
                functional.cross_entropy(head(standardised(bank.encode(moved))), places[batch]).backward()
                optimiser.step()
            schedule.step()
        weight = head.weight.data / spread
        return {"weight": weight, "bias": head.bias.data - weight @ centre, "classes": plain["classes"]}

    def restore(self, population: Population, learned: Observed) -> LinearScores:
        return linear_scores(population.encoder, learned, population.run.device)
