"""Center smoothing: how far any perturbation of an image can move its smoothed embedding, certified for any encoder.

    d(F(x), F(x')) <= 3 R   for every x' with |x' - x|_2 <= eps,  with confidence 1 - alpha

Kumar and Goldstein 2021, https://arxiv.org/abs/2102.09701; ``smoothing/index.py`` explains ``F`` and ``R``. Departures: an
abstention has no radius; the authors' program returns -1, which reads as most robust. ``R`` is an order statistic, which is
valid; the program interpolates. Beside the certificate, an attack shows how far it gets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.attacks.presets import label
from holdfast.core.divergences import Cosine, Divergence
from holdfast.core.points.counting import share_of_pairs_within, shares_within
from holdfast.core.records import Claim, Estimate, Findings, Series
from holdfast.core.run_settings import Observed
from holdfast.core.statistics.summaries import over_references, series_of, summarise
from holdfast.measure.evaluation import Sizes
from holdfast.measure.observation import findings_of, population_warnings, radius_curves
from holdfast.measure.population import Population
from holdfast.smoothing.index import abstains
from holdfast.smoothing.plan import (
    ABSTAINED,
    CENTRES_OF_HEAVY,
    CENTRES_OF_LARGE,
    SIMILAR,
    SIZES,
    WITH_NOISE,
    CentredEvaluation,
    check_centres,
    contradictions,
    of_distance,
    sure,
)

UNPLACED = "the embedding cannot be placed under this divergence"
MOVED = "displacement of the smoothed representation by the worst change of this l2 size"
QUANTILE = (
    "fraction of pairs of other images that lie no farther apart than the worst change moves the smoothed embedding"
)


@final
@dataclass(frozen=True)
class CenterSmoothing(CentredEvaluation):
    """How far a perturbation can move the smoothed embedding: certified and attacked.

    Paper: Kumar and Goldstein 2021, https://arxiv.org/abs/2102.09701. Departures: an abstention is no radius, ``R`` is
    an order statistic without interpolation, and an attack stands beside the certificate.
    """

    alpha: float = 0.01
    """Probability that a certificate fails, in (0, 0.5)."""
    reference: int = 10_000
    """Number of images whose pairs give the scale of quantiles."""
    sizes = Sizes(SIZES.quick, SIZES.full, CENTRES_OF_LARGE, CENTRES_OF_HEAVY)
    name = "center-smoothing"
    version = 4
    title = "Center smoothing"
    meaning = (
        "With noise added to its input and the centre of the noisy embeddings as its embedding, any encoder has a "
        "certificate: the "
        "smoothed embedding moves no farther than this, whatever change of that size is made. The universal quantile says "
        "what fraction of pairs of different images lie no farther apart; the certificate is loose and speaks of the "
        "smoothed encoder alone, so the attack beside it shows from the other side how far it can be moved."
    )
    headline = ("certified_universal_quantile", "abstentions")
    questions = (WITH_NOISE,)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_centres(self.name, self.smoothing, self.radii, self.slack, self.alpha, self.looks)

    def conclude(self, population: Population, rows: Sequence[int], observed: Observed) -> Findings:
        series, estimates = list[Series](), list[Estimate]()
        warnings = [*population_warnings(population, self.divergences)]
        joint = self.observation()
        noisy = joint.of(self.noisy_codes, observed)
        for divergence in self.divergences:
            values = self.noisy_codes.of_divergence(divergence, noisy)
            case, error = {"noise": f"{self.sigma:g}", "divergence": str(divergence)}, values["error"].double()
            of, why = "displacement of the representation by smoothing alone", UNPLACED
            moved, unit = of_distance(divergence, error), str(divergence)
            series.append(series_of("smoothing_error", case, moved, unit, Claim.ESTIMATE, of, why))
            estimates.append(summarise(series[-1], "median", "lower"))
            for radius in self.radii:
                attacked = joint.of(self._attacked(radius, divergence), observed)
                some, numbers, warned = self._case(population, radius, divergence, values, attacked)
                series += some
                estimates += numbers
                warnings += warned
        return findings_of(population, rows, series, estimates, warnings, radius_curves(estimates))

    def _case(
        self, population: Population, radius: float, divergence: Divergence, values: Observed, attacked: Observed
    ) -> tuple[list[Series], list[Estimate], list[str]]:
        """Return the certified and attacked values at one radius under one divergence."""
        certified = self._certified_distance(radius, values)
        failed = abstains(attacked["held"], self.selection, self.slack, self.alpha / 2) | certified.isnan()
        moved = torch.linalg.vector_norm(attacked["centre"].double() - values["centre"].double(), dim=1)
        moved = moved.masked_fill(failed, torch.nan)
        images, flags = len(certified), certified.isnan().double()
        proved = self.conditions(radius, divergence, method="center smoothing")
        attack_conditions = self.conditions(radius, divergence, attack=label(self.attack))
        what = "images at which center smoothing abstains"
        abstained = series_of("abstentions", proved, flags, "yes or no", Claim.ESTIMATE, what, ABSTAINED)
        records, numbers = [abstained], [summarise(abstained, "share", "lower")]
        for kind, claim, case, distance in (
            ("certified", Claim.UPPER, proved, of_distance(divergence, certified)),
            ("attacked", Claim.LOWER, attack_conditions, of_distance(divergence, moved)),
        ):
            shares, near = self._on_scale(population, divergence, distance)
            name, unit = f"{kind}_universal_quantile", "fraction of pairs"
            quantiles = series_of(name, case, shares, unit, claim, QUANTILE, ABSTAINED)
            moves = series_of(f"{kind}_smoothed_displacement", case, distance, str(divergence), claim, MOVED, ABSTAINED)
            summaries = [
                over_references(summarise(quantiles, "median", "lower"), near),
                summarise(moves, "median", "lower"),
            ]
            records += [quantiles, moves]
            if isinstance(divergence, Cosine):
                opposite = Claim.LOWER if claim is Claim.UPPER else Claim.UPPER
                of_codes = {key: value for key, value in case.items() if key != "divergence"}
                similar = series_of(
                    f"{kind}_cosine_similarity", of_codes, 1 - distance, "cosine", opposite, SIMILAR, ABSTAINED
                )
                records, summaries = [*records, similar], [*summaries, summarise(similar, "median", "higher")]
            numbers += [sure(each, self.alpha, images) for each in summaries] if claim is Claim.UPPER else summaries
        refuted, what = int((moved > certified).sum()), "moved the smoothed representation farther"
        where = f"l2 radius {radius:g}, {divergence}"
        return records, numbers, contradictions(refuted, images, self.alpha, what, where)

    def _on_scale(
        self, population: Population, divergence: Divergence, distance: Float[Tensor, "b"]
    ) -> tuple[Float[Tensor, "b"], Float[np.ndarray, "p"]]:
        """Return the fractions of pairs of clean embeddings within each distance, and per embedding within the median."""
        fitted, references = population.fitted(divergence), population.choose(self.reference)
        clean, groups = population.codes[references], population.groups_of(references)
        if len(clean) < 2:
            return torch.full_like(distance, torch.nan), np.zeros(0)
        near = shares_within(fitted, distance.nanmedian()[None], clean, groups)[0]
        return share_of_pairs_within(fitted, distance, clean, groups), near.cpu().numpy()
