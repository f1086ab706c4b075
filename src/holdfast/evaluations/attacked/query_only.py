"""Query-only attacks: what somebody finds who sees codes, or distances of codes, and has no gradient.

Random search (Andriushchenko et al. 2020, https://arxiv.org/abs/1912.00049) and estimated gradients (Ilyas et al. 2018,
https://arxiv.org/abs/1804.08598) with a stated number of queries, beside the attack with gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import final

from jaxtyping import Float
from torch import Tensor

from holdfast.attacks.base import Attack
from holdfast.attacks.nes import NaturalEvolution
from holdfast.attacks.square import SquareAttack
from holdfast.core.balls import Ball
from holdfast.core.divergences import Divergence, L2Distance
from holdfast.core.errors import HoldfastError
from holdfast.core.records import Estimate, Findings, Series
from holdfast.core.run_settings import Observed
from holdfast.evaluations.attacked.harm_kept import Further, compared
from holdfast.evaluations.attacked.observations import (
    ATTACKS,
    BALLS,
    RANDOM_NOISE,
    Case,
    Noise,
    Untargeted,
    strongest,
)
from holdfast.evaluations.attacked.searched import Searched
from holdfast.evaluations.attacked.sizes import SIZES
from holdfast.protocol.evaluation import Evaluation
from holdfast.protocol.observation import Joint
from holdfast.protocol.population import Population
from holdfast.protocol.sizes import Sizes
from holdfast.protocol.warnings import population_warnings

SEARCHES = (SquareAttack(queries=100), SquareAttack(queries=1000), NaturalEvolution(queries=1000))


@final
@dataclass(frozen=True)
class QueryOnly(Evaluation):
    """What attacks find that see no gradient, with so many queries."""

    balls: tuple[Ball, ...] = BALLS
    attacks: tuple[Attack, ...] = ATTACKS
    searches: tuple[Attack, ...] = SEARCHES
    divergences: tuple[Divergence, ...] = (L2Distance(),)
    samples: int = 100
    sizes = Sizes(
        quick={"samples": 200, "searches": ["square:queries=200"]},
        full={**SIZES.full, "samples": 1000},
        small_only=True,
    )
    name = "query-only"
    version = 1
    partial = True
    uses_bank = True
    title = "Query-only attacks"
    meaning = (
        "Somebody who may only ask for codes, or how far apart they are, searches without gradients. Harm kept says how far "
        "so many queries for each image carry codes, as a share of how far the attack with gradients does. Random noise of "
        "the same size stands beside it."
    )
    headline = ("harm_kept", "nearest_neighbour_accuracy")

    def __post_init__(self) -> None:
        super().__post_init__()
        for search in self.searches:
            if not hasattr(search, "queries"):
                raise HoldfastError(
                    f"query-only: searches are attacks that count their queries, square or nes, got {search}; attacks with "
                    "gradients go into attacks"
                )

    def observation(self) -> Joint:
        parts = [
            part
            for ball, divergence in product(self.balls, self.divergences)
            for part in (
                self._attacked(ball, divergence, self.attacks),
                Noise(ball, self.samples),
                *(self._attacked(ball, divergence, (search,)) for search in self.searches),
            )
        ]
        return Joint(tuple(dict.fromkeys(parts)))

    def conclude(self, population: Population, rows: Sequence[int], observed: Observed) -> Findings:
        searched, joint, attack = Searched(population), self.observation(), strongest(self.attacks)
        series, estimates = list[Series](), list[Estimate]()

        def after(
            ball: Ball, divergence: Divergence, attacks: tuple[Attack, ...], which: Attack
        ) -> Float[Tensor, "n d"]:
            part = self._attacked(ball, divergence, attacks)
            return part.of_attack(which, joint.of(part, observed))["codes"]

        for ball, divergence in product(self.balls, self.divergences):
            others: dict[Further, Float[Tensor, "n d"]] = {
                conditions(search): after(ball, divergence, (search,), search) for search in self.searches
            }
            others[(("attack", RANDOM_NOISE),)] = joint.of(Noise(ball, self.samples), observed)["codes"]
            codes = after(ball, divergence, self.attacks, attack)
            more = compared(searched, rows, Case(ball, attack, divergence), codes, others)
            series += more[0]
            estimates += more[1]
        return Findings(
            ids=tuple(population.images.ids[row] for row in rows),
            series=tuple(series),
            estimates=tuple(estimates),
            warnings=population_warnings(population, self.divergences),
        )

    def _attacked(self, ball: Ball, divergence: Divergence, attacks: tuple[Attack, ...]) -> Untargeted:
        return Untargeted(ball, attacks, divergence, self.samples)


def conditions(search: Attack) -> Further:
    """Return how numbers name a search: by its settings and by how many queries it makes for each image.

    Example:
        >>> conditions(SquareAttack(restarts=2))
        (('attack', 'square:restarts=2'), ('queries', '2000'))
    """
    return ("attack", str(search)), ("queries", str(search.forwards))
