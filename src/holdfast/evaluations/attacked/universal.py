"""Universal perturbations: one change for all images, and how much of the harm it carries to images it never saw.

Moosavi-Dezfooli et al. 2017, https://arxiv.org/abs/1610.08401, found single perturbations that most images of a classifier
cannot stand. They need neither a gradient nor a look at the image when they are used: whoever learned one once adds it to
everything. Departure: it is learned to move codes, where the paper crosses decision boundaries one image after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from holdfast.attacks.base import Attack
from holdfast.core.balls import Ball
from holdfast.core.divergences import Divergence, L2Distance
from holdfast.core.pictures import SHOWN, row
from holdfast.core.records import Findings, Picture
from holdfast.core.run_settings import Observed
from holdfast.evaluations.attacked.harm_kept import Further, OwnAttacks
from holdfast.evaluations.attacked.observations import ATTACKS, BALLS
from holdfast.evaluations.attacked.pictures import change
from holdfast.evaluations.attacked.sizes import SIZES
from holdfast.evaluations.attacked.universal_perturbation import Universal, UniversalPerturbation, seen_and_unseen
from holdfast.protocol.evaluation import Evaluation
from holdfast.protocol.observation import Joint
from holdfast.protocol.population import Population
from holdfast.protocol.sizes import Sizes
from holdfast.protocol.warnings import population_warnings

SEEN, UNSEEN = "seen", "unseen"
ONE_FOR_ALL = "one for all images"


@final
@dataclass(frozen=True)
class UniversalRisk(Evaluation):
    """What one perturbation for all images does, to those it was learned from and to others."""

    balls: tuple[Ball, ...] = BALLS
    attacks: tuple[Attack, ...] = ATTACKS
    divergences: tuple[Divergence, ...] = (L2Distance(),)
    samples: int = 1000
    seen: int = 500
    restarts: int = 3
    steps: int = 100
    batch: int = 32
    sizes = Sizes(
        quick={**SIZES.quick, "seen": 100, "restarts": 1, "steps": 30},
        full={**SIZES.full, "seen": 5000, "steps": 500},
        large={**SIZES.large, "restarts": 1, "steps": 20, "batch": 8},
        small_only=True,
    )
    name = "universal"
    version = 2
    partial = True
    pictured = 0
    uses_bank = True
    needs_gradients = True
    title = "Universal perturbations"
    meaning = (
        "One perturbation for all images needs no knowledge of the image that it is added to. Harm kept says how far it "
        "carries images, as a share of how far an attack on each of them does; on images that it was not learned from it is "
        "what is left to an attacker who learned it elsewhere. Random noise of the same size stands beside it."
    )
    headline = ("harm_kept", "nearest_neighbour_accuracy")

    def observation(self) -> Joint:
        attacks = self._own_attacks
        parts = [
            part
            for ball, divergence in attacks.cases
            for part in (
                attacks.observation(ball, divergence),
                self._universal(ball, divergence),
                attacks.noise(ball),
            )
        ]
        return Joint(tuple(dict.fromkeys(parts)))

    def conclude(self, population: Population, rows: Sequence[int], observed: Observed) -> Findings:
        joint, masks = self.observation(), seen_and_unseen(population, rows, self.seen)

        def universal(ball: Ball, divergence: Divergence) -> dict[Further, Tensor]:
            return {(("attack", ONE_FOR_ALL),): joint.of(self._universal(ball, divergence), observed)["codes"]}

        halves = [((("images", name),), mask) for name, mask in zip((SEEN, UNSEEN), masks, strict=True)]
        series, estimates = self._own_attacks.beside(population, rows, joint, observed, universal, halves)
        return Findings(
            ids=tuple(population.images.ids[row] for row in rows),
            series=tuple(series),
            estimates=tuple(estimates),
            warnings=population_warnings(population, self.divergences),
        )

    def illustrate(
        self, population: Population, rows: Sequence[int], observed: Observed, findings: Findings
    ) -> tuple[Picture, ...]:
        domain, (ball, divergence) = (
            population.encoder.domain,
            max(self._own_attacks.cases, key=lambda case: case[0].radius),
        )
        unseen = seen_and_unseen(population, rows, self.seen)[1].nonzero()[:, 0].tolist()
        shown = [rows[place] for place in unseen[:SHOWN]]
        if not shown or len(domain.shape) != 3:
            return ()
        way, clean = self._universal(ball, divergence), population.pixels(shown)
        moved = way.pixels(population, shown)
        parts = {
            "perturbation": change(
                torch.zeros_like(clean[:1]), population.learned(way.perturbation), domain, ball.radius
            )[0]
        }
        for k, row_shown in enumerate(shown):
            name = population.images.ids[row_shown]
            parts |= {name: clean[k], f"{name}, moved": moved[k]}
        picture = row(f"{ONE_FOR_ALL}, shown to images it was not learned from ({ball}, {divergence})", parts, domain)
        return () if picture is None else (picture,)

    @property
    def _own_attacks(self) -> OwnAttacks:
        return OwnAttacks(self.balls, self.attacks, self.divergences, self.samples)

    def _universal(self, ball: Ball, divergence: Divergence) -> Universal:
        return Universal(self._perturbation(ball, divergence), self.samples)

    def _perturbation(self, ball: Ball, divergence: Divergence) -> UniversalPerturbation:
        return UniversalPerturbation(ball, divergence, self.seen, self.restarts, self.steps, self.batch)
