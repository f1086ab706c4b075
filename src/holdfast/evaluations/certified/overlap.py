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
from functools import partial
from itertools import product
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
from holdfast.evaluations.certified.certification import Certification
from holdfast.evaluations.certified.displacement import exceeds, farthest_attacked, in_float64
from holdfast.evaluations.certified.findings import CrossCheck, ball_curves, findings, series
from holdfast.evaluations.certified.output_bounds import OutputBounds
from holdfast.evaluations.certified.pairs import bounded
from holdfast.evaluations.certified.witness import point_witness
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
    """For each image and its partner: bounds of how far it moves and of how near its impostor comes, and attacks on both.

    ``tau`` and ``near`` are the bounds, ``moved`` and ``came`` what attacks reached, ``apart`` the clean distance.
    """

    certification: Certification
    ball: Ball
    divergence: Divergence
    name = "between"
    version = 3

    def rows(self, population: Population) -> list[int]:
        return population.choose(self.certification.anchors)

    def observe(self, population: Population, rows: Sequence[int]) -> Observed:
        encoder, pixels = in_float64(population, rows)
        _, partners = in_float64(population, population.partners[list(rows)].tolist())
        graph = bounded(population, self.certification.neurons)
        bounds = OutputBounds(encoder, graph, self.certification.method, self.ball)
        own, impostor = self.attacked(population, rows)
        with torch.no_grad():
            codes, targets = encoder.forward(pixels), encoder.forward(partners)
            apart, same = self.divergence(targets, codes), same_codes(self.divergence, targets, codes)
            moved = self.divergence(encoder.forward(own), codes)
            came = self.divergence(encoder.forward(impostor), codes)
        return {
            "apart": apart.masked_fill(same, torch.nan),
            "moved": moved,
            "came": came,
            "tau": bounds.farthest(self.divergence, pixels),
            "near": bounds.nearest(self.divergence, partners, codes),
        }

    def attacked(self, population: Population, rows: Sequence[int]) -> tuple[Pixels, Pixels]:
        """Return each image moved as far as attacks move it, and its partner moved as close to the image as they can."""
        attack = self.certification.attack
        encoder, pixels = in_float64(population, rows)
        _, partners = in_float64(population, population.partners[list(rows)].tolist())
        noise = population.run.noise([population.images.ids[row] for row in rows]).fork("between")
        objective = Toward(self.divergence)(AttackContext(encoder, partners, noise, pixels))
        impostor = attack(encoder, partners, objective, self.ball, noise)
        return farthest_attacked(population, rows, self.divergence, attack, self.ball), impostor


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
        return Joint(tuple(self._bounds(ball, divergence) for ball, divergence in self._cases()))

    def conclude(self, population: Population, rows: Sequence[int], observed: Observed) -> Findings:
        found: list[Series] = []
        estimates: list[Estimate] = []
        checks: list[CrossCheck] = []
        for k, (ball, divergence) in enumerate(self._cases()):
            values = {name: observed[f"{k}.{name}"].double() for name in ("apart", "moved", "came", "tau", "near")}
            case: Conditions = {"ball": str(ball), "divergence": str(divergence)}
            certified, attacked = margins(values)
            one = self._series(certified, attacked, case)
            found += one
            names = ("certified_overlap_risk", "attacked_overlap_risk")
            estimates += [summarise(s, "share", "lower", name) for s, name in zip(one[:2], names, strict=True)]
            estimates += [summarise(s, "median", "higher") for s in one[2:]]
            # Each half is a claim of its own, and is held against its own attack.
            refuted = exceeds(values["moved"], values["tau"]) | exceeds(values["near"], values["came"])
            witness = partial(self._witness, population, rows, ball, divergence)
            checks.append(CrossCheck(refuted, certified.isfinite(), {**case, "method": str(self.method)}, witness))
        return findings(population, rows, found, estimates, checks, ball_curves(estimates, self.balls))

    def _series(self, certified: Float[Tensor, "n"], attacked: Float[Tensor, "n"], case: Conditions) -> list[Series]:
        by_bounds, by_attack = {**case, "method": str(self.method)}, {**case, "attack": str(self.attack)}
        unit, undefined = "share of clean distance", certified.isnan() | attacked.isnan()
        values = [
            ("certified_overlaps", by_bounds, (certified <= 0).double(), "yes or no", Claim.UPPER, OVERLAP),
            ("attacked_overlaps", by_attack, (attacked < 0).double(), "yes or no", Claim.LOWER, OVERLAP),
            ("certified_margin", by_bounds, certified, unit, Claim.LOWER, MARGIN),
            ("attacked_margin", by_attack, attacked, unit, Claim.UPPER, MARGIN),
        ]
        return [
            series(quantity, conditions, numbers.masked_fill(undefined, torch.nan), kind, claim, of, UNDEFINED)
            for quantity, conditions, numbers, kind, claim, of in values
        ]

    def _witness(
        self, population: Population, rows: Sequence[int], ball: Ball, divergence: Divergence, image: int
    ) -> dict[str, str]:
        """Return the attacked impostor, or the image moved too far."""
        observation, row = self._bounds(ball, divergence), rows[image]
        partner, values = int(population.partners[row]), observation.observe(population, [row])
        own, impostor = observation.attacked(population, [row])
        facts = {
            "image": population.images.ids[row],
            "other": population.images.ids[partner],
            "divergence": str(divergence),
            **{name: f"{float(value):.6g}" for name, value in values.items()},
            "ball": str(ball),
        }
        if bool(exceeds(values["moved"], values["tau"])):
            return point_witness(population, row, own[0], ball, {**facts, "refuted": "tau"})
        return point_witness(population, partner, impostor[0], ball, {**facts, "refuted": "near"})

    def _bounds(self, ball: Ball, divergence: Divergence) -> OverlapBounds:
        return OverlapBounds(Certification(self.anchors, self.method, self.attack, self.neurons), ball, divergence)

    def _cases(self) -> list[tuple[Ball, Divergence]]:
        return list(product(self.balls, self.divergences))


def same_codes(divergence: Divergence, one: Codes, other: Codes) -> Bool[Tensor, "n"]:
    """Return which codes are the same up to rounding, so that a share of their distance means nothing."""
    if isinstance(divergence, Cosine):
        return divergence(one, other) <= ALIKE**2 / 2
    return (one - other).norm(dim=1) <= ALIKE * torch.maximum(one.norm(dim=1), other.norm(dim=1))


def margins(values: Observed) -> tuple[Float[Tensor, "n"], Float[Tensor, "n"]]:
    """Return the certified and the attacked margin of each pair; nan where the images have one code."""
    apart = values["apart"].masked_fill(~(values["apart"] > 0), torch.nan)
    return (values["near"] - values["tau"]) / apart, (values["came"] - values["moved"]) / apart
