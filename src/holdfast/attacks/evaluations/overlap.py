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

from holdfast.attacks.attacked_codes import SIZES, UNDEFINED, Case, Targeted
from holdfast.attacks.attacked_evaluation import AttackedEvaluation
from holdfast.core.balls import Ball
from holdfast.core.divergences import Divergence
from holdfast.core.records import Claim, Findings, Picture, Question, Series
from holdfast.core.run_settings import Observed
from holdfast.core.statistics.summaries import series_of, summarise
from holdfast.measure.observation import findings_of, population_warnings, radius_curves
from holdfast.measure.population import Population


@final
@dataclass(frozen=True)
class Overlap(AttackedEvaluation):
    """Fraction of image pairs whose attacked embeddings pass each other.

    Paper: Petrov and Kwiatkowska 2022, https://arxiv.org/abs/2210.04076, sections 3 and 5.2.
    """

    samples: int = 1024
    """Largest number of pairs."""
    sizes = SIZES
    name = "overlap"
    version = 4
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

    def conclude(self, population: Population, rows: Sequence[int], observed: Observed) -> Findings:
        first = population.codes[list(rows)].double()
        second = population.codes[population.partners[list(rows)]].double()
        overlaps, reverse, margins = list[Series](), list[Series](), list[Series]()
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
            of, unit = "smallest margin", "fraction of clean distance"
            margins.append(series_of("adversarial_margin", case.conditions, margin, unit, Claim.UPPER, of, UNDEFINED))
        risks = [summarise(series, "share", "lower", "overlap_risk") for series in overlaps]
        others = [summarise(series, "share", "lower", "overlap_risk_in_reverse") for series in reverse]
        estimates = [summarise(series, "median", "higher") for series in margins]
        series, warnings = (*overlaps, *reverse, *margins), population_warnings(population, self.divergences)
        curves = radius_curves(estimates)
        return findings_of(population, rows, series, (*risks, *estimates, *others), warnings, curves)

    def illustrate(
        self, population: Population, rows: Sequence[int], observed: Observed, findings: Findings
    ) -> tuple[Picture, ...]:
        def attack(case: Case, shown: list[int]) -> dict[str, torch.Tensor]:
            partners = population.partners[shown].tolist()
            return {
                "attacked": self._moved(population, case, shown, partners),
                "impostor": self._moved(population, case, partners, shown),
                "other": population.pixels(partners),
            }

        return self._extremes(population, rows, findings, "adversarial_margin", attack)

    def _attacks(self, ball: Ball, divergence: Divergence) -> Targeted:
        return Targeted(ball, self.attacks, divergence, self.samples)
