"""Embeddings of attacked images, observed once and shared by all measures under attack.

Also here: pictures of perturbations, and the sizes that suites set for all such measures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.attacks.adaptive import AdaptiveAttack, attack_together, forwards_together
from holdfast.attacks.base import GRADIENT, Attack, gain_and_gradient
from holdfast.attacks.gradient import random_start
from holdfast.attacks.objectives.simple import Away, Crossing, Misretrieval, Toward
from holdfast.attacks.pair_attacks import between_classes
from holdfast.attacks.presets import NAMED, U_PGD, label, read_loss, rivals_of
from holdfast.core.balls import Ball, Linf
from holdfast.core.divergences import Cosine, Divergence, L2Distance
from holdfast.core.encoder import Codes, Domain, Pixels
from holdfast.core.objective import AttackContext, DivergenceObjective, Objective
from holdfast.core.points.counting import nearest_rows
from holdfast.core.records import Claim, Conditions, Series
from holdfast.core.run_settings import Observed
from holdfast.core.statistics.summaries import series_of
from holdfast.measure.evaluation import LATER, Sizes
from holdfast.measure.observation import Observation, entries, joined
from holdfast.measure.population import Population

BALLS: tuple[Ball, ...] = (Linf(0.05), Linf(0.1))
ATTACKS: tuple[Attack, ...] = (U_PGD, NAMED["adaptive"])
DIVERGENCES: tuple[Divergence, ...] = (L2Distance(), Cosine())


@dataclass(frozen=True)
class Case:
    """One attack in one ball under one divergence."""

    ball: Ball
    """Perturbation set."""
    attack: Attack
    """Attack."""
    divergence: Divergence
    """Distance between embeddings."""
    aim: str = ""
    """Goal of the attack, where it differs from the case's usual objective."""
    probe: str = ""
    """Probe that judges the attack; empty if none does."""
    further: tuple[tuple[str, str], ...] = ()
    """Further conditions by name; they replace conditions of the same name, such as ``attack`` for noise."""

    @property
    def conditions(self) -> Conditions:
        """How series and estimates name it."""
        attack = f"{label(self.attack)} at {self.aim}" if self.aim else label(self.attack)
        conditions = {"ball": str(self.ball), "attack": attack, "divergence": str(self.divergence)}
        return conditions | ({"probe": self.probe} if self.probe else {}) | dict(self.further)


UNDEFINED = "undefined: zero distance to compare with, zero embedding under cosine, or an embedding that is not finite"
RANDOM_NOISE = "random noise"
"""What the conditions call it in place of an attack."""
SPREAD = 0.05
"""Share of the coordinates that noise in a sparse ball touches."""


def cases(
    balls: Sequence[Ball], attacks: Sequence[Attack], divergences: Sequence[Divergence], objective: str = ""
) -> list[Case]:
    """Every combination of ball, attack and divergence, balls outermost.

    Args:
        balls: Perturbation sets.
        attacks: Attacks.
        divergences: Distances between embeddings.
        objective: What all attacks maximise instead, as ``aim_of`` takes it; cases of another distance name it.
    """
    return [
        Case(ball, attack, divergence, "" if objective == str(divergence) else objective)
        for ball in balls
        for attack in attacks
        for divergence in divergences
    ]


def strongest(attacks: Sequence[Attack]) -> Attack:
    """The attack of a list that is never weaker than another.

    It is the last adaptive attack, or the last attack if none is adaptive.

    Example:
        >>> label(strongest([U_PGD, NAMED["adaptive"], NAMED["square"]]))
        'adaptive'
    """
    return next((attack for attack in reversed(attacks) if isinstance(attack, AdaptiveAttack)), attacks[-1])


def displacement_series(
    case: Case, values: Float[Tensor, "n"], reason: str = UNDEFINED, quantity: str = "displacement"
) -> Series:
    """How far each image is moved in ``case``; missing for ``reason``."""
    of = "largest displacement"
    return series_of(quantity, case.conditions, values, str(case.divergence), Claim.LOWER, of, reason)


def differentiable(divergence: Divergence) -> Divergence:
    """Return what an attack climbs for a divergence: itself, or l2 where it has no gradient."""
    return divergence if divergence.smooth else L2Distance()


@final
@dataclass(frozen=True)
class Untargeted(Observation):
    """Embeddings of random images, attacked to move away from their clean embeddings.

    ``k.codes`` are the embeddings after attack ``k``. Attacks on one goal share work, so they are one observation.
    """

    ball: Ball
    """Perturbation set."""
    attacks: tuple[Attack, ...]
    """Attacks to run, in order."""
    divergence: Divergence
    """Distance between embeddings."""
    samples: int
    """Images to attack, chosen at random; 1 or more."""
    loss: str = field(default="", metadata=LATER)
    """Loss that attacks maximise instead of the distance; empty for the distance."""
    name = "untargeted"
    version = 4

    def forward_passes(self, population: Population) -> int:
        return forwards_together(self.attacks) + len(self.attacks)

    def observe(self, population: Population, rows: Sequence[int]) -> Observed:
        return joined([{"codes": population.encode(pixels)} for pixels in self.pixels(population, rows)])

    def of_attack(self, attack: Attack, observed: Observed) -> Observed:
        """Part of ``observed`` that belongs to one attack.

        Args:
            attack: One of ``attacks``.
            observed: Tensors that ``observe`` returned, whose first axis runs over ``rows``.

        Returns:
            ``codes``: embeddings after the attack, shape (b, d).
        """
        return entries(observed, self.attacks.index(attack))

    def pixels(self, population: Population, rows: Sequence[int]) -> list[Pixels]:
        """Images at ``rows`` after each of the attacks.

        Args:
            population: Images of the run with their clean embeddings.
            rows: Rows of the population.

        Returns:
            One tensor per attack, each of shape (b, *pixels).
        """
        if not self.loss:
            objective = Away(population.fitted(self.divergence))
            return attacked_by_each(population.context(rows), objective, self.attacks, self.ball)
        loss = read_loss(self.loss)
        context = population.context(rows, rivals=rivals_of(population, rows, loss))
        noise = context.noise.fork(loss.name)
        return attack_together(self.attacks, context.encoder, context.pixels, loss(context), self.ball, noise)


@final
@dataclass(frozen=True)
class Targeted(Observation):
    """Embeddings of pairs of images, each attacked to move towards the other.

    ``k.ahead`` moves x_i to x_j by attack ``k``, ``k.back`` moves x_j to x_i. There are up to ``samples`` random pairs,
    no image in two pairs: pairs that share images err alike, and intervals would be too short.
    """

    ball: Ball
    """Perturbation set."""
    attacks: tuple[Attack, ...]
    """Attacks to run, in order."""
    divergence: Divergence
    """Distance between embeddings."""
    samples: int
    """Largest number of pairs."""
    by_class: bool = field(default=False, metadata=LATER)
    """True to pair images of different classes only, which needs labels."""
    name = "targeted"
    version = 4
    uses_groups = True

    @property
    def uses_labels(self) -> bool:  # type: ignore[override]  # only pairs of classes depend on them
        return self.by_class

    def paired(self, population: Population) -> Population:
        """The images as they are paired, for ``partners`` and ``disjoint_pairs``."""
        return between_classes(population) if self.by_class else population

    def rows(self, population: Population) -> list[int]:
        return self.paired(population).disjoint_pairs(self.samples)

    def forward_passes(self, population: Population) -> int:
        return 2 * (forwards_together(self.attacks) + len(self.attacks))

    def observe(self, population: Population, rows: Sequence[int]) -> Observed:
        partners = self.paired(population).partners[list(rows)].tolist()
        ahead, back = self.pixels(population, rows, partners), self.pixels(population, partners, rows)
        codes = [map(population.encode, ends) for ends in zip(ahead, back, strict=True)]
        return joined([dict(zip(("ahead", "back"), ends, strict=True)) for ends in codes])

    def of_attack(self, attack: Attack, observed: Observed) -> Observed:
        """Part of ``observed`` that belongs to one attack.

        Returns:
            ``ahead`` and ``back``: embeddings after the attack, each of shape (b, d).
        """
        return entries(observed, self.attacks.index(attack))

    def pixels(self, population: Population, rows: Sequence[int], targets: Sequence[int]) -> list[Pixels]:
        """Images at ``rows`` after each attack towards their targets.

        Args:
            targets: Row of the target of each image.

        Returns:
            One tensor per attack, each of shape (b, *pixels).
        """
        objective = Toward(population.fitted(self.divergence))
        return attacked_by_each(population.context(rows, targets), objective, self.attacks, self.ball)


@final
@dataclass(frozen=True)
class Pairwise(Observation):
    """Embeddings of images attacked on the very event that breakaway counts.

    ``crossing``: past one random other image; nan where the pair would share an image with another pair. ``retrieval``:
    past any of the ``rivals`` nearest neighbours, of those in the reference set if there is one.
    """

    ball: Ball
    """Perturbation set."""
    attack: Attack
    """Attack to run."""
    divergence: Divergence
    """Distance between embeddings."""
    rivals: int
    """Nearest other images that a retrieval attack aims at; 1 or more."""
    samples: int
    """Images to attack, chosen at random; 1 or more."""
    name = "pairwise"
    version = 4
    uses_bank = True
    uses_groups = True

    def forward_passes(self, population: Population) -> int:
        return 3 * (self.attack.forward_passes + 1) // 2  # every other image is half of a pair

    def observe(self, population: Population, rows: Sequence[int]) -> Observed:
        divergence = population.fitted(differentiable(self.divergence))
        partners, couples = population.partners, set(population.disjoint_pairs(self.samples))
        here = [index for index, row in enumerate(rows) if row in couples]
        anchors = [rows[index] for index in here]
        retrieval = population.encode(self.at_retrieval(population, rows))
        crossing = torch.full_like(retrieval, torch.nan)
        if anchors:
            pair = population.context(anchors, partners[anchors].tolist())
            crossing[here] = population.encode(attacked_pixels(pair, Crossing(divergence), self.attack, self.ball))
        return {"crossing": crossing, "retrieval": retrieval}

    def at_retrieval(self, population: Population, rows: Sequence[int]) -> Pixels:
        """Images at ``rows`` attacked past any of their nearest neighbours.

        Returns:
            Attacked images, shape (b, *pixels).
        """
        divergence = population.fitted(differentiable(self.divergence))
        facing = facing_neighbours(population, rows, divergence, self.rivals)
        return attacked_pixels(facing, Misretrieval(divergence), self.attack, self.ball)


def facing_neighbours(population: Population, rows: Sequence[int], divergence: Divergence, count: int) -> AttackContext:
    """Attack context of images against their nearest neighbours.

    Args:
        count: Neighbours per image, from the reference set if there is one.
    """
    near = population.nearest(divergence, population.codes[list(rows)], rows, count)
    return population.context(rows, rivals=population.gallery.codes[near])


def attacked_pixels(context: AttackContext, objective: Objective, attack: Attack, ball: Ball) -> Pixels:
    """Images of ``context`` after one attack.

    Returns:
        Attacked images, shape (b, *pixels).
    """
    return attack(context.encoder, context.pixels, objective(context), ball, context.noise.fork(objective.name))


def attacked_by_each(
    context: AttackContext, objective: DivergenceObjective, attacks: Sequence[Attack], ball: Ball
) -> list[Pixels]:
    """Images of ``context`` after each attack; adaptive attacks are never weaker than others.

    If the divergence has no gradient, attacks maximise ℓ2 and the divergence judges where they ended.

    Returns:
        One tensor per attack, each of shape (b, *pixels).
    """
    climbed = replace(objective, divergence=differentiable(objective.divergence))
    judge = None if objective.divergence.smooth else objective(context)
    noise = context.noise.fork(objective.name)
    return attack_together(attacks, context.encoder, context.pixels, climbed(context), ball, noise, judge)


@final
@dataclass(frozen=True)
class CodesUnderNoise(Observation):
    """Embeddings under random noise of size ε: the effect of a perturbation without a search."""

    ball: Ball
    """Perturbation set to draw from."""
    samples: int
    """Images to perturb, chosen at random."""
    name = "noise"
    version = 1

    def observe(self, population: Population, rows: Sequence[int]) -> Observed:
        context, domain = population.context(rows), population.encoder.domain
        drawn = context.noise.fork("noise").normal(domain.shape, context.pixels.dtype)
        delta = self.ball.project(self.ball.radius * self.ball.steepest(drawn, SPREAD))
        return {"codes": population.encode(domain.clip(context.pixels + delta))}


@final
@dataclass(frozen=True)
class NoiseDisplacements(Observation):
    """Displacements by random noise, and the slope of the displacement there."""

    ball: Ball
    """Perturbation set."""
    divergence: Divergence
    """Distance between embeddings."""
    samples: int
    """Images to perturb, chosen at random; 1 or more."""
    name = "probes"
    version = 5

    def forward_passes(self, population: Population) -> int:
        return GRADIENT

    def observe(self, population: Population, rows: Sequence[int]) -> Observed:
        context, objective = population.context(rows), Away(population.fitted(self.divergence))
        start = random_start(context.pixels, self.ball, context.noise.fork("probe"), 1.0, population.encoder.domain)
        noise, gradient = gain_and_gradient(context.encoder, start, objective(context))
        return {"noise": noise, "slope": self.ball.dual_norm(gradient) * self.ball.radius}


def change(clean: Pixels, attacked: Pixels, domain: Domain, radius: float) -> Pixels:
    """Perturbation as a picture: zero at mid-range, ``radius`` at the end of the range.

    Args:
        clean: Clean images, shape (b, *pixels).
        radius: Perturbation size that the end of the range shows, in pixel units.
    """
    middle, half = (domain.low + domain.high) / 2, (domain.high - domain.low) / 2
    return domain.clip(middle + (attacked - clean) * (half / radius))


def nearest_image(population: Population, divergence: Divergence, moved: Codes, rows: Sequence[int]) -> Pixels:
    """The gallery image nearest to each attacked embedding: its own or one of another group.

    Args:
        moved: Embeddings of attacked images, shape (b, d).
        rows: Row of the image that each embedding belongs to.

    Returns:
        Images, shape (b, *pixels).
    """
    gallery, kin = population.gallery, population.kin(rows)
    if kin is None:
        return gallery.pixels(nearest_rows(divergence, moved, gallery.codes, 1)[:, 0].tolist())
    near = []
    for code, own, row_of in zip(moved, kin.mine, rows, strict=True):
        counted = kin.theirs != own
        if gallery is population:
            counted[row_of] = True
        (places,) = counted.nonzero(as_tuple=True)
        near.append(int(places[nearest_rows(divergence, code[None], gallery.codes[places], 1)[0, 0]]))
    return gallery.pixels(near)


SIZES = Sizes(
    quick={"samples": 100, "divergences": ["l2"]},
    full={
        "samples": 10_000,
        "attacks": ["u-pgd", "adaptive:steps=100,restarts=5", "square"],
        "divergences": ["l2", "cosine", "whitened", "rank"],
    },
    large={"balls": ["linf:0.05"], "divergences": ["l2"], "attacks": ["u-pgd", "adaptive:restarts=1"]},
    heavy={"samples": 30, "attacks": ["u-fgsm", "adaptive:restarts=1,steps=10"]},
)
