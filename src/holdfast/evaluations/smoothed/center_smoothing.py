"""Center smoothing: how far can any change of an image move its smoothed representation, certified for any encoder.

    d(F(x), F(x')) <= 3 R   for every x' with |x' - x|_2 <= eps,  with confidence 1 - alpha

Kumar and Goldstein 2021, https://arxiv.org/abs/2102.09701; ``F`` and ``R`` are explained in ``center.py``. Departures: an
abstention is no radius, where the authors' program returns -1, which reads as most robust; ``R`` is an order statistic,
which holds, where the program interpolates; and beside the certificate stands what an attack achieves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import final

import torch
from torch import Tensor

from holdfast.attacks.adaptive import AdaptiveAttack
from holdfast.attacks.base import Attack
from holdfast.attacks.presets import label
from holdfast.core.divergences import Divergence
from holdfast.core.records import Claim, Estimate, Findings, Series
from holdfast.core.run import Observed
from holdfast.core.statistics import summarise
from holdfast.evaluations.smoothed.attacked import AttackedCentres
from holdfast.evaluations.smoothed.center import abstains
from holdfast.evaluations.smoothed.noisy import embedding
from holdfast.evaluations.smoothed.plan import require_centres
from holdfast.evaluations.smoothed.smoothed import (
    ABSTAINED,
    SmoothedEvaluation,
    certified_distance,
    of_distance,
    radius_curves,
    series_of,
    share_of_pairs_within,
    sure,
)
from holdfast.protocol.observation import Joint
from holdfast.protocol.population import Population

MOVED = "displacement of the smoothed representation by the worst change of this l2 size"
QUANTILE = (
    "share of pairs of other images that lie no farther apart than the worst change moves the smoothed representation"
)


@final
@dataclass(frozen=True)
class CenterSmoothing(SmoothedEvaluation):
    """How far any change of an image moves its smoothed representation: certified from above, attacked from below."""

    alpha: float = 0.01
    slack: float = 0.05
    attack: Attack = AdaptiveAttack(restarts=1)
    reference: int = 10_000
    name = "center-smoothing"
    version = 1
    title = "Center smoothing"
    meaning = (
        "With noise added to its input and the centre of the noisy codes as its code, any encoder has a certificate: the "
        "smoothed code moves no farther than this, whatever change of that size is made. The universal quantile says "
        "what share of pairs of different images lie no farther apart; the certificate is loose and speaks of the "
        "smoothed encoder alone, so the attack beside it shows from the other side how far it can be moved."
    )
    headline = ("certified_universal_quantile", "abstentions")

    def __post_init__(self) -> None:
        super().__post_init__()
        require_centres(self.name, self.smoothing, self.radii, self.slack, self.alpha)

    def observation(self) -> Joint:
        return Joint(
            (
                self.noisy_codes,
                *(AttackedCentres(self.smoothing, radius, one, self.attack) for radius, one in self._cases()),
            )
        )

    def conclude(self, population: Population, rows: Sequence[int], observed: Observed) -> Findings:
        found: list[Series] = []
        estimates: list[Estimate] = []
        warnings: list[str] = []
        scale = population.codes[population.choose(self.reference)]
        for place, divergence in enumerate(self.divergences):
            points = embedding(population, divergence)(scale)
            seen = {name: observed[f"0.{place}.{name}"] for name in ("centre", "held", "distances", "error")}
            error = series_of(
                "smoothing_error",
                {"noise": f"{self.sigma:g}", "divergence": str(divergence)},
                of_distance(divergence, seen["error"].double()),
                str(divergence),
                Claim.ESTIMATE,
                "displacement of the representation by smoothing alone",
                "the code cannot be placed under this divergence",
            )
            found.append(error)
            estimates.append(summarise(error, "median", "lower"))
            for k, (radius, one) in enumerate(self._cases(), start=1):
                if one == divergence:
                    attacked = {name: observed[f"{k}.{name}"] for name in ("centre", "held")}
                    some, numbers, said = self._case(radius, divergence, seen, attacked, points)
                    found += some
                    estimates += numbers
                    warnings += said
        return Findings(
            ids=tuple(population.images.ids[row] for row in rows),
            series=tuple(found),
            estimates=tuple(estimates),
            curves=radius_curves(estimates, self.radii),
            warnings=tuple(warnings),
        )

    def _case(
        self, radius: float, divergence: Divergence, seen: Observed, attacked: Observed, points: Tensor
    ) -> tuple[list[Series], list[Estimate], list[str]]:
        """Return what is certified and what was attacked at one radius under one divergence."""
        certified = certified_distance(seen["distances"], seen["held"], radius, self.smoothing, self.slack, self.alpha)
        failed = abstains(attacked["held"], self.selection, self.slack, self.alpha / 2) | certified.isnan()
        moved = torch.linalg.vector_norm(attacked["centre"].double() - seen["centre"].double(), dim=1)
        moved = moved.masked_fill(failed, torch.nan)
        proved = self.conditions(radius, divergence, method="center smoothing")
        tried = self.conditions(radius, divergence, attack=label(self.attack))
        share, unit = "share of pairs", str(divergence)
        abstained = certified.isnan().double()
        made = [
            series_of("certified_universal_quantile", proved, share_of_pairs_within(points, certified), share,
                      Claim.UPPER, QUANTILE, ABSTAINED),
            series_of("attacked_universal_quantile", tried, share_of_pairs_within(points, moved), share,
                      Claim.LOWER, QUANTILE, ABSTAINED),
            series_of("certified_smoothed_displacement", proved, of_distance(divergence, certified), unit,
                      Claim.UPPER, MOVED, ABSTAINED),
            series_of("attacked_smoothed_displacement", tried, of_distance(divergence, moved), unit,
                      Claim.LOWER, MOVED, ABSTAINED),
            series_of("abstentions", proved, abstained, "yes or no", Claim.ESTIMATE,
                      "images at which center smoothing abstains", ABSTAINED),
        ]  # fmt: skip
        images = len(certified)
        numbers = [summarise(series, "median", "lower") for series in made[:4]]
        numbers[0], numbers[2] = (sure(numbers[k], self.alpha, images) for k in (0, 2))
        numbers.append(summarise(made[4], "share", "lower"))
        return made, numbers, self._refuted(int((moved > certified).sum()), images, radius, divergence)

    def _refuted(self, refuted: int, images: int, radius: float, divergence: Divergence) -> list[str]:
        """Return the sentence that must be seen if attacks refute more certificates than chance allows."""
        from scipy.stats import binom

        if refuted <= int(binom.ppf(0.999, images, self.alpha)):
            return []
        return [
            f"CONTRADICTION: attacks moved the smoothed representation farther than certified at {refuted} of {images} "
            f"images (l2 radius {radius:g}, {divergence}), more than alpha = {self.alpha:g} allows; report this as a defect."
        ]

    def _cases(self) -> list[tuple[float, Divergence]]:
        return list(product(self.radii, self.divergences))
