"""Impersonation: how close a targeted attack brings an image's representation to another's.

``relative_quantile(i -> j) = d(f(x^i->j), f(x_j)) / d(f(x_i), f(x_j))`` with the *clean* distance below: 1 is no progress,
0 is a perfect impersonation. Petrov and Kwiatkowska 2022, https://arxiv.org/abs/2210.04076, section 5.1 (the authors'
program divides by the distance after the random start instead). Beside it, without labels, the share of attacked images
whose nearest clean image is the target.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch

from holdfast.attacks.base import Attack
from holdfast.core.balls import Ball
from holdfast.core.counting import closer_counts
from holdfast.core.divergences import Divergence
from holdfast.core.records import Claim, Findings, Picture, Series
from holdfast.core.run import Observed
from holdfast.core.statistics import summarise
from holdfast.evaluations.attacked.attacked import ATTACKS, BALLS, DIVERGENCES, Case, Targeted, cases, shown_case
from holdfast.evaluations.attacked.pictures import extremes
from holdfast.evaluations.attacked.series import radius_curves, series_of
from holdfast.protocol.evaluation import Evaluation
from holdfast.protocol.observation import Joint
from holdfast.protocol.population import Population
from holdfast.protocol.warnings import population_warnings


@final
@dataclass(frozen=True)
class Impersonation(Evaluation):
    """How close attacks bring one image's representation to another image's."""

    balls: tuple[Ball, ...] = BALLS
    attacks: tuple[Attack, ...] = ATTACKS
    divergences: tuple[Divergence, ...] = DIVERGENCES
    pairs: int = 1024
    name = "impersonation"
    version = 3
    title = "Impersonation"
    meaning = (
        "The relative quantile is the distance to a target image that is left after the attack, as a share of the clean "
        "distance: 1 means the attack got nowhere, 0 that it imitates the target perfectly. The impersonation rate is "
        "the share of attacked images whose nearest clean image is now the target; a stronger attack may get further."
    )
    headline = ("relative_quantile", "impersonation_rate")

    def observation(self) -> Joint:
        return Joint(tuple(self._attack(case) for case in self._cases()))

    def conclude(self, population: Population, rows: Sequence[int], observed: Observed) -> Findings:
        partners = population.partners[list(rows)]
        own, target = population.codes[list(rows)], population.codes[partners]
        quantiles: list[Series] = []
        successes: list[Series] = []
        for k, case in enumerate(self._cases()):
            divergence = population.fitted(case.divergence)
            moved = observed[f"{k}.ahead"].to(own.device)
            left = divergence(moved.double(), target.double()) / divergence(own.double(), target.double())
            # 0/0 of identical codes is nan already; x/0 would read as infinitely far from a target it started at.
            left = left.masked_fill(~left.isfinite(), torch.nan)
            rivals = closer_counts(divergence, moved, partners.to(own.device), population.codes)
            found = (rivals == 0).double().masked_fill(left.isnan(), torch.nan)
            quantiles.append(
                series_of("relative_quantile", case, left, "share of clean distance", Claim.UPPER, "smallest reachable")
            )
            successes.append(
                series_of("impersonated", case, found, "yes or no", Claim.LOWER, "rate under the best attack")
            )
        estimates = [summarise(series, "median", "higher") for series in quantiles]
        rates = [summarise(series, "share", "lower", "impersonation_rate") for series in successes]
        return Findings(
            ids=tuple(population.images.ids[row] for row in rows),
            series=(*quantiles, *successes),
            estimates=(*estimates, *rates),
            curves=radius_curves(estimates, self._cases()),
            warnings=population_warnings(population, self.divergences),
        )

    def illustrate(self, population: Population, rows: Sequence[int], findings: Findings) -> tuple[Picture, ...]:
        case = shown_case(self._cases())

        def attack(shown: list[int]) -> dict[str, torch.Tensor]:
            targets = population.partners[shown].tolist()
            pixels = self._attack(case).pixels(population, shown, targets)
            return {"attacked": pixels, "target": population.pixels(targets)}

        return extremes(population, rows, findings, "relative_quantile", case, attack)

    def _attack(self, case: Case) -> Targeted:
        return Targeted(case.ball, case.attack, case.divergence, self.pairs)

    def _cases(self) -> list[Case]:
        return cases(self.balls, self.attacks, self.divergences)
