"""Certified overlap: which pairs of images can no allowed changes bring past each other, proved and attacked.

Two images overlap if ``d(f(x_i), f(x_j^)) < d(f(x_i), f(x_i^))`` for some ``x_i^`` and ``x_j^`` in their balls: the
impostor looks more like ``x_i`` than ``x_i``'s own changed version does (Petrov and Kwiatkowska 2022,
https://arxiv.org/abs/2210.04076, section 3). With a bound ``tau_i`` on how far ``f(x_i)`` moves, and a bound ``L_ij`` on
how near ``f(x_j^)`` comes to ``f(x_i)``,

    (L_ij - tau_i) / d(f(x_i), f(x_j))  <=  adversarial margin  <=  the margin that attacks leave

and no allowed changes overlap where the first is positive.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from holdfast.attacks.adaptive import AdaptiveAttack
from holdfast.attacks.base import Attack
from holdfast.bounds.methods.base import Crown, Method
from holdfast.core.balls import Ball, Linf
from holdfast.core.divergences import Cosine, Divergence, L2Distance
from holdfast.core.encoder import Codes, Pixels
from holdfast.core.records import Claim, Conditions, Estimate, Findings, Series
from holdfast.core.run import Observed
from holdfast.core.statistics import summarise
from holdfast.evaluations.certified.bisector_hyperplanes import ALIKE
from holdfast.evaluations.certified.displacement import exact, farthest_found, refuted
from holdfast.evaluations.certified.findings import both_ends, counted, series, witness_of
from holdfast.evaluations.certified.output_bounds import OutputBounds
from holdfast.evaluations.certified.pairs import bounded
from holdfast.objectives.base import AttackContext
from holdfast.objectives.toward import Toward
from holdfast.protocol.evaluation import Evaluation
from holdfast.protocol.observation import Joint, Observation
from holdfast.protocol.population import Population

OVERLAP = "overlap under the worst allowed changes"
MARGIN = "smallest adversarial margin"
UNDEFINED = "the two images have one code, or one has a zero code"


@final
@dataclass(frozen=True)
class OverlapBounds(Observation):
    """For each image and its partner: the most that it can move and the least distance of its impostor, and attacks' own.

    ``tau`` and ``near`` are bounds, ``moved`` and ``came`` what attacks reached, ``apart`` the clean distance.
    """

    ball: Ball
    divergence: Divergence
    anchors: int
    method: Method
    attack: Attack
    neurons: int
    name = "between"
    version = 3

    def rows(self, population: Population) -> list[int]:
        return population.choose(self.anchors)

    def observe(self, population: Population, rows: Sequence[int]) -> Observed:
        encoder, pixels = exact(population, rows)
        partners = population.partners[list(rows)].tolist()
        _, others = exact(population, partners)
        reach = OutputBounds(encoder, bounded(population, self.neurons), self.method, self.ball)
        own, impostor = self.attacked(population, rows)
        with torch.no_grad():
            codes, targets = encoder.forward(pixels), encoder.forward(others)
            seen = {
                "apart": self.divergence(targets, codes).masked_fill(alike(self.divergence, targets, codes), torch.nan),
                "moved": self.divergence(encoder.forward(own), codes),
                "came": self.divergence(encoder.forward(impostor), codes),
            }
        bounds = {
            "tau": reach.farthest(self.divergence, pixels),
            "near": reach.nearest(self.divergence, others, codes),
        }
        return {**seen, **bounds}

    def attacked(self, population: Population, rows: Sequence[int]) -> tuple[Pixels, Pixels]:
        """Return each image moved as far as attacks get it, and its partner moved as close to it as they get that."""
        partners = population.partners[list(rows)].tolist()
        (encoder, pixels), (_, others) = exact(population, rows), exact(population, partners)
        noise = population.run.noise([population.images.ids[row] for row in rows]).fork("between")
        goal = Toward(self.divergence)(AttackContext(encoder, others, noise, pixels))
        impostor = self.attack(encoder, others, goal, self.ball, noise)
        return farthest_found(population, rows, self.divergence, self.attack, self.ball), impostor


@final
@dataclass(frozen=True)
class CertifiedOverlap(Evaluation):
    """Which pairs of images can be brought past each other: no more than proved, no fewer than attacked."""

    balls: tuple[Ball, ...] = (Linf(0.05), Linf(0.1))
    divergences: tuple[Divergence, ...] = (L2Distance(), Cosine())
    anchors: int = 100
    method: Method = Crown()
    attack: Attack = AdaptiveAttack()
    neurons: int = 50_000
    name = "certified-overlap"
    version = 3
    needs_gradients = True
    title = "Certified overlap risk"
    meaning = (
        "Two images overlap when both can be changed so that the impostor looks more like the first image than the first "
        "image's own changed version does. The certified risk counts the pairs for which that is not proved impossible, and "
        "can only be too high; the attacked risk counts those for which attacks did it, and can only be too low."
    )
    headline = ("certified_overlap_risk", "attacked_overlap_risk")

    def observation(self) -> Joint:
        return Joint(tuple(self._between(ball, divergence) for ball, divergence in self._cases()))

    def conclude(self, population: Population, rows: Sequence[int], observed: Observed) -> Findings:
        found: list[Series] = []
        summed: list[Estimate] = []
        counts: list[Estimate] = []
        proof: dict[str, str] = {}
        for k, (ball, divergence) in enumerate(self._cases()):
            seen = {name: observed[f"{k}.{name}"].double() for name in ("apart", "moved", "came", "tau", "near")}
            case: Conditions = {"ball": str(ball), "divergence": str(divergence)}
            certified, attacked = margins(seen)
            one = self._series(certified, attacked, case)
            found += one
            names = ("certified_overlap_risk", "attacked_overlap_risk")
            summed += [summarise(s, "share", "lower", name) for s, name in zip(one[:2], names, strict=True)]
            summed += [summarise(s, "median", "higher") for s in one[2:]]
            # Each half is a claim of its own, and is held against its own attack.
            wrong = refuted(seen["tau"], seen["moved"]) | refuted(seen["came"], seen["near"])
            counts.append(counted(wrong, certified.isfinite(), {**case, "method": str(self.method)}))
            if counts[-1].value and not proof:
                proof = self._witness(population, rows[int(wrong.nonzero()[0, 0])], ball, divergence)
        return both_ends(population, rows, found, summed, counts, proof, self.balls)

    def _series(self, certified: Float[Tensor, "n"], attacked: Float[Tensor, "n"], case: Conditions) -> list[Series]:
        proved, struck = {**case, "method": str(self.method)}, {**case, "attack": str(self.attack)}
        unit, undefined = "share of clean distance", certified.isnan() | attacked.isnan()
        values = [
            ("certified_overlaps", proved, (certified <= 0).double(), "yes or no", Claim.UPPER, OVERLAP),
            ("attacked_overlaps", struck, (attacked < 0).double(), "yes or no", Claim.LOWER, OVERLAP),
            ("certified_margin", proved, certified, unit, Claim.LOWER, MARGIN),
            ("attacked_margin", struck, attacked, unit, Claim.UPPER, MARGIN),
        ]
        return [
            series(quantity, conditions, numbers.masked_fill(undefined, torch.nan), kind, claim, of, UNDEFINED)
            for quantity, conditions, numbers, kind, claim, of in values
        ]

    def _witness(self, population: Population, row: int, ball: Ball, divergence: Divergence) -> dict[str, str]:
        """Return the first contradiction, found once more: the attacked impostor, or the image moved too far."""
        between = self._between(ball, divergence)
        partner, seen = int(population.partners[row]), between.observe(population, [row])
        own, impostor = between.attacked(population, [row])
        facts = {
            "image": population.images.ids[row],
            "other": population.images.ids[partner],
            "divergence": str(divergence),
            **{name: f"{float(value):.6g}" for name, value in seen.items()},
        }
        if bool(refuted(seen["tau"], seen["moved"])):
            return witness_of(population, row, own[0], ball, {**facts, "refuted": "tau"})
        return witness_of(population, partner, impostor[0], ball, {**facts, "refuted": "near"})

    def _between(self, ball: Ball, divergence: Divergence) -> OverlapBounds:
        return OverlapBounds(ball, divergence, self.anchors, self.method, self.attack, self.neurons)

    def _cases(self) -> list[tuple[Ball, Divergence]]:
        return [(ball, divergence) for ball in self.balls for divergence in self.divergences]


def alike(divergence: Divergence, one: Codes, other: Codes) -> Bool[Tensor, "n"]:
    """Return which codes are the same up to rounding, so that a share of their distance means nothing."""
    if isinstance(divergence, Cosine):
        return divergence(one, other) <= ALIKE**2 / 2
    return (one - other).norm(dim=1) <= ALIKE * torch.maximum(one.norm(dim=1), other.norm(dim=1))


def margins(seen: Observed) -> tuple[Float[Tensor, "n"], Float[Tensor, "n"]]:
    """Return the certified and the attacked margin of each pair; nan where the images have one code."""
    apart = seen["apart"].masked_fill(~(seen["apart"] > 0), torch.nan)
    return (seen["near"] - seen["tau"]) / apart, (seen["came"] - seen["moved"]) / apart
