"""Answers of probes and retrieval for corrupted images, observed once for all evaluations.

Also here: relative accuracy drops and the list of common corruptions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import isnan
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.core.divergences import Cosine
from holdfast.core.encoder import Codes, Encoder, Pixels
from holdfast.core.errors import HoldfastError, UnknownName
from holdfast.core.files import hashed
from holdfast.core.noise import Noise
from holdfast.core.points.counting import Groups, share_of_pairs_within, shares_within
from holdfast.core.records import Claim, Conditions, Estimate, Series
from holdfast.core.run_settings import Observed
from holdfast.core.statistics.summaries import over_references, ratio_of_means, series_of, summarise, without_interval
from holdfast.corruptions.edits import change, check_range, kept_nearest, ready
from holdfast.measure.observation import Observation, entries, joined
from holdfast.measure.population import Fit, Population
from holdfast.probes.base import FittedProbe, Probe
from holdfast.transforms.base import Transform, transformed, transforms
from holdfast.transforms.severity import CommonCorruption

CODES = "codes"


def unfit(encoder: Encoder, corruption: Transform) -> str | None:
    """Return why images of this encoder cannot be corrupted so, if they cannot.

    Raises:
        HoldfastError: no corruption can change them.
    """
    check_range(encoder)
    return _unfit(encoder.domain.shape, corruption)


@cache
def _unfit(shape: tuple[int, ...], corruption: Transform) -> str | None:
    try:
        corruption(torch.zeros(1, *shape), Noise.of(0, ["a black image"]))
    except HoldfastError as error:
        if len(shape) != 3:
            raise
        return str(error)
    return None


@final
@dataclass(frozen=True)
class TaughtUnder(Fit[tuple[FittedProbe, ...]]):
    """Probes taught by the bank under ``corruption``, encoded again; none where it cannot change images of this size."""

    probes: tuple[Probe, ...]
    corruption: Transform
    name = "taught-under"
    version = 2
    uses_labels = True
    uses_bank = True

    def forward_passes(self, population: Population) -> int:
        return len(population.bank.images)

    def learn(self, population: Population) -> Observed:
        if unfit(population.encoder, self.corruption):
            return {CODES: torch.zeros(0, 1)}
        changed = self._changed(population)
        return {CODES: changed.bank.codes, **joined([probe.learn(changed) for probe in self.probes])}

    def restore(self, population: Population, learned: Observed) -> tuple[FittedProbe, ...]:
        if not len(learned[CODES]):
            return ()
        changed = self._changed(population, learned[CODES])
        return tuple(probe.restore(changed, entries(learned, index)) for index, probe in enumerate(self.probes))

    def _changed(self, population: Population, codes: Codes | None = None) -> Population:
        """Return the population whose bank is corrupted."""
        encoder, run, bank = population.encoder, population.run, population.bank.images
        # Under another seed: ids are often mere numbers, and noise shared with a measured image would be recognised.
        corrupted = transformed(bank, self.corruption, hashed(run.seed, "bank"))
        bank_population = Population(encoder, corrupted, run, codes)
        return Population(encoder, population.images, run, bank=bank_population)


@final
@dataclass(frozen=True)
class CorruptedAnswers(Observation):
    """Whether probes know corrupted images, and whether retrieval does. Entries run over ``corruptions``, (b, m).

    ``clean.p`` is 1 where probe ``p``, taught by the bank as it is, is right, and ``taught.p`` where it was ``retaught`` by
    the corrupted bank; ``kept`` where no image of the bank is closer, under cosine, than the own clean code; ``change`` is
    the cosine divergence between both codes. All are nan for a corruption that cannot change images of this size. Without
    corruptions, ``clean.p`` (b, 1) is about the images as they are.
    """

    probes: tuple[Probe, ...]
    corruptions: tuple[Transform, ...]
    samples: int
    retaught: bool = False
    """True to ask probes fitted on the corrupted reference set as well."""
    name = "corrupted-answers"
    version = 1
    uses_labels = True
    uses_bank = True
    uses_groups = True

    def fits(self) -> tuple[Fit[Any], ...]:
        return (
            *self.probes,
            *(TaughtUnder(self.probes, corruption) for corruption in self.corruptions if self.retaught),
        )

    def inputs(self, population: Population) -> int:
        return max(1, len(self.corruptions))

    def observe(self, population: Population, rows: Sequence[int]) -> Observed:
        probes = [population.learned(probe) for probe in self.probes]
        if not self.corruptions:
            pixels = population.pixels(rows)
            known = [right(probe, population, rows, pixels, population.codes[list(rows)]) for probe in probes]
            return {f"clean.{index}": ranks[:, None].cpu() for index, ranks in enumerate(known)}
        original, noise = ready(population, rows)
        columns: dict[str, list[Tensor]] = {}
        for corruption in self.corruptions:
            retaught = population.learned(TaughtUnder(self.probes, corruption)) if self.retaught else ()
            if unfit(population.encoder, corruption):
                counts = dict.fromkeys(self._names(), torch.full((len(rows),), torch.nan, dtype=torch.float64))
            else:
                pixels = corruption(original, noise).to(population.run.dtype)
                codes = population.encode(pixels)
                counts = retrieval(population, rows, codes)
                for kind, taught in (("clean", probes), ("taught", retaught)):
                    for index, probe in enumerate(taught):
                        counts[f"{kind}.{index}"] = right(probe, population, rows, pixels, codes)
            for name, values in counts.items():
                columns.setdefault(name, []).append(values)
        return {name: torch.stack([value.cpu() for value in values], dim=1) for name, values in columns.items()}

    def _names(self) -> list[str]:
        kinds = ("clean", "taught") if self.retaught else ("clean",)
        return ["kept", "change", *(f"{kind}.{index}" for kind in kinds for index in range(len(self.probes)))]

    def of_probe(self, probe: Probe, observed: Observed) -> Observed:
        """Return whether ``probe`` knows the images, ``clean`` and ``taught``, from what was ``observed``."""
        ending = f".{self.probes.index(probe)}"
        return {name.removesuffix(ending): values for name, values in observed.items() if name.endswith(ending)}


def right(
    probe: FittedProbe, population: Population, rows: Sequence[int], pixels: Pixels, codes: Codes
) -> Float[Tensor, "b"]:
    """1 where a probe gives the label of an image, else 0."""
    if probe.encoder is not population.encoder:  # one made from it: fine-tuned, or behind a filter
        with torch.no_grad():
            codes = probe.encoder.forward(pixels)
    return (probe.ranks(codes, population.labels[list(rows)]) == 0).double()


def retrieval(population: Population, rows: Sequence[int], codes: Codes) -> dict[str, Tensor]:
    """Return how far codes are from their clean ones, and whether these are nearer than all of the bank."""
    clean, bank, divergence = population.codes[list(rows)], population.bank.codes, Cosine()
    rival = bank[population.nearest(divergence, codes, rows, 1)]
    moved = change(divergence, codes[:, None], clean)
    return {"change": moved[:, 0], "kept": kept_nearest(divergence, codes[:, None], moved, rival)[:, 0]}


# From right and wrong answers to the relative drop of accuracy, and how it varies.
#
#     relative_accuracy_drop = (Acc(original) - Acc(corrupted)) / Acc(original)
#
# Zhong et al. 2022, https://arxiv.org/abs/2206.05259. Signed: a corruption may help.


def drops(original: Float[Tensor, "n"], corrupted: Float[Tensor, "n"]) -> Float[Tensor, "n"]:
    """Return one value per image whose mean is the relative drop of accuracy; nan where nothing was right to begin with.

    Example:
        >>> import torch
        >>> drops(torch.tensor([1.0, 1.0, 1.0, 0.0]), torch.tensor([1.0, 0.0, 1.0, 0.0])).mean()
        tensor(0.3333)
    """
    return 1 - ratio_of_means(corrupted, original)


def deviation(values: Sequence[float], conditions: Conditions) -> Estimate:
    """Return the standard deviation of the drop over permutations."""
    return without_interval(
        "permutation_deviation",
        conditions,
        float(np.std(values, ddof=1)),
        len(values),
        f"standard deviation over {len(values)} permutations; no interval for so few",
        "fraction of clean accuracy",
        "spread of the drop over permutations",
    )


def rank_correlation(drop: Sequence[float], lost: Sequence[float], conditions: Conditions) -> list[Estimate]:
    """Return Spearman's correlation of harm with and without labels over corruptions, if these are three at least."""
    from scipy.stats import spearmanr

    if len(drop) < 3 or len(set(drop)) == 1 or len(set(lost)) == 1 or any(map(isnan, [*drop, *lost])):
        return []
    of = "agreement of harm with and without labels"
    method = f"Spearman's over {len(drop)} corruptions, which are no sample of anything: no interval"
    value = float(spearmanr(drop, lost).statistic)
    return [without_interval("rank_correlation", conditions, value, len(drop), method, "correlation", of)]


KEPT = "corrupted images closer to their own original than to any image of the bank"
MOVED = "fraction of pairs of other images that lie no farther apart than the corruption moves the embedding"
UNDEFINED = "a zero embedding, which has no direction under cosine, or one that is not finite"


def without_labels(
    corruption: str, observed: Mapping[str, Tensor], pairs: Float[Tensor, "p d"], groups: Groups | None
) -> tuple[list[Series], list[Estimate]]:
    """Return nearest-neighbour accuracy and universal quantile under a corruption.

    ``observed`` are ``kept`` and ``change`` of ``CorruptedAnswers``, averaged over draws or severities; ``pairs`` the codes
    of the images whose pairs make the scale, and ``groups`` which of these belong together.
    """
    conditions, moved = {"corruption": corruption, "divergence": "cosine"}, observed["change"].mean(1).to(pairs.device)
    draws, unit, claim = observed["kept"].mean(1), "fraction of draws", Claim.ESTIMATE
    kept = series_of("nearest_neighbour_kept", conditions, draws, unit, claim, KEPT, UNDEFINED)
    shares, unit = share_of_pairs_within(Cosine(), moved, pairs, groups), "fraction of pairs"
    quantile = series_of("universal_quantile", conditions, shares, unit, claim, MOVED, UNDEFINED)
    near = shares_within(Cosine(), moved.nanmedian()[None], pairs, groups)[0]
    return [kept, quantile], [
        summarise(kept, "mean", "higher", "nearest_neighbour_accuracy"),
        over_references(summarise(quantile, "median", "lower"), near.cpu().numpy()),
    ]


SEVERITIES = (1, 2, 3, 4, 5)


def check_kinds(evaluation: str, kinds: Sequence[str]) -> None:
    """Check the names of common corruptions."""
    known = [name for name, kind in transforms().items() if issubclass(kind, CommonCorruption)]
    for name in kinds:
        if name not in known:
            raise UnknownName(f"{evaluation}.kinds", name, known)


def in_severities(name: str, severities: Sequence[int]) -> tuple[CommonCorruption, ...]:
    """One common corruption at several severities."""
    kind = transforms()[name]
    assert issubclass(kind, CommonCorruption)
    return tuple(kind(severity) for severity in severities)
