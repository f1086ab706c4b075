"""Breakaway risk: how often an attacked image is closer to another image than to its own original.

``breakaway_risk`` is the mean over attacked ``x`` and other ``x'`` of ``1[d(f(x^), f(x')) < d(f(x^), f(x))]``.
``nearest_neighbour_accuracy`` is the fraction of ``x`` without a strictly closer ``x'``. Petrov and Kwiatkowska 2022,
https://arxiv.org/abs/2210.04076, sections 3 and 5.2. The paper's own numbers are too small, about 125-fold: the authors'
program adds up the last batch alone (8 of 1000 images) and divides by all.

Departures: further attacks aim at the event itself, once at a random ``x'`` and once at the nearest neighbours. The
published measure counts the images that an untargeted attack happens to pass. With a reference set, the other images and
the nearest neighbours are those of the reference set, which is taken as given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import sqrt
from typing import final

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from holdfast.attacks.attacked_codes import SIZES, UNDEFINED, Case, Pairwise, Untargeted, cases, nearest_image
from holdfast.attacks.attacked_evaluation import AttackedEvaluation, check_objective
from holdfast.attacks.attacked_radii import Searched
from holdfast.attacks.base import Attack
from holdfast.attacks.presets import NAMED, aim_of
from holdfast.core.balls import Ball
from holdfast.core.divergences import Divergence
from holdfast.core.encoder import Codes
from holdfast.core.points.counting import nearest_rows
from holdfast.core.records import Claim, Estimate, Findings, Picture, Question, Series
from holdfast.core.run_settings import Observed
from holdfast.core.statistics.intervals import share_interval
from holdfast.core.statistics.summaries import series_of, summarise
from holdfast.measure.evaluation import LATER, Sizes
from holdfast.measure.observation import Joint, findings_of, population_warnings, radius_curves
from holdfast.measure.population import Population

RISK = "risk of the worst perturbation for each pair"
KEPT = "nearest-neighbour accuracy under the worst perturbation"
LEFT_OUT = f"{UNDEFINED}; or an exact copy, which is counted once; or all other images are copies of it"
STEP = 1024
"""Moved codes whose nearest are looked up together."""
UNPAIRED = f"not attacked, so that no two pairs share an image; or {LEFT_OUT}"


@final
@dataclass(frozen=True)
class Breakaway(AttackedEvaluation):
    """Fraction of other images that are closer to an attacked image than its own original.

    Paper: Petrov and Kwiatkowska 2022, https://arxiv.org/abs/2210.04076, sections 3 and 5.2.
    """

    samples: int = 1000
    """Number of attacked images."""
    pairwise: Attack = NAMED["adaptive"]
    """Attack on the event itself, at one other image and at the nearest ones."""
    rivals: int = 10
    """Nearest images that the attack at retrieval aims at."""
    objective: str = field(default="", metadata=LATER)
    """Distance (`l2`) or loss (`queue`) that `attacks` maximise; empty: each of `divergences`."""
    sizes = Sizes(
        SIZES.quick,
        SIZES.full,
        {**SIZES.large, "pairwise": "adaptive:restarts=1"},
        {**SIZES.heavy, "pairwise": "adaptive:restarts=1,steps=8"},
    )
    name = "breakaway"
    version = 7
    pictured = 3
    uses_bank = True
    title = "Breakaway risk"
    meaning = (
        "The breakaway risk is the probability that an attacked image lies closer to a random other image than to its own "
        "clean self; nearest-neighbour accuracy is the fraction of attacked images whose own clean image is still the "
        "nearest. Both show what attacks achieved: the true risk is at least as high, the true accuracy at most as high."
    )
    headline = ("breakaway_risk", "nearest_neighbour_accuracy")
    aims = (("retrieval", "another nearest neighbour"), ("crossing", "a random other image"))
    questions = (
        Question(
            place=10,
            text="Can an attacker make it mistake images?",
            quantities=("nearest_neighbour_accuracy",),
            meaning="attacked images still closest to their original",
        ),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_objective(self.objective, self.divergences[0])

    def observation(self) -> Joint:
        return Joint((*self._parts(), *map(self._pairwise, self._strongest())))

    def conclude(self, population: Population, rows: Sequence[int], observed: Observed) -> Findings:
        searched = Searched(population)
        away = [neighbourhood(searched, rows, case, self._after(case, observed)["codes"]) for case in self._cases()]
        pairwise = [(case, self.observation().of(self._pairwise(case), observed)) for case in self._strongest()]
        retrieved = [
            neighbourhood(searched, rows, replace(case, aim="retrieval"), moved["retrieval"])
            for case, moved in pairwise
        ]
        crossed = [
            crossed_to_partner(population, rows, replace(case, aim="crossing"), moved["crossing"])
            for case, moved in pairwise
        ]
        shares = [share_series(each.case, each.shares, LEFT_OUT) for each in away]
        influences = [
            influence(each.case, each.shares, each.passed, searched.distinct)
            for each in away
            if each.passed is not None
        ]
        kept = [kept_series(each.case, kept_nearest(each.closer), LEFT_OUT) for each in away + retrieved]
        risks = [risk(share, moves) for share, moves in zip(shares, influences or shares, strict=True)]
        worst = [summarise(series, "share", "lower", "pairwise_breakaway_risk") for series in crossed]
        accuracy = [each.accuracy(series) for each, series in zip(away + retrieved, kept, strict=True)]
        series, numbers = (*shares, *influences, *kept, *crossed), (*risks, *worst, *accuracy)
        warnings = population_warnings(population, self.divergences)
        return findings_of(population, rows, series, numbers, warnings, radius_curves(risks))

    def illustrate(
        self, population: Population, rows: Sequence[int], observed: Observed, findings: Findings
    ) -> tuple[Picture, ...]:
        def attack(case: Case, shown: list[int]) -> dict[str, Tensor]:
            pixels, divergence = self._moved(population, case, shown), population.fitted(case.divergence)
            near = nearest_image(population, divergence, population.encode(pixels), shown)
            return {"attacked": pixels, "nearest image": near}

        return self._extremes(population, rows, findings, "breakaway_share", attack)

    def _attacks(self, ball: Ball, divergence: Divergence) -> Untargeted:
        divergence, loss = aim_of(self.objective, divergence)
        return Untargeted(ball, self.attacks, divergence, self.samples, loss)

    def _pairwise(self, case: Case) -> Pairwise:
        return Pairwise(case.ball, case.attack, case.divergence, self.rivals, self.samples)

    def _strongest(self) -> list[Case]:
        return cases(self.balls, [self.pairwise], self.divergences)


@final
@dataclass(frozen=True, eq=False)
class Neighbourhood:
    """Counts of other images that are closer to each attacked image than its own original."""

    case: Case
    """Ball, attack and divergence of the counts."""
    closer: Float[Tensor, "b"]
    """Other images closer to each attacked image than its original, shape (b,)."""
    passed: Float[Tensor, "b"] | None
    """Attacked embeddings that are closer to each image than to their own original, shape (b,); None with a reference
    set."""
    others: Int[Tensor, "b"]
    """Other images that each image is compared with, shape (b,)."""
    lost_together: Float[np.ndarray, "c"] | None
    """Sizes of the clusters of images lost together, shape (c,); None with a reference set or with groups."""

    @property
    def shares(self) -> Float[Tensor, "b"]:
        return self.closer / self.others

    def accuracy(self, kept: Series) -> Estimate:
        """Fraction of images that keep their own match, with its interval.

        Retrieval attacks are compared by clusters, other attacks image by image.
        """
        accuracy = summarise(kept, "share", "higher", "nearest_neighbour_accuracy")
        if self.lost_together is None:
            return accuracy
        return of_clusters(accuracy, self.lost_together, paired=not self.case.aim)


def neighbourhood(searched: Searched, rows: Sequence[int], case: Case, moved: Codes) -> Neighbourhood:
    """Count the images near the attacked embeddings of ``rows``."""
    population = searched.population
    closer, passed = searched.closer(rows, case.divergence, moved)
    # Groups of images have intervals of their own.
    clustered = population.bank_images is None and population.images.groups is None
    lost = lost_together(population, rows, case, moved, closer) if clustered else None
    return Neighbourhood(case, closer, passed, searched.others(rows), lost)


def share_series(case: Case, shares: Tensor, reason: str) -> Series:
    """Fraction of other images closer to each attacked image, which is missing for ``reason``."""
    unit = "fraction of other images"
    return series_of("breakaway_share", case.conditions, shares, unit, Claim.LOWER, RISK, reason)


def kept_series(case: Case, kept: Tensor, reason: str) -> Series:
    """Whether each attacked image keeps its own match, which is missing for ``reason``."""
    return series_of("nearest_neighbour_kept", case.conditions, kept, "yes or no", Claim.UPPER, KEPT, reason)


def influence(case: Case, shares: Tensor, passed: Tensor, images: int) -> Series:
    """Influence of each image on the breakaway risk, from which its interval is computed.

    The risk is a mean over pairs, so an image not drawn takes part in it twice (Hoeffding 1948): it breaks away and is
    passed. Where few images are attacked, variation in the others weighs less, by ``sqrt(attacked / images)``.

    An image not drawn may break away from all others, or all may pass it. Hardly one does both, so the limits allow for
    either.

    Args:
        shares: Fraction of others closer to each attacked image, shape (b,).
        passed: Number of attacked images that pass each image, shape (b,).
        images: Distinct images that are searched.
    """
    attacked = int((~shares.isnan()).sum())
    weight = sqrt(attacked / max(2, images))
    rival = weight * passed / max(1, attacked - 1)
    mean = float(rival.nanmean())
    series = series_of(
        "breakaway_influence", case.conditions, shares + rival - mean, "fraction of others", Claim.LOWER, RISK, LEFT_OUT
    )
    return series.model_copy(update={"limits": (-mean, 1 - mean)})


def risk(shares: Series, influences: Series) -> Estimate:
    """Breakaway risk: mean of ``shares`` with the interval of ``influences``.

    Args:
        shares: Fraction of others closer to each attacked image.
        influences: Influence of each image; ``shares`` again where the other images are given.
    """
    estimate = summarise(influences, "mean", "lower", "breakaway_risk")
    value = summarise(shares, "mean", "lower").value
    low, high = (min(max(end, 0.0), 1.0) if estimate.n else end for end in (estimate.low, estimate.high))
    return estimate.model_copy(update={"value": value, "low": low, "high": high})


def kept_nearest(counts: Tensor) -> Tensor:
    """1 where no image is closer, 0 where one is, nan where that is undefined."""
    return (counts == 0).double().masked_fill(counts.isnan(), torch.nan)


def lost_together(
    population: Population, rows: Sequence[int], case: Case, moved: Tensor, counts: Tensor
) -> Float[np.ndarray, "c"]:
    """Sizes of clusters of images that an attack makes match each other or the same image.

    Args:
        counts: Other images closer than the original, shape (b,).

    Returns:
        Images per cluster that lost their own match, shape (c,).
    """
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    divergence, clean = population.fitted(case.divergence), population.codes
    lost = (counts > 0).nonzero()[:, 0].tolist()
    if not lost:
        return np.zeros(0)
    partners = [
        nearest_rows(divergence, moved[lost[k : k + STEP]].to(clean.device), clean, 1)
        for k in range(0, len(lost), STEP)
    ]
    anchors = population.first_copies[[rows[index] for index in lost]].numpy()
    other = population.first_copies[torch.cat(partners)[:, 0].cpu()].numpy()
    # Only those that take part are numbered, because all may be a million.
    taking_part, ends = np.unique(np.stack([anchors, other]), return_inverse=True)
    anchors, other = ends.reshape(2, -1)
    links = coo_matrix((np.ones(len(anchors)), (anchors, other)), shape=(len(taking_part), len(taking_part)))
    sizes = np.bincount(connected_components(links, directed=False)[1][anchors])
    return sizes[sizes > 0].astype(np.float64)


def of_clusters(accuracy: Estimate, sizes: Float[np.ndarray, "c"], paired: bool = False) -> Estimate:
    """Replace the interval of ``accuracy`` by one that allows for images lost together.

    Of two images that are each other's nearest, the attack mostly carries both past one another or neither. So images
    count for fewer, by the design effect of clusters (Kish 1965; Korn and Graubard 1998). A pair is added, since no
    sizes are seen where few or none are lost.

    Args:
        accuracy: Fraction of images that keep their own match.
        sizes: Images per cluster, shape (c,).
        paired: True if encoders are still compared image by image; false for retrieval attacks.
    """
    if not accuracy.n:
        return accuracy
    size = (4 + np.square(sizes).sum()) / (2 + sizes.sum())
    count = accuracy.n / (1 + accuracy.value * (float(size) - 1))
    low, high = share_interval(accuracy.value * count, count, accuracy.confidence)
    method = f"mid-P; images lost together count for fewer, all for {count:.0f} (design effect of clusters)"
    update = {"low": low, "high": high, "method": method}
    return accuracy.model_copy(update=update if paired else {**update, "series": None, "statistic": "whole"})


def crossed_to_partner(population: Population, rows: Sequence[int], case: Case, moved: Tensor) -> Series:
    """Whether the attack carried each image past a random other image, its partner."""
    divergence, clean = population.fitted(case.divergence), population.codes
    anchors, other = clean[list(rows)].double(), clean[population.partners[list(rows)]].double()
    moved = moved.to(clean.device).double()
    ours, theirs = divergence(moved, anchors), divergence(moved, other)
    originals, here = population.first_copies, torch.as_tensor(rows)
    copies = (originals[here] != here) | (originals[here] == originals[population.partners[here]])
    undefined = ~(theirs - ours).isfinite() | copies.to(clean.device)
    crossed = (theirs < ours).double().masked_fill(undefined, torch.nan)
    return series_of("crossed_to_a_random_image", case.conditions, crossed, "yes or no", Claim.LOWER, RISK, UNPAIRED)
