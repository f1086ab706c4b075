"""Certified overlap: pairs of images that no perturbations can bring past each other, proved and attacked.

Two images overlap if ``d(f(x_i), f(x_j^)) < d(f(x_i), f(x_i^))`` for some ``x_i^`` and ``x_j^`` in their balls: the other
image is nearer to ``x_i`` than the perturbed ``x_i`` itself (Petrov and Kwiatkowska 2022,
https://arxiv.org/abs/2210.04076, section 3). With a bound ``tau_i`` on how far ``f(x_i)`` moves, and a bound ``L_ij`` on
how near ``f(x_j^)`` comes to ``f(x_i)``,

    (L_ij - tau_i) / d(f(x_i), f(x_j))  <=  adversarial margin  <=  the margin that attacks leave

If the first is positive, no perturbations overlap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from holdfast.attacks.attacked_codes import Targeted
from holdfast.attacks.objectives.simple import Toward
from holdfast.bounds.bound_findings import BRACKETS, Bracket, BracketEvaluation, Case, most, point_witness
from holdfast.bounds.evaluations.certified_displacement import exceeds, farthest_attacked
from holdfast.bounds.outputs import ALIKE, OutputBounds
from holdfast.bounds.pair_bounds import CertifiedObservation
from holdfast.core.balls import Ball
from holdfast.core.divergences import Cosine, Divergence
from holdfast.core.encoder import Codes, Pixels
from holdfast.core.objective import AttackContext
from holdfast.core.records import Claim
from holdfast.core.run_settings import Observed
from holdfast.measure.observation import entries
from holdfast.measure.population import Population

OVERLAP = "overlap under the worst allowed changes"
MARGIN = "smallest adversarial margin"
UNDEFINED = "the two images have one embedding, or one has a zero embedding"


@final
@dataclass(frozen=True)
class OverlapBounds(CertifiedObservation):
    """For each image and its partner: bounds of how far it moves and of how near its impostor comes, and attacks on both.

    ``tau`` and ``near`` are the bounds, ``moved`` and ``came`` what attacks reached, ``apart`` the clean distance.
    """

    ball: Ball
    divergence: Divergence
    name = "between"
    version = 6
    uses_groups = True

    def rows(self, population: Population) -> list[int]:
        # Pairs that share an image overlap together, and no interval of independent ones would hold.
        return population.disjoint_pairs(self.certification.samples)

    def forward_passes(self, population: Population) -> int:
        return 2 * self.certification.attack.forward_passes

    def observe(self, population: Population, rows: Sequence[int]) -> Observed:
        pixels, partners = self._pixels(population, rows)
        certified = self.certification.encoder(population, torch.cat([pixels, partners]))
        bounds = OutputBounds(certified, self.certification.method, self.ball)
        moved_anchor, impostor = self.attacked(population, rows)
        codes, targets = certified.codes(pixels), certified.codes(partners)
        apart, same = self.divergence(targets, codes), same_codes(self.divergence, targets, codes)
        moved = self.divergence(certified.codes(moved_anchor), codes)
        came = self.divergence(certified.codes(impostor), codes)
        return {
            "apart": apart.masked_fill(same, torch.nan),
            "moved": moved,
            "came": came,
            "tau": bounds.farthest(self.divergence, pixels),
            "near": bounds.nearest(self.divergence, partners, codes),
        }

    def attacked(self, population: Population, rows: Sequence[int]) -> tuple[Pixels, Pixels]:
        """Return each image moved as far as attacks move it, and its partner moved as close to the image as they can."""
        attack, encoder = self.certification.attack, population.double
        pixels, partners = self._pixels(population, rows)
        noise = population.run.noise([population.images.ids[row] for row in rows]).fork("between")
        objective = Toward(self.divergence)(AttackContext(encoder, partners, noise, pixels))
        impostor = attack(encoder, partners, objective, self.ball, noise)
        return farthest_attacked(population, rows, self.divergence, attack, self.ball), impostor

    @staticmethod
    def _pixels(population: Population, rows: Sequence[int]) -> tuple[Pixels, Pixels]:
        """Return the images at ``rows`` and their partners, in float64."""
        partners = population.partners[list(rows)].tolist()
        return population.pixels(rows).double(), population.pixels(partners).double()


@final
@dataclass(frozen=True)
class CertifiedOverlap(BracketEvaluation):
    """Pairs of images that no perturbation within ε can bring past each other.

    Confused pairs are at most as many as proved (upper bound) and at least as many as attacked (lower bound). Paper:
    Petrov and Kwiatkowska 2022, https://arxiv.org/abs/2210.04076, section 3.
    """

    sizes = BRACKETS
    name = "certified-overlap"
    version = 7
    reached: ClassVar = {"moved": "most", "came": "least"}
    title = "Certified overlap risk"
    meaning = (
        "Two images overlap when both can be changed so that the impostor looks more like the first image than the first "
        "image's own changed version does. The certified risk counts the pairs for which that is not proved impossible, and "
        "can only be too high; the attacked risk counts those for which attacks did it, and can only be too low."
    )
    headline = ("certified_overlap_risk", "attacked_overlap_risk")
    words = tuple((f"{end}_overlap_risk", f"{end} worst-case overlap risk") for end in ("certified", "attacked"))

    def bounds(self, ball: Ball, divergence: Divergence) -> OverlapBounds:
        return OverlapBounds(self.certification, ball, divergence)

    def attacked(self, ball: Ball, divergence: Divergence) -> tuple[Targeted]:
        return (Targeted(ball, self.attacks, divergence, self.samples),)

    def endings(self, seen: Sequence[Observed]) -> list[Codes]:
        (both,) = seen
        return [entries(both, k)[way] for k in range(len(self.attacks)) for way in ("ahead", "back")]

    def ends(self, case: Case) -> list[Pixels]:
        (toward,), population, rows = self.attacked(case.ball, case.divergence), case.population, case.rows
        partners = population.partners[list(rows)].tolist()
        ways = zip(toward.pixels(population, rows, partners), toward.pixels(population, partners, rows), strict=True)
        return [pixels for both in ways for pixels in both]

    def struck(self, case: Case, ends: Sequence[Codes]) -> Observed:
        clean = case.population.codes[list(case.rows)].double()
        distances = [case.divergence(codes.to(clean), clean) for codes in ends]
        return {"moved": most(distances[0::2]), "came": -most([-back for back in distances[1::2]])}

    def brackets(self, case: Case, values: Observed) -> tuple[Bracket, ...]:
        certified, attacked = margins(values)
        undefined = certified.isnan() | attacked.isnan()
        flags, both = (
            (lower.double().masked_fill(undefined, torch.nan), other.double().masked_fill(undefined, torch.nan))
            for lower, other in ((certified <= 0, attacked < 0), (certified, attacked))
        )
        unit, risk = "fraction of clean distance", "overlap_risk"
        return (
            Bracket("overlaps", flags, "yes or no", Claim.UPPER, OVERLAP, UNDEFINED, "share", "lower", risk),
            Bracket("margin", both, unit, Claim.LOWER, MARGIN, UNDEFINED, "median", "higher"),
        )

    def refuted(self, values: Observed) -> tuple[Tensor, Tensor]:
        # Each half is a claim of its own, and is held against its own attack.
        refuted = exceeds(values["moved"], values["tau"]) | exceeds(values["near"], values["came"])
        return refuted, margins(values)[0].isfinite()

    def witness(self, case: Case, image: int) -> dict[str, str]:
        """Return the attacked impostor, or the image moved too far."""
        population, row, ball, divergence = case.population, case.rows[image], case.ball, case.divergence
        observation, partner = self.bounds(ball, divergence), int(population.partners[row])
        values, pixels = observation.observe(population, [row]), population.pixels([row]).double()
        certified, ends = self.certification.encoder(population, pixels), self.ends(replace(case, rows=[row]))
        moved_anchor, impostor = observation.attacked(population, [row])
        anchors, impostors = [moved_anchor, *ends[0::2]], [impostor, *ends[1::2]]
        clean = certified.codes(pixels)
        moved, came = (
            [float(divergence(certified.codes(each.double()), clean)) for each in points]
            for points in (anchors, impostors)
        )
        values |= {"moved": torch.tensor([max(moved)]), "came": torch.tensor([min(came)])}
        moved_anchor, impostor = anchors[moved.index(max(moved))].double(), impostors[came.index(min(came))].double()
        facts = {
            "image": population.images.ids[row],
            "other": population.images.ids[partner],
            "divergence": str(divergence),
            **{name: f"{float(value):.6g}" for name, value in values.items()},
            "ball": str(ball),
        }
        if bool(exceeds(values["moved"], values["tau"])):
            return point_witness(population, row, moved_anchor[0], ball, {**facts, "refuted": "tau"})
        return point_witness(population, partner, impostor[0], ball, {**facts, "refuted": "near"})


def same_codes(divergence: Divergence, codes: Codes, other: Codes) -> Bool[Tensor, "n"]:
    """Return which embeddings are the same up to rounding, so that a fraction of their distance means nothing."""
    if isinstance(divergence, Cosine):
        return divergence(codes, other) <= ALIKE**2 / 2
    return (codes - other).norm(dim=1) <= ALIKE * torch.maximum(codes.norm(dim=1), other.norm(dim=1))


def margins(values: Observed) -> tuple[Float[Tensor, "n"], Float[Tensor, "n"]]:
    """Return the certified and the attacked margin of each pair; nan where the images have one embedding."""
    apart = values["apart"].masked_fill(~(values["apart"] > 0), torch.nan)
    return (values["near"] - values["tau"]) / apart, (values["came"] - values["moved"]) / apart
