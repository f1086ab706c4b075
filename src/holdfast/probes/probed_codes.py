"""Answers of probes on clean and attacked images, and the series made from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from holdfast.attacks.adaptive import attack_together, forwards_together
from holdfast.attacks.base import Attack
from holdfast.attacks.objectives import simple as misclassification
from holdfast.attacks.objectives.simple import Away
from holdfast.core.balls import Ball
from holdfast.core.divergences import Divergence, L2Distance
from holdfast.core.encoder import Codes, Pixels
from holdfast.core.records import Claim, Conditions, Series
from holdfast.core.run_settings import Observed
from holdfast.core.statistics.summaries import series_of
from holdfast.measure.observation import Observation, entries, joined
from holdfast.measure.population import Fit, LooksAt, Population, whitenings
from holdfast.probes.base import FittedProbe, Probe


@final
@dataclass(frozen=True)
class Answers(Observation):
    """Rank of the correct class among a probe's scores, and its margin.

    The margin is the logit of the correct class minus the best other logit: log-odds.
    """

    probe: Probe
    samples: int
    name = "answers"
    version = 1
    uses_labels = True
    uses_bank = True

    def looks_at(self) -> LooksAt:
        return "codes"

    def fits(self) -> tuple[Probe]:
        return (self.probe,)

    def observe(self, population: Population, rows: Sequence[int]) -> Observed:
        probe = population.learned(self.probe)
        return answered(probe, probe.codes(population, rows), population.labels[list(rows)])


@final
@dataclass(frozen=True)
class AttackedAnswers(Observation):
    """Rank and margin under a white-box attack on the probe's margin, through the encoder.

    Entries are ``k.name`` of attack k.
    """

    probe: Probe
    ball: Ball
    attacks: tuple[Attack, ...]
    samples: int
    name = "attacked-answers"
    version = 2
    uses_labels = True
    uses_bank = True

    def fits(self) -> tuple[Probe]:
        return (self.probe,)

    def forward_passes(self, population: Population) -> int:
        return forwards_together(self.attacks) + len(self.attacks)

    def observe(self, population: Population, rows: Sequence[int]) -> Observed:
        return joined([answers_to(self.probe, population, rows, pixels) for pixels in self.pixels(population, rows)])

    def of_attack(self, attack: Attack, observed: Observed) -> Observed:
        """Rank and margin after one attack."""
        return entries(observed, self.attacks.index(attack))

    def pixels(self, population: Population, rows: Sequence[int]) -> list[Pixels]:
        """Images at ``rows`` after each of the attacks."""
        probe, labels = population.learned(self.probe), population.labels[list(rows)]
        objective = misclassification.margin_of_logits(probe.logits, probe.places(labels))
        noise = population.run.noise([population.images.ids[row] for row in rows]).fork("misclassification")
        return attack_together(self.attacks, probe.encoder, population.pixels(rows), objective, self.ball, noise)


@final
@dataclass(frozen=True)
class TransferredAnswers(Observation):
    """Rank and margin under attacks without labels or probes: away from the own embedding.

    Entries are ``k.j.name`` of attack k and probe j.
    """

    probes: tuple[Probe, ...]
    ball: Ball
    attacks: tuple[Attack, ...]
    divergence: Divergence
    """Distance between embeddings that attacks maximise."""
    samples: int
    name = "transferred-answers"
    version = 2
    uses_labels = True
    uses_bank = True

    def fits(self) -> tuple[Fit[Any], ...]:
        return (*whitenings(self), *self.probes)

    def forward_passes(self, population: Population) -> int:
        return forwards_together(self.attacks) + len(self.attacks) * len(self.probes)

    def observe(self, population: Population, rows: Sequence[int]) -> Observed:
        moved = self.pixels(population, rows)
        return joined([joined([answers_to(probe, population, rows, each) for probe in self.probes]) for each in moved])

    def of_attack(self, attack: Attack, probe: Probe, observed: Observed) -> Observed:
        """Rank and margin of one probe after one attack."""
        return entries(entries(observed, self.attacks.index(attack)), self.probes.index(probe))

    def pixels(self, population: Population, rows: Sequence[int]) -> list[Pixels]:
        """Images at ``rows`` after each of the attacks."""
        context = population.context(rows)
        # A divergence without gradients is climbed as l2, as everywhere.
        objective = Away(population.fitted(self.divergence if self.divergence.smooth else L2Distance()))
        noise = context.noise.fork(objective.name)
        return attack_together(self.attacks, context.encoder, context.pixels, objective(context), self.ball, noise)


def label_free(attacks: Sequence[Attack]) -> tuple[Attack, ...]:
    """Those of ``attacks`` that can aim at an embedding, because they look at no classes."""
    return tuple(attack for attack in attacks if not attack.needs_classes)


def answers_to(probe: Probe, population: Population, rows: Sequence[int], pixels: Pixels) -> Observed:
    """Rank and margin of each image after a change."""
    fitted = population.learned(probe)
    with torch.no_grad():
        return answered(fitted, fitted.encoder.forward(pixels), population.labels[list(rows)])


def answered(probe: FittedProbe, codes: Codes, labels: Tensor) -> Observed:
    """Rank and margin of the correct class of each image.

    A label that the reference set lacks has no margin.
    """
    columns = probe.places(labels)
    margin = -misclassification.margin_of_logits(probe.logits, columns)(codes)
    return {"rank": probe.ranks(codes, labels), "margin": margin.double().masked_fill(columns < 0, torch.nan)}


CLEAN = "accuracy of the probe on clean images"
MARGIN = "log-odds of the label against the best other class"
ABSENT = "the bank shows no image of its class"


def right_series(conditions: Conditions, right: Bool[Tensor, "n"], quantity: str = "classified_right") -> Series:
    """Series of the clean images that a probe classifies correctly."""
    return series_of(quantity, conditions, right, "yes or no", Claim.ESTIMATE, CLEAN, ABSENT)


def margin_series(conditions: Conditions, margin: Float[Tensor, "n"], quantity: str, claim: Claim) -> Series:
    """Series of margins; labels that the reference set lacks have none."""
    return series_of(quantity, conditions, margin, "log-odds", claim, MARGIN, ABSENT)
