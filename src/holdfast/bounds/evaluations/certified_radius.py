"""Certified radius: the ε up to which an image provably stays more similar to itself than to another.

For an anchor ``x+`` and a negative ``x-``, with ``u`` the unit embedding and ``W = u(x+) - u(x-)``,

    R(x+, x-) = sup { eps : W f(x') > 0 for all x' in the domain with norm(x' - x+) <= eps }

Wang and Liu 2022 (RVCL, https://proceedings.mlr.press/v162/wang22q.html), definitions 4.1 to 4.6. A bound on ``W f`` proves
a radius below ``R``; a successful attack shows one above it. ``average_certified_radius`` is the mean of the proved radius
over images and negatives.

Departures: all negatives of an image share one set of inner bounds, intersected with interval bounds. The tolerance is
1e-4 of the distance to the farthest negative instead of 1e-6, because bounds are looser than that. The attacked radius is
reported too; its attacks maximise ``-W f`` itself instead of similarity to ``f(x-)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.attacks.adaptive import AdaptiveAttack
from holdfast.attacks.base import Attack
from holdfast.bounds.bound_findings import (
    CONTRADICTIONS,
    SIZES,
    CertifiedEvaluation,
    CrossCheck,
    findings,
    influence,
    label_share,
    over_pairs,
    radius_witness,
    series,
    survival_curves,
)
from holdfast.bounds.certified_pairs import UNDEFINED
from holdfast.bounds.methods.base import Crown, Method
from holdfast.bounds.pair_bounds import RadiusBounds, certify_cheaply_and_attack, refuted
from holdfast.core.pictures import ends, row
from holdfast.core.records import Claim, Curve, Findings, Picture, Question, Series
from holdfast.core.run_settings import Observed
from holdfast.core.statistics.summaries import summarise
from holdfast.measure.evaluation import Sizes
from holdfast.measure.population import Population
from holdfast.report.text import radius_in_print

RADIUS = "robust radius, mean over the image's negatives"


@final
@dataclass(frozen=True)
class CertifiedRadius(CertifiedEvaluation):
    """Perturbation up to which an image stays closer to itself than to another image.

    The radius is at least as large as proved (lower bound) and at most as large as attacked (upper bound). Paper: Wang
    and Liu 2022 (RVCL), https://proceedings.mlr.press/v162/wang22q.html, definitions 4.1 to 4.6.
    """

    norm: str = "linf"
    """Norm of perturbations: `linf`, `l2` or `l1`; ε is the result."""
    samples: int = 100
    """Number of certified images."""
    negatives: int = 9
    """Random other images per image."""
    method: Method = Crown()
    """Bounding method."""
    tolerance: float = 1e-4
    """Precision of the search for certified radii, as a fraction of the distance to the farthest negative."""
    attack: Attack = AdaptiveAttack(restarts=2, steps=50)
    """Attack on the certified margin."""
    neurons: int = 50_000
    """Largest number of nonlinear units; larger encoders are refused."""
    arithmetic: str = "real"
    """`real` for exact arithmetic, `executed` for floating-point arithmetic; half precision is always executed."""
    sizes = Sizes(quick={**SIZES.quick, "negatives": 3}, full=SIZES.full, heavy=SIZES.heavy)
    name = "certified-radius"
    version = 7
    uses_labels = True
    title = "Certified radius"
    meaning = (
        "The certified radius is a size of change up to which no image near the clean one is more similar to another "
        "given image than to the clean one: this is proved, for every such image at once. The attacked radius is the "
        "smallest change found that does confuse them, so the true robust radius lies between the two."
    )
    headline = ("average_certified_radius", "average_attacked_radius")
    questions = (
        Question(
            place=70,
            text="What is proved?",
            quantities=("average_certified_radius",),
            meaning="mean change up to which an image stays closer to itself than to a random other image",
            select="first",
        ),
        CONTRADICTIONS,
    )

    positive = ("negatives",)

    def observation(self) -> RadiusBounds:
        return RadiusBounds(self.certification, self.norm, self.negatives, self.tolerance)

    def conclude(self, population: Population, rows: Sequence[int], observed: Observed) -> Findings:
        certified, attacked = observed["certified"], observed["attacked"]
        radii = self._series(population, certified, attacked)
        negatives = population.random_others(rows, self.negatives)
        values = (certified, attacked, certified / attacked)
        moves = [influence(part, each, rows, negatives) for part, each in zip(radii, values, strict=True)]
        estimates = [
            over_pairs(radii[0], moves[0], "higher", "average_certified_radius"),
            over_pairs(radii[1], moves[1], "higher", "average_attacked_radius"),
            over_pairs(radii[2], moves[2], "neither"),
        ]
        witness = partial(radius_witness, self.observation(), observed, population, rows)
        check = CrossCheck(refuted(observed), certified > 0, radii[2].conditions, witness)
        labelled = label_share(population, rows, self.negatives)
        curves = self._curves(certified, attacked)
        if "rounded" in observed:  # by how much certified radii are smaller because the encoder rounds
            where, rounded, of = radii[0].conditions, observed["rounded"], "radius certified in real arithmetic"
            unit = f"{self.norm} distance"
            lost = series("radius_lost_to_rounding", where, rounded, unit, Claim.ESTIMATE, of, UNDEFINED)
            radii, estimates = [*radii, lost], [*estimates, summarise(lost, "mean", "lower")]
        return findings(population, rows, (*radii, *moves), (*estimates, *labelled), [check], curves)

    def _series(
        self, population: Population, certified: Float[Tensor, "b k"], attacked: Float[Tensor, "b k"]
    ) -> list[Series]:
        by_bounds, by_attack = self.certification.cases(population, self.norm)
        both, unit, ratio = {**by_bounds, **by_attack}, f"{self.norm} distance", "certified / attacked"
        share = "certified fraction of the robust radius"
        return [
            series("certified_radius", by_bounds, certified, unit, Claim.LOWER, RADIUS, UNDEFINED),
            series("attacked_radius", by_attack, attacked, unit, Claim.UPPER, RADIUS, UNDEFINED),
            series("tightness", both, certified / attacked, ratio, Claim.LOWER, share, UNDEFINED),
        ]

    def illustrate(
        self, population: Population, rows: Sequence[int], observed: Observed, findings: Findings
    ) -> tuple[Picture, ...]:
        values, domain = findings.series[0].values, population.encoder.domain
        positions = ends(values)
        if not positions or len(domain.shape) != 3:
            return ()
        pair_attack = self.observation().pair_attack(population, [rows[position] for position in positions])
        pairs = pair_attack.pairs
        _, nearest = certify_cheaply_and_attack(pair_attack, self.method, self.tolerance)
        points = nearest.points.unflatten(0, pairs.shape)
        sizes = pair_attack.sizes(nearest.points).reshape(pairs.shape).masked_fill(~pairs.defined, torch.inf)
        pictures: list[Picture | None] = []
        for image, (position, weakest) in enumerate(zip(positions, sizes.argmin(1).tolist(), strict=True)):
            caption = (
                f"{pairs.ids[image][0]}: certified radius {radius_in_print(self.norm, values[position])} on average over "
                f"{int(pairs.defined[image].sum())} others; taken for the easiest of them, "
                f"{pairs.ids[image][1 + weakest]}, by a change of {radius_in_print(self.norm, float(sizes[image, weakest]))}"
            )
            shown = {
                "clean": pairs.anchors[image],
                "taken for": points[image, weakest],
                "other": pairs.negatives[image, weakest],
            }
            pictures.append(row(caption, shown, domain))
        return tuple(picture for picture in pictures if picture is not None)

    def _curves(self, certified: Float[Tensor, "b k"], attacked: Float[Tensor, "b k"]) -> tuple[Curve, ...]:
        """Return the fraction of pairs not confused at each radius: proved below, not refuted above."""
        # From a little before the first pair fails: further in, all of them hold.
        start, end = 0.8 * float(certified.nan_to_num(torch.inf).min()), float(attacked.nan_to_num(0).max())
        radii = {f"certified by {self.method}": certified, f"left by {self.attack}": attacked}
        return survival_curves("pairs_told_apart", self.norm, radii, start, end)
