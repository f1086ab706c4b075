"""Certified breakaway risk: how many other images can an image be carried past, proved from above, attacked from below.

Breakaway asks whether ``d(f(x^), f(x')) < d(f(x^), f(x))`` for an ``x^`` in the ball around ``x`` and another image ``x'``
(Petrov and Kwiatkowska 2022, https://arxiv.org/abs/2210.04076). Under l2 and cosine such codes fill a half-space. So a
bound of one linear function of ``f(x^)`` proves that no ``x^`` in the ball reaches it:

    share of x' some attack carries x past  <=  worst-case share  <=  share of x' for which there is no proof

The risk of any single attack, which carries ``x`` to one place only, lies below the worst-case share as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from holdfast.attacks.base import Attack
from holdfast.bounds.findings import BRACKETS, CONTRADICTIONS, Bracket, BracketEvaluation, point_witness
from holdfast.bounds.outputs import bisector_hyperplanes, lower_bounds
from holdfast.bounds.pair_bounds import Certification, cross_check
from holdfast.bounds.pairs import PairAttack, Pairs
from holdfast.core.balls import Ball
from holdfast.core.divergences import Divergence
from holdfast.core.encoder import Pixels
from holdfast.core.records import Claim
from holdfast.core.run_settings import Observed
from holdfast.core.settings import require_positive
from holdfast.measure.evaluation import Sizes
from holdfast.measure.observation import Observation
from holdfast.measure.population import Population

RISK = "share of other images that some allowed change carries the image past"
UNDEFINED = "no other image whose code can be told from the image's own, or a zero code"


@dataclass(frozen=True)
class BreakawayPairs:
    """Bounds and attacks of ``b`` images and ``m`` others each, and the attacked points of each image."""

    others: Int[Tensor, "b m"]
    defined: Bool[Tensor, "b m"]
    bound: Float[Tensor, "b m"]
    """Lower bounds of the signed distance to the bisector hyperplane over the ball."""
    attacked: Float[Tensor, "b m p"]
    """The signed distance of each attacked point; negative where it is closer to the other image."""
    points: Float[Tensor, "b p *pixels"]

    @property
    def certified(self) -> Bool[Tensor, "b m"]:
        return (self.bound > 0) & self.defined

    @property
    def passed(self) -> Bool[Tensor, "b m"]:
        """Which others an attacked point is closer to than to its own image."""
        return (self.attacked < 0).any(2) & self.defined

    @property
    def refuted(self) -> Bool[Tensor, "b m"]:
        """Which certificates an attack refutes."""
        return self.certified & self.passed


@final
@dataclass(frozen=True)
class BreakawayBounds(Observation):
    """For each image: past how many others it certainly cannot be carried, and past how many an attack carries it."""

    certification: Certification
    ball: Ball
    divergence: Divergence
    others: int
    rivals: int
    name = "escape"
    version = 5
    uses_groups = True

    def rows(self, population: Population) -> list[int]:
        return population.choose(self.certification.samples)

    def forwards(self, population: Population) -> int:
        return self.rivals * self.certification.attack.forwards

    def observe(self, population: Population, rows: Sequence[int]) -> Observed:
        pairs = self.breakaway_pairs(population, rows)
        return {
            "defined": pairs.defined.sum(1),
            "certified": pairs.certified.sum(1),
            "passed": pairs.passed.sum(1),
            "wrong": pairs.refuted.sum(1),
        }

    def breakaway_pairs(self, population: Population, rows: Sequence[int]) -> BreakawayPairs:
        """Return bounds and attacks of the images at ``rows``."""
        codes, anchors = population.codes.double(), population.pixels(rows).double()
        certified, domain = self.certification.encoder(population, anchors), population.encoder.domain
        others = population.others(rows, self.others)
        hyperplanes = bisector_hyperplanes(self.divergence, codes[list(rows)], codes[others])
        normals, method = hyperplanes.normals, self.certification.method
        bound = lower_bounds(certified.graph, method, anchors, self.ball, domain, normals) - hyperplanes.offsets
        # Those without much of a proof are the most likely to be passed.
        rivals = bound.topk(min(self.rivals, bound.shape[1]), dim=1, largest=False).indices
        noise = population.run.noise([population.images.ids[row] for row in rows for _ in rivals[0]])
        pairs = Pairs(
            encoder=certified.encoder,
            graph=certified.graph,
            ids=(),
            anchors=anchors,
            negatives=anchors[:, None].expand(-1, rivals.shape[1], *anchors.shape[1:]),
            specifications=normals.gather(1, rivals[..., None].expand(-1, -1, normals.shape[2])),
            noise=noise.fork("escape"),
            executed=certified.executed,
        )
        points = worst_points(pairs, self.ball, self.certification.attack)
        attacked = certified.codes(points).unflatten(0, pairs.shape)
        distances = hyperplanes.signed_distances(attacked)
        return BreakawayPairs(others, hyperplanes.defined, bound, distances, points.unflatten(0, pairs.shape))


def worst_points(pairs: Pairs, ball: Ball, attack: Attack) -> Pixels:
    """Return for each pair the point with the lowest ``W f`` that ``attack`` and simpler ones find in ``ball``."""
    radii = torch.full_like(pairs.specifications[..., 0], ball.radius)
    return cross_check(PairAttack(pairs, type(ball)(1.0), attack), radii).points


@final
@dataclass(frozen=True)
class CertifiedBreakaway(BracketEvaluation):
    """How many other images an image can be carried past: no more than proved, no fewer than attacked."""

    others: int = 1000
    rivals: int = 10
    sizes = Sizes(
        quick={**BRACKETS.quick, "samples": 25, "others": 300, "rivals": 3},
        full={**BRACKETS.full, "rivals": 30, "attack": "adaptive:restarts=10"},
        large=BRACKETS.large,
        heavy=BRACKETS.heavy,
    )
    name = "certified-breakaway"
    version = 5
    needs_gradients = True
    title = "Certified breakaway risk"
    meaning = (
        "Of the other images, the share that some allowed change of an image carries it past, so that it becomes closer to "
        "them than to its clean self. The certified risk is proved and can only be too high; the attacked risk is what "
        "attacks achieved and can only be too low, so the true risk lies between the two."
    )
    headline = ("certified_breakaway_risk", "attacked_breakaway_risk")
    questions = (CONTRADICTIONS,)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "others", "rivals")

    def bounds(self, ball: Ball, divergence: Divergence) -> BreakawayBounds:
        return BreakawayBounds(self.certification, ball, divergence, self.others, self.rivals)

    def brackets(self, population: Population, divergence: Divergence, values: Observed) -> tuple[Bracket, ...]:
        nothing = values["defined"] == 0
        defined = values["defined"].masked_fill(nothing, torch.nan)
        shares = (defined - values["certified"]) / defined, values["passed"] / defined
        certified, attacked = (
            flags.double().masked_fill(nothing, torch.nan)
            for flags in (values["certified"] == defined, values["passed"] == 0)
        )
        flags = certified, attacked
        others = min(self.others, population.fewest_others)
        staying = f"staying the nearest of {others} others to oneself, whatever the allowed change"
        risk, nearest, accuracy = "breakaway_risk", "nearest_neighbour", "nearest_neighbour_accuracy"
        unit = "share of other images"
        return (
            Bracket("breakaway", shares, unit, Claim.UPPER, RISK, UNDEFINED, "mean", "lower", risk),
            Bracket(nearest, flags, "yes or no", Claim.LOWER, staying, UNDEFINED, "share", "higher", accuracy),
        )

    def refuted(self, values: Observed) -> tuple[Tensor, Tensor]:
        return values["wrong"], values["certified"]

    def witness(
        self, population: Population, rows: Sequence[int], ball: Ball, divergence: Divergence, image: int
    ) -> dict[str, str]:
        row = rows[image]
        pairs = self.bounds(ball, divergence).breakaway_pairs(population, [row])
        other = int(pairs.refuted[0].nonzero()[0, 0])
        point = int(pairs.attacked[0, other].argmin())
        facts = {
            "image": population.images.ids[row],
            "other": population.images.ids[int(pairs.others[0, other])],
            "divergence": str(divergence),
            "certified_margin": f"{float(pairs.bound[0, other]):.3g}",
            "margin": f"{float(pairs.attacked[0, other, point]):.3g}",
            "ball": str(ball),
        }
        return point_witness(population, row, pairs.points[0, point], ball, facts)
