"""Certified breakaway risk: how many other images can an image be carried past, proved from above, attacked from below.

Breakaway asks whether ``d(f(x^), f(x')) < d(f(x^), f(x))`` for an ``x^`` in the ball around ``x`` and another image ``x'``
(Petrov and Kwiatkowska 2022, https://arxiv.org/abs/2210.04076). Under l2 and cosine that is a half-space of codes. So a
bound of one linear function of ``f(x^)`` proves that no ``x^`` at all gets there:

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

from holdfast.attacks.adaptive import AdaptiveAttack
from holdfast.attacks.base import Attack
from holdfast.bounds.methods.base import Crown, Method
from holdfast.core.balls import Ball, Linf
from holdfast.core.divergences import Cosine, Divergence, L2Distance
from holdfast.core.encoder import Pixels
from holdfast.core.records import Claim, Conditions, Estimate, Findings, Series
from holdfast.core.run import Observed
from holdfast.core.statistics import summarise
from holdfast.evaluations.certified.bisector_hyperplanes import bisector_hyperplanes
from holdfast.evaluations.certified.findings import both_ends, counted, series, witness_of
from holdfast.evaluations.certified.linear_bounds import lower
from holdfast.evaluations.certified.pair_attack import PairAttack
from holdfast.evaluations.certified.pairs import Pairs, bounded
from holdfast.evaluations.certified.radius_bounds import cross_check
from holdfast.protocol.evaluation import Evaluation
from holdfast.protocol.observation import Joint, Observation
from holdfast.protocol.population import Population

RISK = "share of other images that some allowed change carries the image past"
UNDEFINED = "no other image whose code can be told from the image's own, or a zero code"


@dataclass(frozen=True)
class BreakawayPairs:
    """What bounds and attacks say of ``b`` images and ``m`` others each, and the attacked points of each image."""

    others: Int[Tensor, "b m"]
    defined: Bool[Tensor, "b m"]
    bound: Float[Tensor, "b m"]
    """No code in the ball is less far on its own side than that."""
    reached: Float[Tensor, "b m p"]
    """How far on its own side each attacked point is."""
    points: Float[Tensor, "b p *pixels"]

    @property
    def certified(self) -> Bool[Tensor, "b m"]:
        return (self.bound > 0) & self.defined

    @property
    def passed(self) -> Bool[Tensor, "b m"]:
        """Which others an attacked point is closer to than to its own image."""
        return (self.reached < 0).any(2) & self.defined

    @property
    def wrong(self) -> Bool[Tensor, "b m"]:
        """Which certificates an attack refutes."""
        return self.certified & self.passed


@final
@dataclass(frozen=True)
class BreakawayBounds(Observation):
    """For each image: of how many others it is certified to stay clear, and how many an attack carries it past."""

    ball: Ball
    divergence: Divergence
    anchors: int
    others: int
    rivals: int
    method: Method
    attack: Attack
    neurons: int
    name = "escape"
    version = 3

    def rows(self, population: Population) -> list[int]:
        return population.choose(self.anchors)

    def observe(self, population: Population, rows: Sequence[int]) -> Observed:
        found = self.escapes(population, rows)
        counts = {
            "defined": found.defined,
            "certified": found.certified,
            "passed": found.passed,
            "wrong": found.wrong,
        }
        return {name: flags.sum(1) for name, flags in counts.items()}

    def escapes(self, population: Population, rows: Sequence[int]) -> BreakawayPairs:
        """Return what can be said of the images at ``rows``."""
        graph, domain = bounded(population, self.neurons), population.encoder.domain
        codes, anchors = population.codes.double(), population.pixels(rows).double()
        others = population.others(rows, self.others)
        planes = bisector_hyperplanes(self.divergence, codes[list(rows)], codes[others])
        bound = lower(graph, self.method, anchors, self.ball, domain, planes.normals) - planes.offsets
        # Those without much of a proof are the most likely to be passed.
        rivals = bound.topk(min(self.rivals, bound.shape[1]), dim=1, largest=False).indices
        normals = planes.normals.gather(1, rivals[..., None].expand(-1, -1, planes.normals.shape[2]))
        keys = population.run.noise([population.images.ids[row] for row in rows for _ in rivals[0]])
        two = Pairs(
            encoder=population.encoder.to(population.run.device, torch.float64),
            graph=graph,
            ids=(),
            anchors=anchors,
            negatives=anchors[:, None].expand(-1, rivals.shape[1], *anchors.shape[1:]),
            rows=normals,
            noise=keys.fork("escape"),
        )
        points = worst_points(two, self.ball, self.attack)
        with torch.no_grad():
            reached = two.encoder.forward(points).unflatten(0, two.shape)
        return BreakawayPairs(others, planes.defined, bound, planes.sides(reached), points.unflatten(0, two.shape))


def worst_points(two: Pairs, ball: Ball, attack: Attack) -> Pixels:
    """Return for each pair the point with the lowest ``W f`` that ``attack`` and simpler ones find in ``ball``."""
    radii = torch.full_like(two.rows[..., 0], ball.radius)
    return cross_check(PairAttack(two, type(ball)(1.0), attack), radii).points


@final
@dataclass(frozen=True)
class CertifiedBreakaway(Evaluation):
    """How many other images an image can be carried past: no more than proved, no fewer than attacked."""

    balls: tuple[Ball, ...] = (Linf(0.05), Linf(0.1))
    divergences: tuple[Divergence, ...] = (L2Distance(), Cosine())
    anchors: int = 100
    others: int = 1000
    rivals: int = 10
    method: Method = Crown()
    attack: Attack = AdaptiveAttack()
    neurons: int = 50_000
    name = "certified-breakaway"
    version = 3
    needs_gradients = True
    title = "Certified breakaway risk"
    meaning = (
        "Of the other images, the share that some allowed change of an image carries it past, so that it becomes closer to "
        "them than to its clean self. The certified risk is proved and can only be too high; the attacked risk is what "
        "attacks achieved and can only be too low, so the true risk lies between the two."
    )
    headline = ("certified_breakaway_risk", "attacked_breakaway_risk")

    def observation(self) -> Joint:
        return Joint(tuple(self._escape(ball, divergence) for ball, divergence in self._cases()))

    def conclude(self, population: Population, rows: Sequence[int], observed: Observed) -> Findings:
        found: list[Series] = []
        summed: list[Estimate] = []
        counts: list[Estimate] = []
        proof: dict[str, str] = {}
        looked = min(self.others, len(population.images) - 1)
        for k, (ball, divergence) in enumerate(self._cases()):
            seen = {name: observed[f"{k}.{name}"].double() for name in ("defined", "certified", "passed", "wrong")}
            one = self._series(seen, {"ball": str(ball), "divergence": str(divergence)}, looked)
            found += one
            names = ("certified_breakaway_risk", "attacked_breakaway_risk")
            summed += [summarise(s, "mean", "lower", name) for s, name in zip(one[:2], names, strict=True)]
            names = ("certified_nearest_neighbour_accuracy", "attacked_nearest_neighbour_accuracy")
            summed += [summarise(s, "share", "higher", name) for s, name in zip(one[2:], names, strict=True)]
            counts.append(counted(seen["wrong"], seen["certified"], one[0].conditions))
            if counts[-1].value and not proof:
                place = int((seen["wrong"] > 0).nonzero()[0, 0])
                proof = self._witness(population, rows[place], ball, divergence)
        return both_ends(population, rows, found, summed, counts, proof, self.balls)

    def _series(self, seen: dict[str, Tensor], case: Conditions, looked: int) -> list[Series]:
        all_ = seen["defined"]
        proved, struck = {**case, "method": str(self.method)}, {**case, "attack": str(self.attack)}
        kept = f"staying the nearest of {looked} others to oneself, whatever the allowed change"
        share, clear = (all_ - seen["certified"]) / all_, seen["certified"] == all_
        values = [
            ("certified_breakaway", proved, share, "share of other images", Claim.UPPER, RISK),
            ("attacked_breakaway", struck, seen["passed"] / all_, "share of other images", Claim.LOWER, RISK),
            ("certified_nearest_neighbour", proved, clear.double(), "yes or no", Claim.LOWER, kept),
            ("attacked_nearest_neighbour", struck, (seen["passed"] == 0).double(), "yes or no", Claim.UPPER, kept),
        ]
        return [
            series(quantity, conditions, numbers.masked_fill(all_ == 0, torch.nan), unit, claim, of, UNDEFINED)
            for quantity, conditions, numbers, unit, claim, of in values
        ]

    def _witness(self, population: Population, row: int, ball: Ball, divergence: Divergence) -> dict[str, str]:
        """Return the first contradiction of the image at ``row``, found once more."""
        found = self._escape(ball, divergence).escapes(population, [row])
        other = int(found.wrong[0].nonzero()[0, 0])
        point = int(found.reached[0, other].argmin())
        facts = {
            "image": population.images.ids[row],
            "other": population.images.ids[int(found.others[0, other])],
            "divergence": str(divergence),
            "certified_margin": f"{float(found.bound[0, other]):.3g}",
            "margin": f"{float(found.reached[0, other, point]):.3g}",
        }
        return witness_of(population, row, found.points[0, point], ball, facts)

    def _escape(self, ball: Ball, divergence: Divergence) -> BreakawayBounds:
        return BreakawayBounds(
            ball, divergence, self.anchors, self.others, self.rivals, self.method, self.attack, self.neurons
        )

    def _cases(self) -> list[tuple[Ball, Divergence]]:
        return [(ball, divergence) for ball in self.balls for divergence in self.divergences]
