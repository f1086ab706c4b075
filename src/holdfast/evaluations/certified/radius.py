"""Certified radius: how far an image may change while it provably stays more similar to itself than to another.

For an anchor ``x+`` and a negative ``x-``, with ``u`` the unit code and ``W = u(x+) - u(x-)``,

    R(x+, x-) = sup { eps : W f(x') > 0 for all x' in the domain with norm(x' - x+) <= eps }

Wang and Liu 2022 (RVCL, https://proceedings.mlr.press/v162/wang22q.html), definitions 4.1 to 4.6. A bound on ``W f`` finds
a radius below ``R``, an attack that succeeds one above it. ``average_certified_radius`` is the mean over images and
negatives of the first.

Departures: balls are cut by the range of pixels; all negatives of an image share one set of inner bounds, intersected
with interval bounds; the tolerance is 1e-4 of the way to the farthest negative instead of 1e-6, for bounds are looser
than that; the attacked radius stands beside, and its attacks climb ``-W f`` itself instead of closeness to ``f(x-)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool
from torch import Tensor

from holdfast.attacks.adaptive import AdaptiveAttack
from holdfast.attacks.base import Attack
from holdfast.bounds.methods.base import Crown, Method
from holdfast.core.pictures import ends, row
from holdfast.core.records import Claim, Conditions, Curve, Findings, Picture
from holdfast.core.run import Observed
from holdfast.core.statistics import summarise
from holdfast.evaluations.certified.findings import (
    alarm,
    contradictions,
    label_share,
    over_negatives,
    share_beyond,
    verdict,
    witness,
)
from holdfast.evaluations.certified.radius_bounds import INSIDE, RadiusBounds, attackable, cross_check
from holdfast.evaluations.certified.scatter import scatter
from holdfast.protocol.evaluation import Evaluation
from holdfast.protocol.population import Population

RADIUS = "robust radius, mean over the image's negatives"
POINTS = 81


@final
@dataclass(frozen=True)
class CertifiedRadius(Evaluation):
    """How far images may change before they can be taken for others: proved, and attacked."""

    norm: str = "linf"
    anchors: int = 100
    negatives: int = 9
    method: Method = Crown()
    tolerance: float = 1e-4
    attack: Attack = AdaptiveAttack(restarts=2, steps=50)
    neurons: int = 50_000
    name = "certified-radius"
    version = 4
    needs_gradients = True
    uses_labels = True
    title = "Certified radius"
    meaning = (
        "The certified radius is a size of change up to which no image near the clean one is more similar to another "
        "given image than to the clean one: this is proved, for every such image at once. The attacked radius is the "
        "smallest change found that does confuse them, so the true robust radius lies between the two."
    )
    headline = ("average_certified_radius", "average_attacked_radius")

    def observation(self) -> RadiusBounds:
        return RadiusBounds(
            self.norm, self.anchors, self.negatives, self.method, self.tolerance, self.attack, self.neurons
        )

    def conclude(self, population: Population, rows: Sequence[int], observed: Observed) -> Findings:
        certified, attacked, unit = observed["certified"], observed["attacked"], f"{self.norm} distance"
        proved: Conditions = {"ball": self.norm, "method": str(self.method)}
        struck: Conditions = {"ball": self.norm, "attack": str(self.attack)}
        series = [
            over_negatives("certified_radius", proved, certified, unit, Claim.LOWER, RADIUS),
            over_negatives("attacked_radius", struck, attacked, unit, Claim.UPPER, RADIUS),
            over_negatives(
                "tightness",
                {**proved, **struck},
                certified / attacked,
                "certified / attacked",
                Claim.LOWER,
                "certified share of the robust radius",
            ),
        ]
        estimates = [
            summarise(series[0], "mean", "higher", "average_certified_radius"),
            summarise(series[1], "mean", "higher", "average_attacked_radius"),
            summarise(series[2], "mean", "neither"),
        ]
        count = contradictions(refuted(observed), int((certified > 0).sum()), {**proved, **struck})
        return Findings(
            ids=tuple(population.images.ids[row] for row in rows),
            series=tuple(series),
            estimates=(*estimates, *label_share(population, rows, self.negatives), count),
            curves=self._curves(certified, attacked),
            verdicts=(verdict([count], self._witness(population, rows, observed)),),
            warnings=alarm([count]),
        )

    def illustrate(self, population: Population, rows: Sequence[int], findings: Findings) -> tuple[Picture, ...]:
        values, domain = findings.series[0].values, population.encoder.domain
        positions = ends(values)
        if not positions:
            return ()
        drawn = scatter(values, findings.series[1].values, f"{self.norm} distance")
        if len(domain.shape) != 3:
            return (drawn,)
        pair_attack = self.observation().pair_attack(population, [rows[position] for position in positions])
        two = pair_attack.pairs
        points = attackable(pair_attack, self.method, self.tolerance)[1].points.unflatten(0, two.shape)
        sizes = pair_attack.sizes(points.flatten(0, 1)).reshape(two.shape).masked_fill(~two.defined, torch.inf)
        pictures: list[Picture | None] = [drawn]
        for place, (position, weakest) in enumerate(zip(positions, sizes.argmin(1).tolist(), strict=True)):
            caption = (
                f"{two.ids[place][0]}: certified radius {values[position]:.3g} on average over "
                f"{int(two.defined[place].sum())} others; taken for the easiest of them, "
                f"{two.ids[place][1 + weakest]}, by a change of {float(sizes[place, weakest]):.3g}"
            )
            shown = {
                "clean": two.anchors[place],
                "taken for": points[place, weakest],
                "other": two.negatives[place, weakest],
            }
            pictures.append(row(caption, shown, domain))
        return tuple(picture for picture in pictures if picture is not None)

    def _curves(self, certified: Tensor, attacked: Tensor) -> tuple[Curve, ...]:
        """Return the share of pairs that hold at each radius: proved below, not refuted above."""
        # From a little before the first pair fails: further in, all of them hold.
        start, end = 0.8 * float(certified.nan_to_num(torch.inf).min()), float(attacked.nan_to_num(0).max())
        grid = tuple(start + (end - start) * step / (POINTS - 1) for step in range(POINTS)) if start < end else ()
        kinds = {f"certified by {self.method}": certified, f"left by {self.attack}": attacked}
        return tuple(
            Curve(
                quantity="pairs_told_apart",
                conditions={"ball": self.norm, "attack": kind},
                x_label=f"{self.norm} radius",
                y_label="share of pairs told apart",
                x=grid,
                y=share_beyond(radii, grid),
            )
            for kind, radii in kinds.items()
        )

    def _witness(self, population: Population, rows: Sequence[int], observed: Observed) -> dict[str, str]:
        """Return the first contradiction, found once more: everything is drawn from the pair's own stream."""
        wrong = refuted(observed)
        if not bool(wrong.any()):
            return {}
        image = int(wrong.any(1).nonzero()[0, 0])
        pair_attack, certified = self.observation().pair_attack(population, [rows[image]]), observed["certified"][image]
        found = cross_check(pair_attack, certified[None].nan_to_num(0))
        if not bool((found.values <= 0).any()):
            found = attackable(pair_attack, self.method, self.tolerance)[1]
        return witness(population, pair_attack, found, wrong[image], certified)


def refuted(observed: Observed) -> Bool[Tensor, "b k"]:
    """Return which certificates an attack got into: a point inside that is mistaken."""
    certified = observed["certified"]
    return (certified > 0) & ((observed["lowest"] <= 0) | (observed["attacked"] <= certified * INSIDE))
