"""Black-box attacks: what an attacker finds who sees embeddings or distances, but no gradients.

Random search (Andriushchenko et al. 2020, https://arxiv.org/abs/1912.00049) and estimated gradients (Ilyas et al. 2018,
https://arxiv.org/abs/1804.08598) with a stated number of queries, beside the attack with gradients. For an attacker who sees
only which image a search returns: the smallest perturbation found by RayS (Chen and Gu 2020,
https://arxiv.org/abs/2006.12792).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.attacks.attacked_codes import ATTACKS, BALLS, SIZES, Untargeted
from holdfast.attacks.attacked_radii import LEFT_OUT, SMALLEST, retrieval
from holdfast.attacks.base import Attack
from holdfast.attacks.black_box import NaturalEvolution, SquareAttack, radii_by_decisions
from holdfast.attacks.evaluations.harm_kept import Further, OwnAttacks
from holdfast.core.balls import Ball, Linf
from holdfast.core.divergences import Divergence, L2Distance
from holdfast.core.errors import HoldfastError, OutOfRange
from holdfast.core.records import Claim, Findings
from holdfast.core.run_settings import Observed
from holdfast.core.statistics.quantiles import radius_estimates
from holdfast.core.statistics.summaries import series_of
from holdfast.measure.evaluation import Evaluation, Sizes
from holdfast.measure.observation import Joint, Observation, findings_of, population_warnings
from holdfast.measure.population import Population

WIDEST = Linf(0.5)
"""The largest change that decisions are asked about."""
SEARCHES = (SquareAttack(queries=100), SquareAttack(queries=1000), NaturalEvolution(queries=1000))


@final
@dataclass(frozen=True)
class DecisionRadii(Observation):
    """Smallest radius at which a search with decisions alone makes an image match another.

    It is infinite if no query found such an image.
    """

    queries: int
    """Forward passes per image."""
    divergence: Divergence
    """Distance between embeddings."""
    samples: int
    """Images to attack, chosen at random; 1 or more."""
    name = "decision-radii"
    version = 1
    uses_bank = True
    uses_groups = True

    def forward_passes(self, population: Population) -> int:
        return self.queries

    def observe(self, population: Population, rows: Sequence[int]) -> Observed:
        search = retrieval(population, rows, self.divergence, 1)
        radii = radii_by_decisions(search.goal, WIDEST, self.queries)
        return {"radius": radii.double().masked_fill(~search.defined, torch.nan)}


@final
@dataclass(frozen=True)
class QueryOnly(Evaluation):
    """Effect of black-box attacks with a limited number of queries.

    Papers: square attack (Andriushchenko et al. 2020, https://arxiv.org/abs/1912.00049), NES (Ilyas et al. 2018,
    https://arxiv.org/abs/1804.08598), RayS (Chen and Gu 2020, https://arxiv.org/abs/2006.12792).
    """

    balls: tuple[Ball, ...] = BALLS
    """Perturbation sets."""
    attacks: tuple[Attack, ...] = ATTACKS
    """White-box attacks; the strongest is the reference."""
    searches: tuple[Attack, ...] = SEARCHES
    """Black-box attacks with a stated number of queries."""
    divergences: tuple[Divergence, ...] = (L2Distance(),)
    """Distances between embeddings."""
    decisions: int = 1000
    """Queries of RayS per image, in ℓ∞ up to 0.5."""
    samples: int = 100
    """Number of attacked images."""
    sizes = Sizes(
        quick={"samples": SIZES.quick["samples"], "searches": ["square:queries=200"], "decisions": 300},
        full={**SIZES.full, "samples": 1000},
        small_only=True,
    )
    name = "query-only"
    version = 3
    partial = True
    uses_bank = True
    title = "Query-only attacks"
    meaning = (
        "An attacker who sees only embeddings, or how far apart they are, searches without gradients. Harm kept is how far "
        "its queries move embeddings, relative to the attack with gradients. Random noise of the same size stands beside "
        "it. The decision radius is the smallest change found by an attacker who sees only which image a search returns."
    )
    headline = ("harm_kept", "nearest_neighbour_accuracy")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.decisions < 1:
            raise OutOfRange("query-only.decisions", self.decisions, "at least 1 query")
        for search in self.searches:
            if not hasattr(search, "queries"):
                raise HoldfastError(
                    f"query-only: searches are attacks that count their queries, square or nes, got {search}; attacks with "
                    "gradients go into attacks"
                )

    def observation(self) -> Joint:
        def searched(ball: Ball, divergence: Divergence) -> list[Observation]:
            return [self._searched(ball, divergence, search) for search in self.searches]

        return Joint((*self._own_attacks.parts(searched), *map(self._decided, self.divergences)))

    def conclude(self, population: Population, rows: Sequence[int], observed: Observed) -> Findings:
        joint = self.observation()

        def searched(ball: Ball, divergence: Divergence) -> dict[Further, Float[Tensor, "n d"]]:
            by_search = {search: self._searched(ball, divergence, search) for search in self.searches}
            return {
                conditions(search): part.of_attack(search, joint.of(part, observed))["codes"]
                for search, part in by_search.items()
            }

        series, estimates = self._own_attacks.beside(population, rows, joint, observed, searched)
        for divergence in self.divergences:
            radii = joint.of(self._decided(divergence), observed)["radius"]
            further = {"attack": "rays", "divergence": str(divergence), "queries": str(self.decisions)}
            within, unit = {"ball": str(WIDEST), **further}, f"{WIDEST.name} distance"
            series.append(series_of("decision_radius", within, radii, unit, Claim.UPPER, SMALLEST, LEFT_OUT))
            estimates += radius_estimates(series[-1])
        return findings_of(population, rows, series, estimates, population_warnings(population, self.divergences))

    def _decided(self, divergence: Divergence) -> DecisionRadii:
        return DecisionRadii(self.decisions, divergence, self.samples)

    @property
    def _own_attacks(self) -> OwnAttacks:
        return OwnAttacks(self.balls, self.attacks, self.divergences, self.samples)

    def _searched(self, ball: Ball, divergence: Divergence, search: Attack) -> Untargeted:
        return Untargeted(ball, (search,), divergence, self.samples)


def conditions(search: Attack) -> Further:
    """Conditions that name a black-box attack: its settings and its queries per image.

    Example:
        >>> conditions(SquareAttack(restarts=2))
        (('attack', 'square:restarts=2'), ('queries', '2000'))
    """
    return ("attack", str(search)), ("queries", str(search.forward_passes))
