"""Hardened probes: linear heads trained against attacks, on noisy images, or at SynBench's radius."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from holdfast.attacks.base import GRADIENT, Attack
from holdfast.attacks.gradient import GradientAttack
from holdfast.attacks.objectives.simple import cross_entropy
from holdfast.core.balls import L2, Ball
from holdfast.core.encoder import Codes
from holdfast.core.errors import HoldfastError
from holdfast.core.run_settings import Observed
from holdfast.core.settings import check_positive
from holdfast.measure.evaluation import LATER
from holdfast.measure.population import Population
from holdfast.probes.base import Probe, taught
from holdfast.probes.linear import (
    CROPS,
    Headed,
    Linear,
    LinearScores,
    check_recipe,
    descend,
    head,
    linear_scores,
    logistic_regression,
)
from holdfast.synthetic.accuracies import FEWEST, PER_FEATURE
from holdfast.synthetic.score import SAMPLES, suggested_budget

# The robust probe: a linear head trained against an attack on the pixels, through the frozen encoder.
#
#     minimise over A, b:   mean over the bank of  max over x' in the ball around x of  -log softmax(A f(x') + b)_y
#
# with the inner maximum by ten steps of PGD (Madry et al. 2018, https://arxiv.org/abs/1706.06083), as in SynBench (Ko
# et al.
# 2023, https://arxiv.org/abs/2210.02989, section 4), which suggests the radius at which an encoder's synthetic score is
# best.
#
# Departure: the head begins at the linear probe, from which it has little to go, and so takes few epochs.


@final
@dataclass(frozen=True)
class RobustProbe(Headed):
    """Linear head trained on images attacked within ``ball``."""

    ball: Ball
    """Perturbation set of adversarial training."""
    epochs: int = 10
    """Training epochs."""
    steps: int = 10
    """PGD steps per training step."""
    batch: int = 64
    """Images per training step."""
    name = "robust"
    version = 1

    def __post_init__(self) -> None:
        check_positive(self, "epochs", "steps", "batch")

    def forward_passes(self, population: Population) -> int:
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

        def loss(epoch: int, batch: Int[Tensor, "b"]) -> Tensor:
            objective, noise = cross_entropy(logits, places[batch]), order[batch].fork(epoch)
            moved = attack(bank.encoder, bank.pixels(batch.tolist()), objective, self.ball, noise)
            return functional.cross_entropy(head(standardised(bank.encode(moved))), places[batch])

        descend(optimiser, schedule, order, self.epochs, self.batch, loss)
        weight = head.weight.data / spread
        return {"weight": weight, "bias": head.bias.data - weight @ centre, "classes": plain["classes"]}


# The noise probe: a linear head trained on codes of noisy images, the one that randomized smoothing asks for.
#
# Codes of ``x + N(0, sigma^2 I)``, the noise added at the encoder's resolution and not clipped, as in Cohen et al. 2019
# (https://arxiv.org/abs/1902.02918), then the linear probe.


@final
@dataclass(frozen=True)
class NoiseProbe(Headed):
    """Linear head trained on noisy copies of the images of the reference set."""

    sigma: float = 0.25
    """Standard deviation of the noise, in pixel units."""
    draws: int = 1
    """Noisy copies per image of the reference set."""
    recipe: str = field(default="lbfgs", metadata=LATER)
    """As for `linear`."""
    crop: bool = field(default=False, metadata=LATER)
    """True to crop each copy at random and mirror half of them, before the noise."""
    name = "noise"
    version = 1

    def __post_init__(self) -> None:
        check_positive(self, "sigma", "draws")
        check_recipe(self.name, self.recipe, 0)

    def forward_passes(self, population: Population) -> int:
        return self.draws * len(population.bank.images)

    def learn(self, population: Population) -> Observed:
        bank = population.bank
        return head(bank, [self._codes(bank, draw) for draw in range(self.draws)], self.recipe, self.name)

    def _codes(self, bank: Population, draw: int) -> torch.Tensor:
        def encoded(rows: Sequence[int]) -> Observed:
            pixels, noise = bank.pixels(rows), bank.run.noise([bank.images.ids[row] for row in rows])
            pixels = CROPS(pixels, noise.fork("crops", draw)) if self.crop else pixels
            noise = noise.fork("noise probe", draw)
            return {"codes": bank.encode(pixels + self.sigma * noise.normal(pixels.shape[1:], pixels.dtype))}

        return bank.run.batches(range(len(bank.images)), encoded)["codes"]


# The robust probe at the radius that SynBench suggests for the encoder, without data.
#
#     minimise over A, b:   mean over the bank of  max over |x' - x|_2 <= eps* of  -log softmax(A f(x') + b)_y
#
# with ``eps*`` the budget at which the encoder's synthetic score is best (Ko et al. 2023,
# https://arxiv.org/abs/2210.02989,
# section 4). Training is that of ``robust``; at ``eps* = 0`` it is the linear probe.


@final
@dataclass(frozen=True)
class SynBenchRobustProbe(Probe):
    """Linear head trained on images attacked in ℓ2, within the radius that SynBench suggests."""

    epochs: int = 10
    """Training epochs."""
    steps: int = 10
    """PGD steps per training step."""
    batch: int = 64
    """Images per training step."""
    samples: int = SAMPLES
    """Synthetic inputs in each set of each scale of SynBench."""
    name = "synbench-robust"
    version = 1

    def __post_init__(self) -> None:
        if self.samples < FEWEST:
            raise HoldfastError(f"{self.name} takes {FEWEST} samples or more per synthetic set, got {self.samples}")
        self._at(1.0)  # which checks the others

    def learn(self, population: Population) -> Observed:
        budget = suggested_budget(population, self.samples)
        return {**self._at(budget).learn(population), "radius": torch.tensor(budget, dtype=torch.float64)}

    def restore(self, population: Population, learned: Observed) -> LinearScores:
        radius = float(learned["radius"])
        taught = (
            f"the head was trained against attacks within {L2(radius)}" if radius else "the head is the linear probe"
        )
        features, few = population.codes.shape[1], ""
        if self.samples < PER_FEATURE * features:
            few = (
                f"; {self.samples} synthetic samples for {features} features are too few to trust it, {PER_FEATURE} a "
                "feature or more are needed (samples)"
            )
        caution = f"{self}: SynBench suggests a budget of {radius:g} for {population.encoder.name}, so {taught}{few}"
        return linear_scores(population.encoder, learned, population.run.device, caution)

    def _at(self, budget: float) -> Probe:
        """Return the probe that learns at this radius."""
        return RobustProbe(L2(budget), self.epochs, self.steps, self.batch) if budget else Linear()
