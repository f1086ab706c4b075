"""What the numbers of the zoo say of each measure: agreement with each reference, with all that makes one doubt it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import nan

import numpy as np
from jaxtyping import Bool, Float, Int

from studies.agreement import rankings as agreement
from studies.agreement.collected import Found
from studies.agreement.measures import CLEAN, HEADLINES, JUDGED, RADIUS, REDUCED, SCALE, Headline, Reduce, mean
from studies.agreement.rankings import Interval, interval
from studies.agreement.references import PRIMARY, REFERENCES, Reference

REPLICATES, SHUFFLES, SPLITS, SEED = 10_000, 10_000, 20, 0
ALL = "all three"
GIVEN: Mapping[str, tuple[str, ...]] = {
    CLEAN: (CLEAN,),
    SCALE: (SCALE,),
    RADIUS: (RADIUS,),
    ALL: (CLEAN, SCALE, RADIUS),
}
"""What encoders differ in besides; a baseline is taken given the others."""
PIECE = 25
"""Replicates that are ranked at a time: so few fit the cache of a processor."""
FEWEST = 6
"""Encoders of a data set below which a measure is not judged on them."""
Values = Float[np.ndarray, "e"]
Taus = Float[np.ndarray, "b q q"]


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
    given: Mapping[str, tuple[float, Interval]]
    """Partial tau and its interval over encoders and images, given what encoders differ in besides."""
    families: tuple[float, float]
    """The smallest and the largest tau when one family is left out."""
    ceiling: float
    """What tau can at most be expected to be, as far as the chance in images limits it; nan if unknown."""
    p: float
    """With its Monte Carlo error against it."""
    adjusted: float = nan
    """``p`` after Holm for the primary reference, after Benjamini and Hochberg for all others together."""

    @property
    def sure(self) -> bool:
        """Return whether the interval over images and encoders leaves out 0."""
        return self.over_both.above or self.over_both.below


@dataclass(frozen=True)
class Resampled:
    """Numbers of encoders on redrawn images, by quantity; measures are larger where they say more robust."""

    found: Found
    draws: Mapping[str, Float[np.ndarray, "b e"]]
    references: tuple[Reference, ...] = REFERENCES
    """What measures are compared with, the primary one first."""

    @classmethod
    def of(cls, found: Found, references: tuple[Reference, ...] = REFERENCES) -> Resampled:
        """Return ``REPLICATES`` draws of all quantities; measures and references have images, and so draws, of their own."""
        measured = {h.name: h.sign * _draws(found, h.name, h.statistic, SEED + 1) for h in HEADLINES}
        served = {name: _draws(found, name, "mean", SEED + 2) for name in (CLEAN, *(one.name for one in references))}
        served["share retained"] = served[PRIMARY] / served[CLEAN]
        beside = {name: _draws(found, name, "mean", SEED) for name in (SCALE, RADIUS)}
        return cls(found, {**measured, **served, **beside}, references)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the quantities of which taus are taken, in the order of their matrices."""
        return (*(headline.name for headline in JUDGED), *(reference.name for reference in self.references))

    def only(self, chosen: Bool[np.ndarray, "e"]) -> Resampled:
        """Return the same draws of those encoders that are ``chosen``."""
        draws = {name: values[:, chosen] for name, values in self.draws.items()}
        return Resampled(self.found.only(chosen), draws, self.references)

    @cached_property
    def beside(self) -> Resampled:
        """Return the same draws with the primary reference alone, where no other is asked for."""
        return replace(self, references=self.references[:1])

    @cached_property
    def taus(self) -> tuple[Float[np.ndarray, "q q"], Taus]:
        """Return the taus of every two of ``names`` over pairs within a data set, and their replicates."""
        return replicates(self, self.found.dataset)

    @cached_property
    def alike(self) -> tuple[Float[np.ndarray, "q q"], Taus]:
        """Return the same where all pairs count alike."""
        return replicates(self, self.found.dataset, alike=True)

    def pieces(self) -> Iterator[tuple[slice, Float[np.ndarray, "b q e"]]]:
        """Yield some replicates of all of ``names`` at a time, and which they are."""
        for start in range(0, REPLICATES, PIECE):
            rows = slice(start, min(start + PIECE, REPLICATES))
            yield rows, np.stack([self.draws[name][rows] for name in self.names], axis=1)


def _draws(found: Found, name: str, statistic: str, seed: int) -> Float[np.ndarray, "b e"]:
    series = found.series.get(name, (None,) * len(found.members))
    return agreement.resampled(series, found.values[name], REDUCED[statistic], REPLICATES, seed, statistic)


def _values(resampled: Resampled) -> Float[np.ndarray, "q e"]:
    """Return the numbers themselves, larger where they say more robust."""
    signs = {headline.name: headline.sign for headline in HEADLINES}
    return np.stack([signs.get(name, 1) * resampled.found.values[name] for name in resampled.names])


def replicates(
    resampled: Resampled, group: Int[np.ndarray, "e"], alike: bool = False
) -> tuple[Float[np.ndarray, "q q"], Taus]:
    """Return the taus of every two of ``names`` over pairs within a group, and those of redrawn encoders and images."""
    found = resampled.found
    drawn = agreement.draw_families(found.family, REPLICATES, SEED)
    both = np.concatenate([agreement.taus(values, group, drawn[rows], alike) for rows, values in resampled.pieces()])
    return agreement.taus(_values(resampled), group, alike=alike), both


def among(resampled: Resampled, group: Int[np.ndarray, "e"] | None = None) -> dict[str, tuple[float, Interval]]:
    """Return tau of each of ``JUDGED`` with the primary reference, and its interval over images and encoders.

    Pairs within a ``group`` are compared; by default that is a data set.
    """
    resampled = resampled.beside
    seen, both = resampled.taus if group is None else replicates(resampled, group)
    reference = resampled.names.index(PRIMARY)
    return {
        headline.name: (float(seen[place, reference]), interval(both[:, place, reference]))
        for place, headline in enumerate(JUDGED)
    }


def beyond(resampled: Resampled, baseline: str) -> dict[str, Interval]:
    """Return the interval of tau of each of ``JUDGED`` with the primary reference less that of a baseline.

    All pairs count alike: a baseline that tells few apart is behind in those that it does not.
    """
    resampled = resampled.beside
    _, both = resampled.alike
    reference, other = resampled.names.index(PRIMARY), resampled.names.index(baseline)
    gaps = both[:, :, reference] - both[:, other, reference][:, None]
    return {headline.name: interval(gaps[:, place]) for place, headline in enumerate(JUDGED)}


def concluded(resampled: Resampled) -> dict[tuple[str, str], Agreement]:
    """Return what is found of each of ``JUDGED`` with each reference."""
    found, made = resampled.found, dict[tuple[str, str], Agreement]()
    drawn, halves = agreement.draw_families(found.family, REPLICATES, SEED), _halves(resampled)
    values, group = _values(resampled), found.dataset
    images = np.concatenate([agreement.taus(part, group) for _, part in resampled.pieces()])
    seen, both = resampled.taus
    encoders = np.concatenate([agreement.taus(values, group, drawn[rows]) for rows, _ in resampled.pieces()])
    shuffled = _shuffled(found, resampled.references)
    for reference in resampled.references:
        for headline in JUDGED:
            of = Compared(headline, reference.name, resampled.names, images, encoders, both)
            made[headline.name, reference.name] = of.agreement(found, seen, halves, shuffled)
    return made | _adjusted(made, primary=True) | _adjusted(made, primary=False)


def _shuffled(found: Found, references: Sequence[Reference]) -> dict[tuple[str, str], float]:
    """Return the p-values of each of ``JUDGED`` with each reference: one set of shuffles serves all references."""
    block, served = found.dataset * 1000 + found.family, np.stack([found.values[one.name] for one in references])
    return {
        (headline.name, reference.name): p
        for headline in JUDGED
        for reference, p in zip(
            references,
            agreement.permutation_p(oriented(found, headline), served, found.dataset, block, SHUFFLES, SEED),
            strict=True,
        )
    }


@dataclass(frozen=True)
class Compared:
    """A measure or baseline and a reference, with the taus of all quantities in every replicate."""

    headline: Headline
    reference: str
    names: tuple[str, ...]
    images: Taus
    encoders: Taus
    both: Taus

    def agreement(
        self,
        found: Found,
        seen: Float[np.ndarray, "q q"],
        halves: Mapping[str, float],
        shuffled: Mapping[tuple[str, str], float],
    ) -> Agreement:
        """Return how far they agree; ``seen`` are the taus of the numbers themselves."""
        name, reference = self.headline.name, self.reference
        x, y = oriented(found, self.headline), found.values[reference]
        place = self.names.index(name), self.names.index(reference)
        over_images, over_encoders, over_both = (
            interval(taus[:, place[0], place[1]]) for taus in (self.images, self.encoders, self.both)
        )
        return Agreement(
            name,
            reference,
            int((np.isfinite(x) & np.isfinite(y)).sum()),
            float(seen[place]),
            agreement.spearman(x, y, found.dataset),
            over_images,
            over_encoders,
            over_both,
            self._given(place, seen) if reference == PRIMARY else {},
            agreement.leave_one_out(x, y, found.dataset, found.family),
            float(np.sqrt(max(halves[name], 0) * max(halves[reference], 0))),
            agreement.at_most(shuffled[name, reference], SHUFFLES),
        )

    def _given(self, place: tuple[int, int], seen: Float[np.ndarray, "q q"]) -> dict[str, tuple[float, Interval]]:
        found = dict[str, tuple[float, Interval]]()
        for name, all_others in GIVEN.items():
            others: Sequence[int] = [self.names.index(one) for one in all_others if one != self.headline.name]
            partial = float(agreement.partial(seen, *place, others)) if others else nan
            replicates = agreement.partial(self.both, *place, others) if others else np.array([nan])
            found[name] = (partial, interval(replicates))
        return found


def oriented(found: Found, headline: Headline) -> Values:
    """Return a headline of all members, larger where it says more robust."""
    return headline.sign * found.values[headline.name]


def ceiling(resampled: Resampled, name: str) -> float:
    """Return what tau of a quantity with the primary reference can at most be expected to be; nan if unknown."""
    halves = _halves(resampled)
    return float(np.sqrt(max(halves[name], 0) * max(halves[PRIMARY], 0)))


def _halves(resampled: Resampled) -> dict[str, float]:
    """Return how far each quantity agrees with itself on two halves of its images, nan where it is not made of images."""
    reduce: dict[str, Reduce] = {headline.name: REDUCED[headline.statistic] for headline in JUDGED}
    reduce |= {reference.name: mean for reference in resampled.references}
    found = resampled.found
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
    """What is lost of the primary reference by choosing an encoder of each data set in some way."""

    by: str
    lost: Mapping[str, float]
    """In each data set."""
    wins: float
    """Share of redrawn sets of encoders in which no way of choosing loses less on average; ties count."""

    @property
    def mean(self) -> float:
        """Return the mean over data sets."""
        return float(np.mean(list(self.lost.values())))


def choices(found: Found) -> list[Choice]:
    """Return what is lost by choosing with each measure that is known, by each baseline and at random, the least first.

    The largest of some numbers has no valid bootstrap interval, so there is none; how often a way of choosing is the best
    one over redrawn families says how much a loss may be luck.
    """
    y, group = found.values[PRIMARY], found.dataset
    by_measure = {headline.name: oriented(found, headline) for headline in JUDGED}
    ways = {name: x for name, x in by_measure.items() if np.isfinite(x).any()} | {"random": np.zeros(len(y))}
    drawn = agreement.draw_families(found.family, REPLICATES, SEED) > 0
    redrawn = np.stack([np.nanmean(agreement.losses(x, y, group, drawn), axis=-1) for x in ways.values()])
    wins = (redrawn <= redrawn.min(axis=0) + 1e-12).mean(axis=1)
    names = list(dict.fromkeys(member.dataset for member in found.members))
    made = [
        Choice(name, dict(zip(names, agreement.losses(x, y, group).tolist(), strict=True)), float(share))
        for (name, x), share in zip(ways.items(), wins, strict=True)
    ]
    return sorted(made, key=lambda choice: choice.mean)
