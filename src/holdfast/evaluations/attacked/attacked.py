"""Codes of attacked images: the expensive part, observed once and shared by the measures that need it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch

from holdfast.attacks.base import Attack
from holdfast.attacks.presets import NAMED, U_PGD, label
from holdfast.core.balls import Ball, Linf
from holdfast.core.counting import nearest
from holdfast.core.divergences import Cosine, Divergence, L2Distance
from holdfast.core.encoder import Pixels
from holdfast.core.records import Conditions
from holdfast.core.run import Observed
from holdfast.objectives.away import Away
from holdfast.objectives.base import AttackContext, Objective
from holdfast.objectives.crossing import Crossing, Misretrieval
from holdfast.objectives.toward import Toward
from holdfast.protocol.observation import Observation
from holdfast.protocol.population import Population

BALLS: tuple[Ball, ...] = (Linf(0.05), Linf(0.1))
ATTACKS: tuple[Attack, ...] = (U_PGD, NAMED["adaptive"])
DIVERGENCES: tuple[Divergence, ...] = (L2Distance(), Cosine())


@dataclass(frozen=True)
class Case:
    """One attack in one ball under one divergence."""

    ball: Ball
    attack: Attack
    divergence: Divergence
    aim: str = ""
    """What the attack goes for, where it is not the case's usual objective."""
    probe: str = ""
    """The probe that judges, where one does."""

    @property
    def conditions(self) -> Conditions:
        """How series and estimates name it."""
        attack = f"{label(self.attack)} at {self.aim}" if self.aim else label(self.attack)
        own = {"ball": str(self.ball), "attack": attack, "divergence": str(self.divergence)}
        return own | ({"probe": self.probe} if self.probe else {})


def cases(balls: Sequence[Ball], attacks: Sequence[Attack], divergences: Sequence[Divergence]) -> list[Case]:
    """Return every combination, balls outermost."""
    return [Case(ball, attack, divergence) for ball in balls for attack in attacks for divergence in divergences]


def shown_case(cases: Sequence[Case]) -> Case:
    """Return the case whose pictures a report shows: the last attack, in the widest ball, under the first divergence."""
    widest = max(case.ball.radius for case in cases)
    last = [case for case in cases if case.ball.radius == widest][-1]
    return next(case for case in cases if (case.ball, case.attack) == (last.ball, last.attack))


def climbable(divergence: Divergence) -> Divergence:
    """Return what an attack climbs for a divergence: itself, or l2 where it has no gradient."""
    return divergence if divergence.smooth else L2Distance()


@final
@dataclass(frozen=True)
class Untargeted(Observation):
    """Codes of ``attacked`` randomly chosen images moved away from their clean codes."""

    ball: Ball
    attack: Attack
    divergence: Divergence
    samples: int
    name = "untargeted"
    version = 3

    def rows(self, population: Population) -> list[int]:
        return population.choose(self.samples)

    def forwards(self, population: Population) -> int:
        return self.attack.forwards + 1

    def observe(self, population: Population, rows: Sequence[int]) -> Observed:
        return {"codes": population.encode(self.pixels(population, rows))}

    def pixels(self, population: Population, rows: Sequence[int]) -> Pixels:
        """Return the attacked images at ``rows``."""
        objective = Away(population.fitted(climbable(self.divergence)))
        return attacked(population.context(rows), objective, self.attack, self.ball)


@final
@dataclass(frozen=True)
class Targeted(Observation):
    """Codes of pairs of images moved towards each other: ``ahead`` from x_i to x_j, ``back`` from x_j to x_i.

    Up to ``pairs`` random pairs, no image in two of them: pairs that share images err alike, and intervals would be too
    short.
    """

    ball: Ball
    attack: Attack
    divergence: Divergence
    samples: int
    name = "targeted"
    version = 3

    def rows(self, population: Population) -> list[int]:
        return population.couples(self.samples)

    def forwards(self, population: Population) -> int:
        return 2 * (self.attack.forwards + 1)

    def observe(self, population: Population, rows: Sequence[int]) -> Observed:
        partners = population.partners[list(rows)].tolist()
        return {
            "ahead": population.encode(self.pixels(population, rows, partners)),
            "back": population.encode(self.pixels(population, partners, rows)),
        }

    def pixels(self, population: Population, rows: Sequence[int], targets: Sequence[int]) -> Pixels:
        """Return the images at ``rows`` moved towards those at ``targets``."""
        objective = Toward(population.fitted(climbable(self.divergence)))
        return attacked(population.context(rows, targets), objective, self.attack, self.ball)


@final
@dataclass(frozen=True)
class Pairwise(Observation):
    """Codes of images attacked on the very event that breakaway counts.

    ``crossing``: past one random other image, nan where that pair would share an image with another pair's;
    ``retrieval``: past any of their ``rivals`` nearest neighbours, of those in the bank if there is one.
    """

    ball: Ball
    attack: Attack
    divergence: Divergence
    rivals: int
    samples: int
    name = "pairwise"
    version = 3
    uses_bank = True

    def rows(self, population: Population) -> list[int]:
        return population.choose(self.samples)

    def forwards(self, population: Population) -> int:
        return 3 * (self.attack.forwards + 1) // 2  # every other image is half of a pair

    def observe(self, population: Population, rows: Sequence[int]) -> Observed:
        divergence = population.fitted(climbable(self.divergence))
        partners, couples = population.partners, set(population.couples(self.samples))
        here = [place for place, row in enumerate(rows) if row in couples]
        own = [rows[place] for place in here]
        searched, own_rows = (population.bank, ()) if population.bank_images else (population, rows)
        near = nearest(divergence, population.codes[list(rows)], searched.codes, self.rivals, own=own_rows)
        facing = population.context(rows, rivals=searched.codes[near])
        retrieval = population.encode(attacked(facing, Misretrieval(divergence), self.attack, self.ball))
        crossing = torch.full_like(retrieval, torch.nan)
        if own:
            pair = population.context(own, partners[own].tolist())
            crossing[here] = population.encode(attacked(pair, Crossing(divergence), self.attack, self.ball))
        return {"crossing": crossing, "retrieval": retrieval}


def attacked(context: AttackContext, objective: Objective, attack: Attack, ball: Ball) -> Pixels:
    """Return the images of ``context`` after ``attack`` on ``objective`` within ``ball``."""
    return attack(context.encoder, context.pixels, objective(context), ball, context.noise.fork(objective.name))
