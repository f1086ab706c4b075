"""What the numbers of the zoo say of each measure: agreement with each reference, with all that makes one doubt it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import nan
from typing import Any

import numpy as np
from jaxtyping import Float

from studies import agreement
from studies.agreement import interval, tau
from studies.collected import Found
from studies.measures import HEADLINES, REDUCED, Headline, mean
from studies.references import CLEAN, PRIMARY, REFERENCES

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


class Resampled:
    """Numbers of the same encoders on redrawn images, each quantity once."""

    def __init__(self, found: Found) -> None:
        self.found, self.kept = found, dict[str, Float[np.ndarray, "b e"]]()

    def __call__(self, name: str, reduce: Callable[[Values], float]) -> Float[np.ndarray, "b e"]:
        if name not in self.kept:
            # Measures and references have other images, so that each has a seed of its own.
            seed = SEED + 1 + (name in {CLEAN, *(one.name for one in REFERENCES)})
            self.kept[name] = agreement.resampled(
                self.found.series.get(name, (None,) * len(self.found.members)),
                self.found.values[name],
                reduce,
                REPLICATES,
                seed,
            )
        return self.kept[name]

    def measure(self, headline: Headline) -> Float[np.ndarray, "b e"]:
        """Return a headline, larger where it says more robust."""
        return headline.sign * self(headline.name, REDUCED[headline.statistic])

    def reference(self, name: str) -> Float[np.ndarray, "b e"]:
        """Return a reference; the share retained is a ratio of two others."""
        if name == "share retained":
            return self(PRIMARY, mean) / self(CLEAN, mean)
        return self(name, mean)


def concluded(found: Found, thorough: bool = True) -> dict[tuple[str, str], Agreement]:
    """Return what is found of each measure and reference; unless ``thorough``, of the primary reference alone."""
    drawn = agreement.draw_families(found.family, REPLICATES, SEED)
    resampled, made = Resampled(found), dict[tuple[str, str], Agreement]()
    for reference in REFERENCES if thorough else REFERENCES[:1]:
        for headline in HEADLINES:
            made[headline.name, reference.name] = _agreement(found, resampled, drawn, headline, reference.name)
    return made | _adjusted(made, primary=True) | _adjusted(made, primary=False)


def _agreement(
    found: Found, resampled: Resampled, drawn: Float[np.ndarray, "b e"], headline: Headline, reference: str
) -> Agreement:
    x, y, group = oriented(found, headline), found.values[reference], found.dataset
    xs, ys = resampled.measure(headline), resampled.reference(reference)
    given: dict[str, tuple[float, float, float]] = {}
    if reference == PRIMARY:
        for name, others in ((CLEAN, (CLEAN,)), (SCALE, (SCALE,)), (BOTH, (CLEAN, SCALE))):
            here = [found.values[one] for one in others]
            there = [resampled(one, mean) for one in others]
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
        _ceiling(found, headline, reference),
        agreement.permutation_p(x, y, group, block, SHUFFLES, SEED),
    )


def oriented(found: Found, headline: Headline) -> Values:
    """Return a headline of all members, larger where it says more robust."""
    return headline.sign * found.values[headline.name]


def _ceiling(found: Found, headline: Headline, reference: str) -> float:
    """Return the geometric mean of how far measure and reference agree with themselves on two halves of the images."""
    nothing = (None,) * len(found.members)
    parts = (
        (found.series.get(headline.name, nothing), REDUCED[headline.statistic]),
        (found.series.get(reference, nothing), mean),
    )
    halves = [agreement.halves(series, reduce, found.dataset, SPLITS, SEED) for series, reduce in parts]
    return float(np.sqrt(max(halves[0], 0) * max(halves[1], 0))) if not np.isnan(halves).any() else nan


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
