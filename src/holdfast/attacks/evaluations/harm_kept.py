"""How much harm is left to an attacker who knows less than an attack on the encoder itself does.

``harm kept = mean d(f(x~), f(x)) / mean d(f(x^), f(x))``: how far images ``x~`` moved with less knowledge are carried, as a
share of how far the encoder's own attack carries its ``x^``. ``losses kept`` is the same of how many images are no longer
the nearest to their clean selves. Both are ratios of means over the same images, with intervals by the delta method.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from holdfast.attacks.attacked_codes import RANDOM_NOISE, Case, CodesUnderNoise, Untargeted, strongest
from holdfast.attacks.base import Attack
from holdfast.attacks.evaluations.breakaway import KEPT, LEFT_OUT, RISK, influence, kept_nearest, risk
from holdfast.attacks.events import Searched
from holdfast.core.balls import Ball
from holdfast.core.divergences import Divergence
from holdfast.core.records import Claim, Estimate, Series
from holdfast.core.run_settings import Observed
from holdfast.core.statistics.summaries import ratio_of_means, series_of, summarise
from holdfast.measure.observation import Joint
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
    """What one way to move images did to an encoder: one value for each row, nan where it is undefined or not asked for."""

    case: Case
    displacement: Float[Tensor, "n"]
    closer: Float[Tensor, "n"]
    """How many of the ``others`` are closer to the moved code than the image's clean code."""
    passed: Float[Tensor, "n"] | None
    """How many moved codes pass each image; None where there is a bank."""
    others: Float[Tensor, "n"]
    images: int
    """Number of distinct images that moved ones are looked up in."""

    @property
    def lost(self) -> Float[Tensor, "n"]:
        """1 where an image is no longer the nearest to its clean self."""
        return 1 - kept_nearest(self.closer)


@final
@dataclass(frozen=True)
class OwnAttacks:
    """The encoder's own attacks in each ball under each divergence: what all other ways to move images are held against."""

    balls: tuple[Ball, ...]
    attacks: tuple[Attack, ...]
    divergences: tuple[Divergence, ...]
    samples: int

    @property
    def cases(self) -> list[tuple[Ball, Divergence]]:
        """Every combination, balls outermost."""
        return list(product(self.balls, self.divergences))

    def observation(self, ball: Ball, divergence: Divergence) -> Untargeted:
        """Return what is seen of the attacks in one case."""
        return Untargeted(ball, self.attacks, divergence, self.samples)

    def noise(self, ball: Ball) -> CodesUnderNoise:
        """Return what is seen of random noise of the same size."""
        return CodesUnderNoise(ball, self.samples)

    def beside(
        self,
        population: Population,
        rows: Sequence[int],
        joint: Joint,
        observed: Observed,
        others: Callable[[Ball, Divergence], Mapping[Further, Float[Tensor, "n d"]]],
        halves: Sequence[tuple[Further, Bool[Tensor, "n"] | None]] = (((), None),),
    ) -> tuple[list[Series], list[Estimate]]:
        """Return the numbers of the strongest own attack, of ``others`` and of random noise, in every case.

        Args:
            population: whose images were moved.
            rows: which of them.
            joint: what was observed together, with the own attacks and their noise among its parts.
            observed: what it saw.
            others: codes of images moved in other ways in a case, by the conditions in which these differ.
            halves: of which images the numbers are, each with the conditions that say so; by default of all.
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
    """Return the numbers of the encoder's own attack, and those of other ways to move images beside and relative to it.

    Args:
        searched: the images that moved ones are looked up in.
        rows: the images that were moved.
        case: the encoder's own attack.
        codes: of its images.
        others: codes of images moved in other ways, by the conditions in which these differ from ``case``.
        mask: which of ``rows`` the numbers are of; by default all.
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
    """Return what became of images moved to ``codes``: of those of ``rows`` in ``mask``, by default of all."""
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

    return Harm(
        case,
        spread(displacement),
        spread(closer),
        None if passed is None else spread(passed),
        spread(searched.others(chosen)),
        searched.distinct,
    )


def relative_numbers_of(harm: Harm, strongest: Harm) -> tuple[list[Series], list[Estimate]]:
    """Return the series and estimates of ``harm`` relative to that of the encoder's own attack, the ``strongest``."""
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
    """Return the series and estimates of ``harm`` by itself: retrieval, breakaway risk and displacement."""
    case, shares = harm.case, harm.closer / harm.others
    nearest = series_of(
        "nearest_neighbour_kept", case.conditions, 1 - harm.lost, "yes or no", Claim.UPPER, KEPT, ELSEWHERE
    )
    broken = series_of(
        "breakaway_share", case.conditions, shares, "share of other images", Claim.LOWER, RISK, ELSEWHERE
    )
    moves = series_of(
        "displacement",
        case.conditions,
        harm.displacement,
        str(case.divergence),
        Claim.LOWER,
        "largest displacement",
        ELSEWHERE,
    )
    weights = [] if harm.passed is None else [influence(case, shares, harm.passed, harm.images)]
    return [nearest, broken, *weights, moves], [
        summarise(nearest, "share", "higher", "nearest_neighbour_accuracy"),
        risk(broken, *weights or [broken]),
        summarise(moves, "mean", "lower"),
    ]


def share_kept(part: Float[Tensor, "n"], whole: Float[Tensor, "n"]) -> Float[Tensor, "n"]:
    """Return values whose mean is ``mean(part) / mean(whole)`` over the rows where both are defined; nan elsewhere.

    Example:
        >>> share_kept(torch.tensor([1.0, torch.nan, 2.0]), torch.tensor([2.0, 5.0, 4.0]))
        tensor([0.5000,    nan, 0.5000])
    """
    defined = part.isfinite() & whole.isfinite()
    kept = torch.full_like(part, torch.nan)
    kept[defined] = ratio_of_means(part[defined], whole[defined])
    return kept
