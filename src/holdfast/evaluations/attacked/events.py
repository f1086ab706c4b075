"""What is searched for when a radius is: another image is nearer, an image is taken for its partner, two images collide.

Each is an event of the moved code, decided by the clean codes of all images, with a function to climb that is positive where
it happens or nearly so: the few nearest images stand there for all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from holdfast.attacks.base import Attack
from holdfast.attacks.radius import Goal
from holdfast.attacks.two_images import EachOfTwo, codes_of_both, pair_encoder, side_by_side
from holdfast.core.balls import Ball
from holdfast.core.divergences import Divergence
from holdfast.core.encoder import Codes, Pixels
from holdfast.core.points.counting import closer_counts
from holdfast.evaluations.attacked.observations import Pairwise, Targeted, Untargeted, climbable, facing_neighbours
from holdfast.evaluations.attacked.searched import Searched
from holdfast.objectives.crossing import Misretrieval, margin
from holdfast.protocol.population import Population


@dataclass(frozen=True)
class Threat:
    """Who attacks in the end: what is climbed, and which attacks at fixed radii the search must not fall behind."""

    divergence: Divergence
    rivals: int
    fixed: tuple[Attack, ...]
    pairwise: Attack
    samples: int


@dataclass(frozen=True)
class Search:
    """An event of some images, or of some pairs of images side by side."""

    goal: Goal
    defined: Bool[Tensor, "b"]
    """Which of them it means something for."""
    fixed: Callable[[Ball, Sequence[int]], list[Pixels]]
    """The images at some of the positions after each attack at a fixed radius."""
    pairs: bool = False

    def ball(self, ball: Ball) -> Ball:
        """Return the changes allowed to what is attacked if ``ball`` is what is allowed to an image."""
        return EachOfTwo(ball.radius, type(ball)) if self.pairs else ball


def retrieval(population: Population, rows: Sequence[int], threat: Threat) -> Search:
    """Another image, of the bank if there is one, is nearer to the moved code than the image's own clean code."""
    if not population.bank_images:
        _ = population.partners  # which says that one image alone has no other
    searched, climbed = Searched(population), population.fitted(climbable(threat.divergence))
    context = facing_neighbours(population, rows, climbed, threat.rivals)

    def count(codes: Codes) -> Float[Tensor, "b"]:
        return searched.closer(rows, threat.divergence, codes)[0]

    def fixed(ball: Ball, positions: Sequence[int]) -> list[Pixels]:
        chosen = [rows[position] for position in positions]
        away = Untargeted(ball, threat.fixed, threat.divergence, threat.samples)
        aimed = Pairwise(ball, threat.pairwise, threat.divergence, threat.rivals, threat.samples)
        return [*away.pixels(population, chosen), aimed.at_retrieval(population, chosen)]

    goal = Goal(context.encoder, context.pixels, Misretrieval(climbed)(context), lambda codes: count(codes) > 0)
    return Search(goal, ~count(population.codes[list(rows)]).isnan(), fixed)


def impersonation(population: Population, rows: Sequence[int], threat: Threat) -> Search:
    """No clean image but one of the partner's group is nearer to the moved code than that of the image's partner."""
    divergence, climbed = population.fitted(threat.divergence), population.fitted(climbable(threat.divergence))
    partners, clean = population.partners[list(rows)].tolist(), population.codes
    near = population.nearest(climbed, clean[partners], partners, threat.rivals, population)
    # Those that may stand between: the image itself and the partner's own neighbours.
    rivals = torch.cat([clean[list(rows)][:, None], clean[near]], 1)
    targets, places = clean[partners][:, None].expand_as(rivals), torch.as_tensor(partners, device=clean.device)
    context, kin = population.context(rows), population.kin(partners, population)

    def objective(codes: Codes) -> Float[Tensor, "b"]:
        return margin(climbed, codes[:, None], rivals, targets).amin(1)

    def event(codes: Codes) -> Bool[Tensor, "b"]:
        known = divergence(codes.double(), clean[partners].double()).isfinite()
        return (closer_counts(divergence, codes, places, clean, kin) == 0) & known

    def fixed(ball: Ball, positions: Sequence[int]) -> list[Pixels]:
        ahead = Targeted(ball, threat.fixed, threat.divergence, threat.samples)
        return ahead.pixels(population, *_both(population, rows, positions))

    return Search(Goal(context.encoder, context.pixels, objective, event), _apart(population, rows, divergence), fixed)


def overlap(population: Population, rows: Sequence[int], threat: Threat) -> Search:
    """The moved code of the image's partner is nearer to the image's clean code than the image's own moved code."""
    divergence, climbed = population.fitted(threat.divergence), population.fitted(climbable(threat.divergence))
    first, context = population.codes[list(rows)], population.context(rows)
    pixels = side_by_side(context.pixels, population.pixels(population.partners[list(rows)].tolist()))

    def objective(codes: Codes) -> Float[Tensor, "b"]:
        ahead, back = codes_of_both(codes)
        return climbed(ahead, first) - climbed(back, first)

    def event(codes: Codes) -> Bool[Tensor, "b"]:
        ahead, back = (code.double() for code in codes_of_both(codes))
        return divergence(back, first.double()) < divergence(ahead, first.double())

    def fixed(ball: Ball, positions: Sequence[int]) -> list[Pixels]:
        assert isinstance(ball, EachOfTwo), "two images move within a ball each"
        toward = Targeted(ball.alone, threat.fixed, threat.divergence, threat.samples)
        here, there = _both(population, rows, positions)
        ends = zip(toward.pixels(population, here, there), toward.pixels(population, there, here), strict=True)
        return [side_by_side(ahead, back) for ahead, back in ends]

    goal = Goal(pair_encoder(context.encoder), pixels, objective, event)
    return Search(goal, _apart(population, rows, divergence), fixed, pairs=True)


EVENTS: Mapping[str, Callable[[Population, Sequence[int], Threat], Search]] = {
    "retrieval": retrieval,
    "impersonation": impersonation,
    "overlap": overlap,
}


def _both(population: Population, rows: Sequence[int], positions: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return the rows at ``positions`` and those of their partners."""
    chosen = [rows[position] for position in positions]
    return chosen, population.partners[chosen].tolist()


def _apart(population: Population, rows: Sequence[int], divergence: Divergence) -> Bool[Tensor, "b"]:
    """Return which images have a clean code apart from their partner's."""
    first, second = population.codes[list(rows)], population.codes[population.partners[list(rows)]]
    distance = divergence(first.double(), second.double())
    return distance.isfinite() & (distance > 0)
