"""Effect of an attacker who knows less than an attack on the encoder itself.

``harm kept = mean d(f(x~), f(x)) / mean d(f(x^), f(x))``: how far images ``x~``, made with less knowledge, move, relative to
the encoder's own attack ``x^``. ``losses kept`` is the same ratio for images that lose their own match. Both are ratios of
means over the same images, with intervals by the delta method.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from holdfast.attacks.attacked_codes import (
    RANDOM_NOISE,
    Case,
    CodesUnderNoise,
    Untargeted,
    displacement_series,
    strongest,
)
from holdfast.attacks.attacked_radii import Searched
from holdfast.attacks.base import Attack
from holdfast.attacks.evaluations.breakaway import LEFT_OUT, influence, kept_nearest, kept_series, risk, share_series
from holdfast.core.balls import Ball
from holdfast.core.divergences import Divergence
from holdfast.core.records import Claim, Estimate, Series
from holdfast.core.run_settings import Observed
from holdfast.core.statistics.summaries import ratio_of_means, series_of, summarise
from holdfast.measure.observation import Joint, Observation
from holdfast.measure.population import Population

Further = tuple[tuple[str, str], ...]
"""Conditions that a case has beside its own, by name."""
OF = "harm of the encoder's own attack"
ELSEWHERE = (
    f"not among the images that this number is of; or the surrogate takes other inputs or passes no "
    f"gradient; or {LEFT_OUT}"
)
UNCOMPARED = f"{ELSEWHERE}; or the encoder's own attack does no harm to compare with"


@final
@dataclass(frozen=True)
class Harm:
    """Effect of one way to perturb images; one value per row, nan where undefined."""

    case: Case
    """Ball, attack and divergence."""
    displacement: Float[Tensor, "n"]
    """Distance between the clean and the perturbed embedding, shape (n,)."""
    closer: Float[Tensor, "n"]
    """Other images closer to the perturbed embedding than the clean embedding of its image, shape (n,)."""
    passed: Float[Tensor, "n"] | None
    """Perturbed embeddings that pass each image, shape (n,); None with a reference set."""
    others: Float[Tensor, "n"]
    """Other images that each image is compared with, shape (n,)."""
    images: int
    """Distinct images that are searched."""

    @property
    def lost(self) -> Float[Tensor, "n"]:
        """1 where an image is no longer the nearest to its clean self."""
        return 1 - kept_nearest(self.closer)


@final
@dataclass(frozen=True)
class OwnAttacks:
    """White-box attacks on the encoder itself, with which weaker attackers are compared."""

    balls: tuple[Ball, ...]
    """Perturbation sets to attack in, such as ``linf:8/255``; radii in pixel units."""
    attacks: tuple[Attack, ...]
    """Attacks to run in each ball."""
    divergences: tuple[Divergence, ...]
    """Distances between embeddings to measure with."""
    samples: int
    """Images to attack, chosen at random; 1 or more."""

    @property
    def cases(self) -> list[tuple[Ball, Divergence]]:
        """Every combination, balls outermost."""
        return list(product(self.balls, self.divergences))

    def observation(self, ball: Ball, divergence: Divergence) -> Untargeted:
        """Observation of the attacks in one ball under one divergence."""
        return Untargeted(ball, self.attacks, divergence, self.samples)

    def noise(self, ball: Ball) -> CodesUnderNoise:
        """Return what is seen of random noise of the same size."""
        return CodesUnderNoise(ball, self.samples)

    def parts(
        self, beside: Callable[[Ball, Divergence], Sequence[Observation]], noise_last: bool = False
    ) -> tuple[Observation, ...]:
        """Own attacks, random noise and what stands ``beside`` them, in every case."""
        parts = list[Observation]()
        for ball, divergence in self.cases:
            noise, others = [self.noise(ball)], beside(ball, divergence)
            parts += [self.observation(ball, divergence), *((*others, *noise) if noise_last else (*noise, *others))]
        return tuple(dict.fromkeys(parts))

    def beside(
        self,
        population: Population,
        rows: Sequence[int],
        joint: Joint,
        observed: Observed,
        others: Callable[[Ball, Divergence], Mapping[Further, Float[Tensor, "n d"]]],
        halves: Sequence[tuple[Further, Bool[Tensor, "n"] | None]] = (((), None),),
    ) -> tuple[list[Series], list[Estimate]]:
        """Numbers of the strongest own attack, of ``others`` and of random noise, in every case.

        Args:
            population: Population whose images were perturbed.
            joint: Joint observation; the own attacks and their noise are among its parts.
            observed: What the joint observation saw.
            others: Embeddings of images perturbed in other ways, by the conditions that differ.
            halves: Conditions and a mask of the images that a set of numbers is about; by default all images.

        Returns:
            Series and estimates.
        """
        searched, attack = Searched(population), strongest(self.attacks)
        series, estimates = list[Series](), list[Estimate]()
        for ball, divergence in self.cases:
            untargeted = self.observation(ball, divergence)
            codes = untargeted.of_attack(attack, joint.of(untargeted, observed))["codes"]
            noise = joint.of(self.noise(ball), observed)["codes"]
            moved = {**others(ball, divergence), (("attack", RANDOM_NOISE),): noise}
            for further, mask in halves:
                case = Case(ball, attack, divergence, further=further)
                more_series, more_estimates = compared(searched, rows, case, codes, moved, mask)
                series += more_series
                estimates += more_estimates
        return series, estimates


def compared(
    searched: Searched,
    rows: Sequence[int],
    case: Case,
    codes: Float[Tensor, "n d"],
    others: Mapping[Further, Float[Tensor, "n d"]],
    mask: Bool[Tensor, "n"] | None = None,
) -> tuple[list[Series], list[Estimate]]:
    """Numbers of the encoder's own attack, and of other perturbations relative to it.

    Args:
        rows: Rows that were perturbed.
        case: The encoder's own attack.
        codes: Embeddings after the own attack, shape (n, d).
        others: Embeddings of images perturbed in other ways, by the conditions that differ from ``case``.
        mask: Rows that the numbers are about, shape (n,); by default all.

    Returns:
        Series and estimates.
    """
    strongest = harm_of(searched, rows, case, codes, mask)
    series, estimates = numbers_of(strongest)
    for further, moved in others.items():
        harm = harm_of(searched, rows, replace(case, further=(*case.further, *further)), moved, mask)
        for more_series, more_estimates in (relative_numbers_of(harm, strongest), numbers_of(harm)):
            series += more_series
            estimates += more_estimates
    return series, estimates


def harm_of(
    searched: Searched,
    rows: Sequence[int],
    case: Case,
    codes: Float[Tensor, "n d"],
    mask: Bool[Tensor, "n"] | None = None,
) -> Harm:
    """Effect of a perturbation on the images at ``rows``.

    Args:
        codes: Embeddings of the perturbed images, shape (n, d).
        mask: Rows that the numbers are about, shape (n,); by default all.
    """
    places = torch.arange(len(rows)) if mask is None else mask.nonzero()[:, 0]
    chosen = [rows[place] for place in places.tolist()]
    unknown = torch.full((len(rows),), torch.nan, dtype=torch.float64)
    if not chosen:
        return Harm(case, unknown, unknown, unknown, unknown, searched.distinct)
    clean = searched.population.codes[chosen]
    moved = codes[places.to(codes.device)].to(clean.device)
    displacement = searched.population.fitted(case.divergence)(moved.double(), clean.double())
    closer, passed = searched.closer(chosen, case.divergence, moved)

    def spread(values: Tensor) -> Tensor:
        return unknown.index_put((places,), values.double().cpu())

    others = None if passed is None else spread(passed), spread(searched.others(chosen)), searched.distinct
    return Harm(case, spread(displacement), spread(closer), *others)


def relative_numbers_of(harm: Harm, strongest: Harm) -> tuple[list[Series], list[Estimate]]:
    """Series and estimates of ``harm`` relative to the encoder's own attack."""
    relative = {
        "harm_kept": share_kept(harm.displacement, strongest.displacement),
        "losses_kept": share_kept(harm.lost, strongest.lost),
    }
    series = [
        series_of(name, harm.case.conditions, values, "ratio", Claim.ESTIMATE, OF, UNCOMPARED)
        for name, values in relative.items()
    ]
    return series, [summarise(each, "mean", "neither") for each in series]


def numbers_of(harm: Harm) -> tuple[list[Series], list[Estimate]]:
    """Series and estimates of ``harm`` itself: retrieval, breakaway risk and displacement."""
    case, shares = harm.case, harm.closer / harm.others
    nearest, broken = kept_series(case, 1 - harm.lost, ELSEWHERE), share_series(case, shares, ELSEWHERE)
    moves = displacement_series(case, harm.displacement, ELSEWHERE)
    weights = [] if harm.passed is None else [influence(case, shares, harm.passed, harm.images)]
    return [nearest, broken, *weights, moves], [
        summarise(nearest, "share", "higher", "nearest_neighbour_accuracy"),
        risk(broken, *weights or [broken]),
        summarise(moves, "mean", "lower"),
    ]


def share_kept(part: Float[Tensor, "n"], whole: Float[Tensor, "n"]) -> Float[Tensor, "n"]:
    """Values whose mean is ``mean(part) / mean(whole)`` over rows where both are defined.

    Args:
        part: Effect of the weaker attack, shape (n,).
        whole: Effect of the stronger attack, shape (n,).

    Returns:
        Ratios, shape (n,); nan where one of the two is undefined.

    Example:
        >>> share_kept(torch.tensor([1.0, torch.nan, 2.0]), torch.tensor([2.0, 5.0, 4.0]))
        tensor([0.5000,    nan, 0.5000])
    """
    defined = part.isfinite() & whole.isfinite()
    kept = torch.full_like(part, torch.nan)
    kept[defined] = ratio_of_means(part[defined], whole[defined])
    return kept
