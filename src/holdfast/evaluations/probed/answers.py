"""What probes answer about images: as they are, attacked through the encoder, attacked without a look at the probe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from holdfast.attacks.base import Attack
from holdfast.core.balls import Ball
from holdfast.core.divergences import Divergence, L2Distance
from holdfast.core.encoder import Codes, Pixels
from holdfast.core.run import Observed
from holdfast.objectives import misclassification
from holdfast.objectives.away import Away
from holdfast.probes.base import FittedProbe, Probe
from holdfast.protocol.fits import Fit, whitenings
from holdfast.protocol.observation import Observation
from holdfast.protocol.population import Population


@final
@dataclass(frozen=True)
class Answers(Observation):
    """For each of ``samples`` images: the ``rank`` of its label among the probe's scores, and its ``margin``.

    The margin is that of the label's logit over the best other one: the log-odds of the label.
    """

    probe: Probe
    samples: int
    name = "answers"
    version = 1
    uses_labels = True
    uses_bank = True

    def fits(self) -> tuple[Probe]:
        return (self.probe,)

    def rows(self, population: Population) -> list[int]:
        return population.choose(self.samples)

    def observe(self, population: Population, rows: Sequence[int]) -> Observed:
        probe = population.learned(self.probe)
        return answered(probe, probe.codes(population, rows), population.labels[list(rows)])


@final
@dataclass(frozen=True)
class AttackedAnswers(Observation):
    """The same of images attacked by an attacker who knows everything: on the probe's margin, through the encoder."""

    probe: Probe
    ball: Ball
    attack: Attack
    samples: int
    name = "attacked-answers"
    version = 1
    uses_labels = True
    uses_bank = True

    def fits(self) -> tuple[Probe]:
        return (self.probe,)

    def rows(self, population: Population) -> list[int]:
        return population.choose(self.samples)

    def forwards(self, population: Population) -> int:
        return self.attack.forwards + 1

    def observe(self, population: Population, rows: Sequence[int]) -> Observed:
        probe = population.learned(self.probe)
        with torch.no_grad():
            codes = probe.encoder.forward(self.pixels(population, rows))
        return answered(probe, codes, population.labels[list(rows)])

    def pixels(self, population: Population, rows: Sequence[int]) -> Pixels:
        """Return the attacked images at ``rows``."""
        probe, labels = population.learned(self.probe), population.labels[list(rows)]
        objective = misclassification.margin(probe.logits, probe.places(labels))
        noise = population.run.noise([population.images.ids[row] for row in rows]).fork("misclassification")
        return self.attack(probe.encoder, population.pixels(rows), objective, self.ball, noise)


@final
@dataclass(frozen=True)
class TransferredAnswers(Observation):
    """The same of images attacked without labels or probes: away from their own code. Entries are ``name.k`` of probe k."""

    probes: tuple[Probe, ...]
    ball: Ball
    attack: Attack
    divergence: Divergence
    samples: int
    name = "transferred-answers"
    version = 1
    uses_labels = True
    uses_bank = True

    def fits(self) -> tuple[Fit[Any], ...]:
        return (*whitenings(self), *self.probes)

    def rows(self, population: Population) -> list[int]:
        return population.choose(self.samples)

    def forwards(self, population: Population) -> int:
        return self.attack.forwards + len(self.probes)

    def observe(self, population: Population, rows: Sequence[int]) -> Observed:
        pixels, found = self.pixels(population, rows), dict[str, Tensor]()
        for k, asked in enumerate(self.probes):
            probe = population.learned(asked)
            with torch.no_grad():
                codes = probe.encoder.forward(pixels)
            for name, values in answered(probe, codes, population.labels[list(rows)]).items():
                found[f"{name}.{k}"] = values
        return found

    def pixels(self, population: Population, rows: Sequence[int]) -> Pixels:
        """Return the attacked images at ``rows``."""
        context = population.context(rows)
        # A divergence without gradients is climbed as l2, as everywhere.
        objective = Away(population.fitted(self.divergence if self.divergence.smooth else L2Distance()))
        return self.attack(
            context.encoder, context.pixels, objective(context), self.ball, context.noise.fork(objective.name)
        )


def answered(probe: FittedProbe, codes: Codes, labels: Tensor) -> Observed:
    """Return rank and margin of each label; a label that the bank does not show has no margin."""
    places = probe.places(labels)
    margin = -misclassification.margin(probe.logits, places)(codes)
    return {"rank": probe.ranks(codes, labels), "margin": margin.double().masked_fill(places < 0, torch.nan)}
