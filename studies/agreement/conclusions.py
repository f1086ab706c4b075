"""What the numbers of the zoo say of each measure: agreement with each reference, with all that makes one doubt it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import nan
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from studies.agreement import rankings as agreement
from studies.agreement.collected import Found
from studies.agreement.measures import HEADLINES, REDUCED, Headline, Reduce, mean
from studies.agreement.rankings import interval, tau
from studies.agreement.references import CLEAN, PRIMARY, REFERENCES

REPLICATES, SHUFFLES, SPLITS, SEED = 500, 2000, 20, 0
SCALE, BOTH = "median distance", "both"
FEWEST = 6
"""Encoders of a data set below which a measure is not judged on them."""
Interval = tuple[float, float]
Values = Float[np.ndarray, "e"]


@dataclass(frozen=True)
class Agreement:
    """How far a measure and a reference agree over ``n`` encoders; intervals hold 95%."""

    measure: str
    reference: str
    n: int
    tau: float
    spearman: float
    over_images: Interval
    over_encoders: Interval
    over_both: Interval
    given: Mapping[str, tuple[float, float, float]]
    """Partial tau and its interval over encoders and images, given what encoders differ in besides."""
    families: Interval
    """The smallest and the largest tau when one family is left out."""
    ceiling: float
    """What tau can at most be expected to be, as far as the chance in images limits it; nan if unknown."""
    p: float
    adjusted: float = nan
    """``p`` after Holm for the primary reference, after Benjamini and Hochberg for all others together."""

    @property
    def sure(self) -> bool:
        """Return whether the interval over images and encoders leaves out 0."""
        return self.over_both[0] > 0 or self.over_both[1] < 0


@dataclass(frozen=True)
class Resampled:
    """Numbers of encoders on redrawn images, by quantity; measures are larger where they say more robust."""

    found: Found
    draws: Mapping[str, Float[np.ndarray, "b e"]]

    @classmethod
    def of(cls, found: Found) -> Resampled:
        """Return ``REPLICATES`` draws of all quantities; measures and references have images, and so draws, of their own."""
        measured = {h.name: h.sign * _draws(found, h.name, REDUCED[h.statistic], SEED + 1) for h in HEADLINES}
        served = {name: _draws(found, name, mean, SEED + 2) for name in (CLEAN, *(one.name for one in REFERENCES))}
        served["share retained"] = served[PRIMARY] / served[CLEAN]
        return cls(found, {**measured, **served, SCALE: _draws(found, SCALE, mean, SEED)})

    def only(self, chosen: Bool[np.ndarray, "e"]) -> Resampled:
        """Return the same draws of those encoders that are ``chosen``."""
        return Resampled(self.found.only(chosen), {name: values[:, chosen] for name, values in self.draws.items()})


def _draws(found: Found, name: str, reduce: Reduce, seed: int) -> Float[np.ndarray, "b e"]:
    series = found.series.get(name, (None,) * len(found.members))
    return agreement.resampled(series, found.values[name], reduce, REPLICATES, seed)


def among(resampled: Resampled) -> dict[str, tuple[float, Interval]]:
    """Return tau of each measure with the primary reference, and its interval over images and encoders."""
    found = resampled.found
    drawn = agreement.draw_families(found.family, REPLICATES, SEED)
    ys, made = resampled.draws[PRIMARY], dict[str, tuple[float, Interval]]()
    for headline in HEADLINES:
        replicates = tau(resampled.draws[headline.name], ys, found.dataset, drawn)
        made[headline.name] = (
            float(tau(oriented(found, headline), found.values[PRIMARY], found.dataset)),
            interval(replicates),
        )
    return made


def concluded(resampled: Resampled) -> dict[tuple[str, str], Agreement]:
    """Return what is found of each measure with each reference."""
    found, made = resampled.found, dict[tuple[str, str], Agreement]()
    drawn, halves = agreement.draw_families(found.family, REPLICATES, SEED), _halves(found)
    for reference in REFERENCES:
        for headline in HEADLINES:
            made[headline.name, reference.name] = _agreement(resampled, drawn, headline, reference.name, halves)
    return made | _adjusted(made, primary=True) | _adjusted(made, primary=False)


def _agreement(
    resampled: Resampled,
    drawn: Float[np.ndarray, "b e"],
    headline: Headline,
    reference: str,
    halves: Mapping[str, float],
) -> Agreement:
    found = resampled.found
    x, y, group = oriented(found, headline), found.values[reference], found.dataset
    xs, ys = resampled.draws[headline.name], resampled.draws[reference]
    given: dict[str, tuple[float, float, float]] = {}
    if reference == PRIMARY:
        for name, others in ((CLEAN, (CLEAN,)), (SCALE, (SCALE,)), (BOTH, (CLEAN, SCALE))):
            here = [found.values[one] for one in others]
            there = [resampled.draws[one] for one in others]
            replicates = agreement.beside(xs, ys, there, group, drawn)
            given[name] = (float(agreement.beside(x, y, here, group)), *interval(replicates))
    block = found.dataset * 1000 + found.family
    return Agreement(
        headline.name,
        reference,
        int((np.isfinite(x) & np.isfinite(y)).sum()),
        float(tau(x, y, group)),
        agreement.spearman(x, y, group),
        interval(tau(xs, ys, group)),
        interval(tau(x, y, group, drawn)),
        interval(tau(xs, ys, group, drawn)),
        given,
        agreement.leave_one_out(x, y, group, found.family),
        float(np.sqrt(max(halves[headline.name], 0) * max(halves[reference], 0))),
        agreement.permutation_p(x, y, group, block, SHUFFLES, SEED),
    )


def oriented(found: Found, headline: Headline) -> Values:
    """Return a headline of all members, larger where it says more robust."""
    return headline.sign * found.values[headline.name]


def _halves(found: Found) -> dict[str, float]:
    """Return how far each quantity agrees with itself on two halves of its images, nan where it is not made of images."""
    reduce: dict[str, Reduce] = {headline.name: REDUCED[headline.statistic] for headline in HEADLINES}
    reduce |= {reference.name: mean for reference in REFERENCES}
    nothing = (None,) * len(found.members)
    return {
        name: agreement.halves(found.series.get(name, nothing), how, found.dataset, SPLITS, SEED)
        for name, how in reduce.items()
    }


def _adjusted(made: Mapping[tuple[str, str], Agreement], primary: bool) -> dict[tuple[str, str], Agreement]:
    keys = [key for key in made if (key[1] == PRIMARY) is primary]
    adjust = agreement.holm if primary else agreement.benjamini_hochberg
    adjusted: list[float] = adjust([made[key].p for key in keys]) if keys else []
    return {key: replace(made[key], adjusted=p) for key, p in zip(keys, adjusted, strict=True)}


@dataclass(frozen=True)
class Choice:
    """What is lost of the primary reference by choosing an encoder in some way."""

    by: str
    lost: float
    low: float
    high: float


def choices(found: Found) -> list[Choice]:
    """Return what is lost by choosing with each measure, by clean accuracy and at random, the least first."""
    y, group = found.values[PRIMARY], found.dataset
    ways: list[tuple[str, Any]] = [
        *((headline.name, oriented(found, headline)) for headline in HEADLINES),
        (CLEAN, found.values[CLEAN]),
        ("random", np.zeros(len(y))),
    ]
    drawn = agreement.draw_families(found.family, REPLICATES, SEED) > 0
    made = []
    for name, x in ways:
        lost = np.array([agreement.regret(x, y, group, row) for row in drawn])
        made.append(Choice(name, agreement.regret(x, y, group), *interval(lost)))
    return sorted(made, key=lambda choice: choice.lost)
