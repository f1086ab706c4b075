"""Overlap risk: whether the neighbourhoods of two images meet in embedding space.

For pairs attacked towards each other, ``overlap_risk`` is the fraction with
``d(f(x_i), f(x^j->i)) < d(f(x_i), f(x^i->j))``: the other image is nearer to ``x_i`` than the perturbed ``x_i`` itself.
``adversarial_margin`` is the distance left, ``(d(f(x_i), f(x^j->i)) - d(f(x_i), f(x^i->j))) / d(f(x_i), f(x_j))``; negative
values mean overlap. Petrov and Kwiatkowska 2022, https://arxiv.org/abs/2210.04076, sections 3 and 5.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch

from holdfast.attacks.attacked_codes import (
    ATTACKS,
    BALLS,
    DIVERGENCES,
    SIZES,
    UNDEFINED,
    Case,
    Targeted,
    cases,
    extremes,
    shown_case,
)
from holdfast.attacks.base import Attack
from holdfast.core.balls import Ball
from holdfast.core.divergences import Divergence
from holdfast.core.encoder import Pixels
from holdfast.core.records import Claim, Findings, Picture, Question, Series
from holdfast.core.run_settings import Observed
from holdfast.core.statistics.summaries import series_of, summarise
from holdfast.measure.evaluation import Evaluation
from holdfast.measure.observation import Joint, population_warnings, radius_curves
from holdfast.measure.population import Population


@final
@dataclass(frozen=True)
class Overlap(Evaluation):
    """Fraction of image pairs whose attacked embeddings pass each other.

    Paper: Petrov and Kwiatkowska 2022, https://arxiv.org/abs/2210.04076, sections 3 and 5.2.
    """

    balls: tuple[Ball, ...] = BALLS
    """Perturbation sets."""
    attacks: tuple[Attack, ...] = ATTACKS
    """Targeted attacks: the published one and the recommended one."""
    divergences: tuple[Divergence, ...] = DIVERGENCES
    """Distances between embeddings."""
    samples: int = 1024
    """Largest number of pairs."""
    sizes = SIZES
    name = "overlap"
    version = 4
    partial = True
    title = "Overlap risk"
    meaning = (
        "Two images overlap when each can be changed so that the impostor looks more like the first image than the first "
        "image's own changed version does; then no search by nearest neighbour can serve both. The adversarial margin says "
        "by how much, as a fraction of their clean distance: negative means overlap, 1 means untouched."
    )
    headline = ("overlap_risk", "adversarial_margin")
    questions = (
        Question(
            place=30,
            text="Can two images be made to collide?",
            quantities=("overlap_risk",),
            meaning="pairs in which the impostor is nearer to an image than its own changed version",
            counts="pairs",
        ),
    )

    def observation(self) -> Joint:
        return Joint(tuple(self._attacks(ball, divergence) for ball in self.balls for divergence in self.divergences))

    def conclude(self, population: Population, rows: Sequence[int], observed: Observed) -> Findings:
        first = population.codes[list(rows)].double()
        second = population.codes[population.partners[list(rows)]].double()
        overlaps: list[Series] = []
        reverse: list[Series] = []
        margins: list[Series] = []
        for case in self._cases():
            divergence = population.fitted(case.divergence)
            moved = self._after(case, observed)
            ahead, back = moved["ahead"].to(first), moved["back"].to(first)
            clean = divergence(first, second)
            gap = divergence(back, first) - divergence(ahead, first)
            gap_back = divergence(ahead, second) - divergence(back, second)
            # Images with the same code have no neighbourhoods to tell apart.
            undefined = ~(gap.isfinite() & gap_back.isfinite() & (clean > 0))
            of = "overlap under the best attacks"
            for gaps, where, name in ((gap, overlaps, "overlaps"), (gap_back, reverse, "overlaps_in_reverse")):
                yes = (gaps < 0).double().masked_fill(undefined, torch.nan)
                where.append(series_of(name, case.conditions, yes, "yes or no", Claim.LOWER, of, UNDEFINED))
            margin = (gap / clean).masked_fill(undefined, torch.nan)
            margins.append(
                series_of(
                    "adversarial_margin",
                    case.conditions,
                    margin,
                    "fraction of clean distance",
                    Claim.UPPER,
                    "smallest margin",
                    UNDEFINED,
                )
            )
        risks = [summarise(series, "share", "lower", "overlap_risk") for series in overlaps]
        others = [summarise(series, "share", "lower", "overlap_risk_in_reverse") for series in reverse]
        estimates = [summarise(series, "median", "higher") for series in margins]
        return Findings(
            ids=tuple(population.images.ids[row] for row in rows),
            series=(*overlaps, *reverse, *margins),
            estimates=(*risks, *estimates, *others),
            curves=radius_curves(estimates),
            warnings=population_warnings(population, self.divergences),
        )

    def illustrate(
        self, population: Population, rows: Sequence[int], observed: Observed, findings: Findings
    ) -> tuple[Picture, ...]:
        case = shown_case(self._cases())

        def attack(shown: list[int]) -> dict[str, torch.Tensor]:
            partners = population.partners[shown].tolist()
            return {
                "attacked": self._moved(population, case, shown, partners),
                "impostor": self._moved(population, case, partners, shown),
                "other": population.pixels(partners),
            }

        return extremes(population, rows, findings, "adversarial_margin", case, attack)

    def _attacks(self, ball: Ball, divergence: Divergence) -> Targeted:
        return Targeted(ball, self.attacks, divergence, self.samples)

    def _moved(self, population: Population, case: Case, rows: Sequence[int], targets: Sequence[int]) -> Pixels:
        attacks = self._attacks(case.ball, case.divergence)
        return attacks.pixels(population, rows, targets)[self.attacks.index(case.attack)]

    def _cases(self) -> list[Case]:
        return cases(self.balls, self.attacks, self.divergences)

    def _after(self, case: Case, observed: Observed) -> Observed:
        """Return the codes of both ways after the attack of ``case``."""
        attacks = self._attacks(case.ball, case.divergence)
        return attacks.of_attack(case.attack, self.observation().of(attacks, observed))
