"""Certified breakaway risk: the fraction of other images that attacks can move an image past, proved and attacked.

Breakaway means ``d(f(x^), f(x')) < d(f(x^), f(x))`` for an ``x^`` in the ball around ``x`` and another image ``x'`` (Petrov
and Kwiatkowska 2022, https://arxiv.org/abs/2210.04076). Under l2 and cosine such embeddings fill a half-space. So a bound of
one linear function of ``f(x^)`` proves that no ``x^`` in the ball reaches it:

    fraction of x' that some attack passes  <=  worst-case fraction  <=  fraction of x' without a proof

The risk under any single attack is at most the worst-case fraction, because one attack moves ``x`` to one place only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from holdfast.attacks.attacked_codes import Pairwise, Untargeted
from holdfast.attacks.attacked_radii import Searched
from holdfast.attacks.base import Attack
from holdfast.attacks.presets import NAMED
from holdfast.bounds.bound_findings import BRACKETS, Bracket, BracketEvaluation, Case, most, point_witness
from holdfast.bounds.certified_pairs import PairAttack
from holdfast.bounds.own_match import OwnMatch, own_match
from holdfast.bounds.pair_bounds import CertifiedObservation, cross_check
from holdfast.core.balls import Ball
from holdfast.core.divergences import Divergence
from holdfast.core.encoder import Codes, Pixels
from holdfast.core.records import Claim
from holdfast.core.run_settings import Observed
from holdfast.measure.evaluation import Sizes
from holdfast.measure.observation import entries
from holdfast.measure.population import Population

RISK = "fraction of other images that some allowed change carries the image past"
UNDEFINED = "no other image, or a zero embedding, or an exact copy, which is counted once"


@dataclass(frozen=True)
class BreakawayPairs:
    """Bounds of ``b`` images and the ``n`` images of the gallery, and ``p`` attacked points of each image."""

    match: OwnMatch
    bound: Float[Tensor, "b n"]
    """Lower bounds of the signed distance to the bisector hyperplane over the ball."""
    points: Float[Tensor, "b p *pixels"]
    """Where attacks past the images with the weakest bounds lead."""

    @property
    def certified(self) -> Bool[Tensor, "b n"]:
        """Which images of the gallery no allowed change carries the image past."""
        return (self.bound > 0) & self.match.counted

    @property
    def passed(self) -> Bool[Tensor, "b n"]:
        """Which images of the gallery an attacked point is closer to than to its own image."""
        codes = [self.match.passed(self.match.certified.codes(points)) for points in self.points.unbind(1)]
        return torch.stack(codes).any(0)


@final
@dataclass(frozen=True)
class BreakawayBounds(CertifiedObservation):
    """For each image: past how many others it certainly cannot be carried, and past how many an attack carries it."""

    ball: Ball
    divergence: Divergence
    weakest: int
    name = "escape"
    version = 6
    uses_bank = True
    uses_groups = True

    def forward_passes(self, population: Population) -> int:
        return self.weakest * self.certification.attack.forward_passes

    def observe(self, population: Population, rows: Sequence[int]) -> Observed:
        pairs = self.breakaway_pairs(population, rows)
        return {
            "defined": pairs.match.counted.sum(1),
            "certified": pairs.certified.sum(1),
            "passed": pairs.passed.sum(1),
            "wrong": (pairs.passed & pairs.certified).sum(1),
        }

    def breakaway_pairs(self, population: Population, rows: Sequence[int]) -> BreakawayPairs:
        """Return bounds and attacks of the images at ``rows``."""
        match = own_match(population, rows, self.certification, self.divergence, self.ball)
        radii = torch.full_like(match.own[:, 0], self.ball.radius)
        bound = match.bounds(radii, match.counted)
        # Those without much of a proof are the most likely to be passed.
        pairs = match.weakest(bound, population, rows, "escape", self.weakest)
        attack = PairAttack(pairs, type(self.ball)(1.0), self.certification.attack)
        found = cross_check(attack, radii[:, None].expand(pairs.shape))
        return BreakawayPairs(match, bound, found.points.unflatten(0, pairs.shape))


@final
@dataclass(frozen=True)
class CertifiedBreakaway(BracketEvaluation):
    """Fraction of other images that an attack can carry an image past: proved and attacked.

    The fraction is at most as large as proved (upper bound) and at least as large as attacked (lower bound). Paper:
    Petrov and Kwiatkowska 2022, https://arxiv.org/abs/2210.04076.
    """

    pairwise: Attack = NAMED["adaptive"]
    """Attack on retrieval of `breakaway`."""
    rivals: int = 10
    """Nearest images that the attack on retrieval aims at."""
    weakest: int = 10
    """Other images, those with the weakest bounds, that `attack` aims at one by one."""
    # Those of breakaway: with equal settings its attacks are made once.
    sizes = Sizes(
        {**BRACKETS.quick, "weakest": 1},
        {**BRACKETS.full, "attack": "adaptive:restarts=10", "weakest": 30},
        {**BRACKETS.large, "pairwise": "adaptive:restarts=1"},
        {**BRACKETS.heavy, "pairwise": "adaptive:restarts=1,steps=8"},
    )
    name = "certified-breakaway"
    version = 6
    uses_bank = True
    reached: ClassVar = {"passed": "most"}
    title = "Certified breakaway risk"
    meaning = (
        "Of the other images, the share that some allowed change of an image carries it past, so that it becomes closer to "
        "them than to its clean self. The certified risk is proved and can only be too high; the attacked risk is what "
        "attacks achieved and can only be too low, so the true risk lies between the two."
    )
    headline = ("certified_breakaway_risk", "attacked_breakaway_risk")
    words = tuple((f"{end}_breakaway_risk", f"{end} worst-case breakaway risk") for end in ("certified", "attacked"))

    positive = ("rivals", "weakest")

    def bounds(self, ball: Ball, divergence: Divergence) -> BreakawayBounds:
        return BreakawayBounds(self.certification, ball, divergence, self.weakest)

    def attacked(self, ball: Ball, divergence: Divergence) -> tuple[Untargeted, Pairwise]:
        return (
            Untargeted(ball, self.attacks, divergence, self.samples),
            Pairwise(ball, self.pairwise, divergence, self.rivals, self.samples),
        )

    def endings(self, seen: Sequence[Observed]) -> list[Codes]:
        away, past = seen
        return [*(entries(away, k)["codes"] for k in range(len(self.attacks))), past["retrieval"]]

    def ends(self, case: Case) -> list[Pixels]:
        away, past = self.attacked(case.ball, case.divergence)
        return [*away.pixels(case.population, case.rows), past.at_retrieval(case.population, case.rows)]

    def struck(self, case: Case, ends: Sequence[Codes]) -> Observed:
        searched = Searched(case.population)
        return {"passed": most([searched.closer(case.rows, case.divergence, codes)[0] for codes in ends])}

    def brackets(self, case: Case, values: Observed) -> tuple[Bracket, ...]:
        nothing = values["defined"] == 0
        defined = values["defined"].masked_fill(nothing, torch.nan)
        shares = (defined - values["certified"]) / defined, values["passed"] / defined
        kept, left = values["certified"] == defined, values["passed"] == 0
        flags = kept.double().masked_fill(nothing, torch.nan), left.double().masked_fill(nothing, torch.nan)
        staying = "staying the nearest to oneself, whatever the allowed change"
        risk, nearest, accuracy = "breakaway_risk", "nearest_neighbour", "nearest_neighbour_accuracy"
        unit = "fraction of other images"
        return (
            Bracket("breakaway", shares, unit, Claim.UPPER, RISK, UNDEFINED, "mean", "lower", risk),
            Bracket(nearest, flags, "yes or no", Claim.LOWER, staying, UNDEFINED, "share", "higher", accuracy),
        )

    def refuted(self, values: Observed) -> tuple[Tensor, Tensor]:
        # One attack passes fewer images than are left without a proof, or it passes some that have one.
        beyond = (values["passed"] - (values["defined"] - values["certified"])).clamp_min(0)
        return torch.maximum(values["wrong"].to(beyond), beyond), values["certified"]

    def witness(self, case: Case, image: int) -> dict[str, str]:
        population, row, ball, divergence = case.population, case.rows[image], case.ball, case.divergence
        pairs = self.bounds(ball, divergence).breakaway_pairs(population, [row])
        points = [*pairs.points.unbind(1), *(each.double() for each in self.ends(replace(case, rows=[row])))]
        match = pairs.match
        beyond = [match.passed(match.certified.codes(each)) & pairs.certified for each in points]
        which = next(k for k, each in enumerate(beyond) if each.any())
        other = int(beyond[which][0].nonzero()[0, 0])
        plane = match.planes(torch.tensor([0]), torch.tensor([[other]]))
        distances = plane.signed_distances(match.certified.codes(points[which])[:, None])
        facts = {
            "image": population.images.ids[row],
            "other": population.gallery.images.ids[other],
            "divergence": str(divergence),
            "certified_margin": f"{float(pairs.bound[0, other]):.3g}",
            "margin": f"{float(distances):.3g}",
            "ball": str(ball),
        }
        return point_witness(population, row, points[which][0], ball, facts)
