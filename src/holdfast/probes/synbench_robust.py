"""The robust probe at the radius that SynBench suggests for the encoder, without data.

    minimise over A, b:   mean over the bank of  max over |x' - x|_2 <= eps* of  -log softmax(A f(x') + b)_y

with ``eps*`` the budget at which the encoder's synthetic score is best (Ko et al. 2023, https://arxiv.org/abs/2210.02989,
section 4). Training is that of ``robust``; at ``eps* = 0`` it is the linear probe.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch

from holdfast.core.balls import L2
from holdfast.core.errors import HoldfastError
from holdfast.core.run_settings import Observed
from holdfast.probes.base import Probe
from holdfast.probes.linear import Linear, LinearScores, linear_scores
from holdfast.probes.robust import RobustProbe
from holdfast.protocol.population import Population
from holdfast.synthetic.accuracies import FEWEST, PER_FEATURE
from holdfast.synthetic.suggestion import SAMPLES, suggested_budget


@final
@dataclass(frozen=True)
class SynBenchRobustProbe(Probe):
    """A linear head that learns from images attacked in l2, within the radius that SynBench suggests.

    ``samples`` are the synthetic inputs of each set of each scale, which decide the radius.
    """

    epochs: int = 10
    steps: int = 10
    batch: int = 64
    samples: int = SAMPLES
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
        return linear_scores(
            population.encoder,
            learned,
            population.run.device,
            f"{self}: SynBench suggests a budget of {radius:g} for {population.encoder.name}, so {taught}{few}",
        )

    def _at(self, budget: float) -> Probe:
        """Return the probe that learns at this radius."""
        return RobustProbe(L2(budget), self.epochs, self.steps, self.batch) if budget else Linear()
