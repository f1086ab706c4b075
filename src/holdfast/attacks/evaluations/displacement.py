"""Displacement: how far an attack moves embeddings, as a quantile of distances between images.

The effective rank of clean embeddings says in how many dimensions this can happen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import nan
from typing import final

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from holdfast.attacks.attacked_codes import SIZES, UNDEFINED, Case, Untargeted, displacement_series
from holdfast.attacks.attacked_evaluation import AttackedEvaluation, check_objective
from holdfast.attacks.presets import aim_of
from holdfast.core.balls import Ball
from holdfast.core.divergences import Cosine, Divergence
from holdfast.core.points.counting import share_of_pairs_within, shares_within
from holdfast.core.points.moments import far_out, moments, together
from holdfast.core.records import Claim, Estimate, Findings, Picture, Question, Series
from holdfast.core.run_settings import Observed
from holdfast.core.statistics.intervals import jackknife, jackknife_interval
from holdfast.core.statistics.quantiles import quantile_influence
from holdfast.core.statistics.summaries import over_references, series_of, summarise
from holdfast.measure.evaluation import LATER
from holdfast.measure.observation import collapsed, estimate_of, findings_of, population_warnings, radius_curves
from holdfast.measure.population import Population

GROUPS = 10
"""Of the jackknife of the rank."""


def effective_rank(codes: Float[Tensor, "n d"]) -> float:
    """Effective dimension of embeddings: the participation ratio of the covariance.

    ``(sum l)^2 / sum l^2`` with eigenvalues ``l``: 1 if all variation lies along one direction, d if it is equal along
    all, 0 for collapsed embeddings.

    Example:
        >>> import torch
        >>> round(effective_rank(torch.eye(3)), 6)
        2.0
    """
    if codes.shape[1] <= len(codes):
        return moments(codes).rank
    # The Gram matrix of samples is the smaller one.
    if collapsed(codes):
        return 0.0
    centred = codes.double() - codes.double().mean(0)
    gram = centred @ centred.T
    return float(gram.trace() ** 2 / gram.square().sum())


def _rank_interval(codes: Float[Tensor, "n d"], order: Int[Tensor, "n"]) -> tuple[float, float, float]:
    """Return the effective rank and the interval of the jackknife whose groups are taken in turn from ``order``."""
    if len(codes) < GROUPS or codes.shape[1] > len(codes):
        shuffled = codes[order]
        value, ends = effective_rank(shuffled), (nan, nan)
        if len(codes) >= GROUPS:
            ends = jackknife(lambda rows: effective_rank(shuffled[rows]), len(codes), GROUPS)
        return value, *ends
    groups = [moments(codes, order[k::GROUPS]) for k in range(GROUPS)]
    value = together(groups).rank
    left_out = [together(groups[:k] + groups[k + 1 :]).rank for k in range(GROUPS)]
    return value, *jackknife_interval(value, np.array(left_out))


def rank_estimate(population: Population) -> Estimate:
    """Effective rank of the clean embeddings with its interval."""
    codes = population.codes
    # Shuffled, so that no group depends on the order of the images.
    value, low, high = _rank_interval(codes, population.random_order.to(codes.device))
    # Few samples span too few dimensions: the interval allows for it, the value does not.
    number, of = (value, min(low, value), max(high, value)), "effective rank of the clean representation"
    method = f"delete-a-group jackknife, 10 groups{far_out(codes, centred=True)}"
    return estimate_of("effective_rank", number, len(codes), method, "dimensions", of, "neither")


# Displacement of untargeted attacks as a universal quantile.
#
# ``universal_quantile(x) = P over pairs (x', x'') of D [ d(f(x'), f(x'')) <= d(f(x^), f(x)) ]``: the share of pairs of
# different images that are no farther apart than an attack moves one image. Petrov and Kwiatkowska 2022,
# https://arxiv.org/abs/2210.04076, section 5.1. Departure: all pairs of up to ``reference`` images, exactly, where the
# authors' program compares pairs within batches and reads a table.

LARGEST = "largest universal quantile"
LEFT_OUT = f"{UNDEFINED}; or no two different images to compare with"


@final
@dataclass(frozen=True)
class Displacement(AttackedEvaluation):
    """Embedding shift under attack, as a quantile of the distances between images."""

    samples: int = 1000
    """Number of attacked images."""
    reference: int = 10_000
    """Number of images whose pairs give the scale of quantiles."""
    objective: str = field(default="", metadata=LATER)
    """Distance (`l2`) or loss (`queue`) that attacks maximise; empty: each of `divergences`."""
    sizes = SIZES
    name = "displacement"
    version = 5
    title = "Displacement under attack"
    meaning = (
        "The universal quantile says what fraction of pairs of different images lie no farther apart than an attack moves "
        "one image: 0.01 is a nudge, 0.5 turns an image into a typical other one. An attack only shows what is possible, "
        "so the worst case is at least this bad."
    )
    headline = ("universal_quantile",)
    questions = (
        Question(
            place=40,
            text="How far can an attacker move it?",
            quantities=("universal_quantile",),
            meaning="pairs of other images that lie no farther apart",
        ),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_objective(self.objective, self.divergences[0])

    def conclude(self, population: Population, rows: Sequence[int], observed: Observed) -> Findings:
        clean = population.codes[list(rows)]
        distinct = self._distinct(population)
        pairs, groups = population.codes[distinct], population.groups_of(distinct)
        moved = [
            population.fitted(case.divergence)(
                self._after(case, observed)["codes"].to(clean.device).double(), clean.double()
            )
            for case in self._cases()
        ]
        shares = [torch.full_like(move, torch.nan) for move in moved]
        near = [torch.zeros(0) for _ in moved]
        for divergence in self.divergences if len(pairs) > 1 else ():
            # All cases of one divergence are looked up in one pass over the pairs.
            indices = [k for k, case in enumerate(self._cases()) if case.divergence == divergence]
            looked_up = share_of_pairs_within(
                population.fitted(divergence), torch.cat([moved[k] for k in indices]), pairs, groups
            )
            for k, share in zip(indices, looked_up.chunk(len(indices)), strict=True):
                shares[k] = share
            medians = torch.stack([moved[k].nanmedian() for k in indices])
            within = shares_within(population.fitted(divergence), medians, pairs, groups)
            for k, share in zip(indices, within, strict=True):
                near[k] = share
        moves = [displacement_series(case, move) for case, move in zip(self._cases(), moved, strict=True)]
        quantiles = [
            series_of("universal_quantile", case.conditions, share, "fraction of pairs", Claim.LOWER, LARGEST, LEFT_OUT)
            for case, share in zip(self._cases(), shares, strict=True)
        ]
        influences = [
            self._influence(population, rows, series, share) for series, share in zip(quantiles, near, strict=True)
        ]
        estimates = [
            over_references(summarise(series, "median", "lower"), share.cpu().numpy()).model_copy(
                update={"series": influence.quantity, "statistic": "mean"}
            )
            for series, share, influence in zip(quantiles, near, influences, strict=True)
        ]
        numbers = [*estimates, *(self._similarities(moved) if self.objective else ()), rank_estimate(population)]
        warnings = population_warnings(population, self.divergences)
        series = (*quantiles, *influences, *moves)
        return findings_of(population, rows, series, numbers, warnings, radius_curves(estimates))

    def _similarities(self, moved: Sequence[Tensor]) -> list[Estimate]:
        """Return the median cosine similarity to the clean embedding, as tables 5 to 7 of the paper have it."""
        name, of, unit = "cosine_similarity", "smallest similarity to the clean embedding", "cosine similarity"
        similarities = [
            series_of(name, case.conditions, 1 - move, unit, Claim.UPPER, of, UNDEFINED)
            for case, move in zip(self._cases(), moved, strict=True)
            if case.divergence == Cosine()
        ]
        return [summarise(series, "median", "higher") for series in similarities]

    def illustrate(
        self, population: Population, rows: Sequence[int], observed: Observed, findings: Findings
    ) -> tuple[Picture, ...]:
        def attack(case: Case, shown: list[int]) -> dict[str, Tensor]:
            return {"attacked": self._moved(population, case, shown)}

        return self._extremes(population, rows, findings, "universal_quantile", attack)

    def _influence(self, population: Population, rows: Sequence[int], quantiles: Series, near: Tensor) -> Series:
        """Return the median of ``quantiles`` as each image moves it: by how far it is carried and how near others are."""
        places = {row: place for place, row in enumerate(self._distinct(population))}
        here = np.array([places.get(row, -1) for row in rows])
        shares = np.append(near.double().cpu().numpy(), nan)[np.where(here < len(near), here, -1)]
        return quantile_influence(quantiles, shares, len(near))

    def _distinct(self, population: Population) -> list[int]:
        """Return the rows whose pairs are the scale, of copies of one image the first: copies are no distance apart."""
        rows = population.choose(self.reference)
        first = dict[int, int]()
        for row, original in zip(rows, population.first_copies[rows].tolist(), strict=True):
            first.setdefault(original, row)
        return list(first.values())

    def _attacks(self, ball: Ball, divergence: Divergence) -> Untargeted:
        divergence, loss = aim_of(self.objective, divergence)
        return Untargeted(ball, self.attacks, divergence, self.samples, loss)
