"""Certified displacement: the largest movement of the embedding within ε, proved and attacked.

    attacked  <=  max over x^ in the ball of d(f(x^), f(x))  <=  tau

``tau`` is the least bound that linear bounds of the embedding prove, under l2, linf or cosine (``output_bounds.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import ClassVar, final

from jaxtyping import Bool
from torch import Tensor

from holdfast.attacks.attacked_codes import Untargeted
from holdfast.attacks.base import Attack
from holdfast.attacks.objectives.simple import Away
from holdfast.bounds.bound_findings import BRACKETS, Bracket, BracketEvaluation, Case, most, point_witness
from holdfast.bounds.outputs import OutputBounds
from holdfast.bounds.pair_bounds import CertifiedObservation
from holdfast.core.balls import Ball
from holdfast.core.divergences import Divergence
from holdfast.core.encoder import Codes, Pixels
from holdfast.core.objective import AttackContext
from holdfast.core.records import Claim
from holdfast.core.run_settings import Observed
from holdfast.core.statistics.summaries import Scale, chained_median
from holdfast.measure.observation import entries
from holdfast.measure.population import Population

WORST = "displacement of the representation by the worst allowed change"
UNDEFINED = "a zero embedding has no direction, or all embeddings are one"
ROUNDING = 1e-9
"""Fraction of a bound, and of 1, by which an attack may exceed it in float64 before it counts as refuted."""


@final
@dataclass(frozen=True)
class DisplacementBounds(CertifiedObservation):
    """For each image: how far its embedding can be moved at most, as proved, and how far an attack moves it."""

    ball: Ball
    divergence: Divergence
    name = "moved"
    version = 5

    def observe(self, population: Population, rows: Sequence[int]) -> Observed:
        pixels = population.pixels(rows).double()
        certified = self.certification.encoder(population, pixels)
        bounds = OutputBounds(certified, self.certification.method, self.ball)
        points = farthest_attacked(population, rows, self.divergence, self.certification.attack, self.ball)
        attacked = self.divergence(certified.codes(points), certified.codes(pixels))
        return {"certified": bounds.farthest(self.divergence, pixels), "attacked": attacked}


def farthest_attacked(
    population: Population, rows: Sequence[int], divergence: Divergence, attack: Attack, ball: Ball
) -> Pixels:
    """Return points in the balls around the images at ``rows`` whose embeddings ``attack`` moved as far as it could."""
    encoder, pixels = population.double, population.pixels(rows).double()
    noise = population.run.noise([population.images.ids[row] for row in rows]).fork("moved")
    return attack(encoder, pixels, Away(divergence)(AttackContext(encoder, pixels, noise)), ball, noise)


@final
@dataclass(frozen=True)
class CertifiedDisplacement(BracketEvaluation):
    """Largest displacement of an embedding under perturbation: proved and attacked.

    The displacement is at most as large as proved (upper bound) and at least as large as attacked (lower bound).
    """

    sizes = BRACKETS
    name = "certified-displacement"
    version = 7
    reached: ClassVar = {"attacked": "most"}
    title = "Certified displacement"
    meaning = (
        "The certified displacement is a distance that the representation provably never moves beyond, whatever the allowed "
        "change; the attacked one is a distance that it was moved. Both are medians over images, as fractions of the median "
        "distance between two clean ones: at 1 an image can become as unlike itself as it is unlike another one."
    )
    headline = ("certified_displacement", "attacked_displacement")

    def bounds(self, ball: Ball, divergence: Divergence) -> DisplacementBounds:
        return DisplacementBounds(self.certification, ball, divergence)

    def attacked(self, ball: Ball, divergence: Divergence) -> tuple[Untargeted]:
        return (Untargeted(ball, self.attacks, divergence, self.samples),)

    def endings(self, seen: Sequence[Observed]) -> list[Codes]:
        (away,) = seen
        return [entries(away, k)["codes"] for k in range(len(self.attacks))]

    def ends(self, case: Case) -> list[Pixels]:
        (away,) = self.attacked(case.ball, case.divergence)
        return away.pixels(case.population, case.rows)

    def struck(self, case: Case, ends: Sequence[Codes]) -> Observed:
        clean = case.population.codes[list(case.rows)].double()
        return {"attacked": most([case.divergence(codes.to(clean), clean) for codes in ends])}

    def brackets(self, case: Case, values: Observed) -> tuple[Bracket, ...]:
        certified, attacked = values["certified"], values["attacked"]
        scale, unit = median_distance(case.population, case.divergence), f"{case.divergence} distance"
        shares, distances = (certified / scale.value, attacked / scale.value), (certified, attacked)
        # Medians: without limits no interval of a mean allows for rare images, not drawn, that move far.
        return (
            Bracket("displacement", shares, SHARE, Claim.UPPER, WORST, UNDEFINED, "median", "lower", scale=scale),
            Bracket("tau", distances, unit, Claim.UPPER, WORST, UNDEFINED, "median", "neither"),
        )

    def refuted(self, values: Observed) -> tuple[Tensor, Tensor]:
        return exceeds(values["attacked"], values["certified"]), values["certified"].isfinite()

    def witness(self, case: Case, image: int) -> dict[str, str]:
        population, row, ball, divergence = case.population, case.rows[image], case.ball, case.divergence
        pixels = population.pixels([row]).double()
        certified = self.certification.encoder(population, pixels)
        ends = (each.double() for each in self.ends(replace(case, rows=[row])))
        points = [farthest_attacked(population, [row], divergence, self.attack, ball), *ends]
        clean = certified.codes(pixels)
        distance, (point,) = max(
            ((float(divergence(certified.codes(each), clean)), each) for each in points), key=itemgetter(0)
        )
        facts = {
            "image": population.images.ids[row],
            "divergence": str(divergence),
            "displacement": f"{distance:.6g}",
            "ball": str(ball),
        }
        return point_witness(population, row, point, ball, facts)


SHARE = "median clean distances"


def median_distance(population: Population, divergence: Divergence) -> Scale:
    """Return the median distance of two clean embeddings with its interval; nan if it is zero."""
    codes = population.codes.double()
    distances = divergence(codes, codes[population.partners])[population.random_order.to(codes.device)]
    return chained_median(distances.cpu().numpy())


def exceeds(values: Tensor, bound: Tensor) -> Bool[Tensor, "b"]:
    """Return which ``values`` exceed their upper ``bound`` by more than rounding."""
    return values > bound * (1 + ROUNDING) + ROUNDING**1.5
