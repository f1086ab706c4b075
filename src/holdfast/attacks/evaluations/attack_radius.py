"""Attack radius: the smallest perturbation found that makes an image match another one.

    attack radius(x) = min { norm(x' - x) : some other image is nearer to f(x') than x is }

The minimum is over the perturbed images that a search found (``radius_search``). Each was encoded and showed the event, so
the radius is an upper bound of the true one. Two further radii are of pairs of images. At the first, one image matches the
other: no clean image is nearer to its embedding. At the second, both overlap when both are perturbed:
``d(f(x_j'), f(x_i)) < d(f(x_i'), f(x_i))``.

If nothing was found within the widest ball, the radius is infinite. Medians and quartiles need no more.

Two images that are each other's nearest neighbour mostly have the same radius, because the boundary lies halfway between
them. Intervals allow for this (``of_neighbours``), and two encoders are compared by these intervals.

``breakaway`` attacks the same images at fixed radii (``balls``). In a run of both, its attacked embeddings count here, too:
an image that was lost within a ball has at most the radius of the ball. So no radius is larger than that of an attack that
succeeded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.attacks.attacked_codes import (
    ATTACKS,
    SIZES,
    UNDEFINED,
    Pairwise,
    Untargeted,
    change,
    nearest_image,
)
from holdfast.attacks.attacked_radii import EVENTS, LEFT_OUT, SMALLEST, Radii, Searched, neighbours, of_neighbours
from holdfast.attacks.base import Attack
from holdfast.attacks.evaluations.breakaway import Breakaway
from holdfast.attacks.presets import NAMED, label
from holdfast.core.balls import Ball, Linf
from holdfast.core.divergences import Divergence, L2Distance
from holdfast.core.errors import UnknownName
from holdfast.core.records import Claim, Conditions, Findings, Picture, Question
from holdfast.core.run_settings import Observed
from holdfast.core.statistics.quantiles import radius_findings
from holdfast.core.statistics.summaries import series_of
from holdfast.measure.evaluation import Evaluation, Sizes
from holdfast.measure.observation import Joint, pictures_of, population_warnings
from holdfast.measure.population import Population
from holdfast.report.text import radius_in_print

QUANTITIES = {"retrieval": "attack_radius", "impersonation": "impersonation_radius", "overlap": "overlap_radius"}
UNPAIRED = f"not attacked, so that no two pairs share an image; or {UNDEFINED}"


@final
@dataclass(frozen=True)
class AttackRadius(Evaluation):
    """Smallest perturbation found that makes an image match another one.

    The true radius is at most the reported one (upper bound). Images for which no perturbation was found have an
    infinite radius.
    """

    widest: Ball = Linf(0.5)
    """Norm of perturbations and largest ε searched; `l2:5` searches in ℓ2."""
    attack: Attack = NAMED["adaptive"]
    """Attack at several ε, beside the minimum-norm attack; a black-box attack (`square`) is used alone."""
    divergence: Divergence = L2Distance()
    """Distance between embeddings."""
    events: tuple[str, ...] = ("retrieval", "impersonation", "overlap")
    """Events to search for: `retrieval`, `impersonation`, `overlap`."""
    rivals: int = 10
    """Nearest images that the search aims at; all other images decide the event."""
    balls: tuple[Ball, ...] = ()
    """Perturbation sets in which `fixed` and `pairwise` attack, too; if empty, a run without a budget takes those of
    `breakaway`, with its attacks."""
    fixed: tuple[Attack, ...] = ATTACKS
    """Attacks in `balls` away from the image's own embedding."""
    pairwise: Attack = NAMED["adaptive"]
    """Attack in `balls` on retrieval."""
    samples: int = 300
    """Number of images; half as many pairs."""
    # In quick, the images are those of breakaway, so that they are attacked once.
    sizes = Sizes(
        quick={"samples": SIZES.quick["samples"], "attack": "adaptive:restarts=1,steps=10"},
        full={"samples": SIZES.full["samples"], "attack": "adaptive:steps=100,restarts=5"},
        large={"attack": "adaptive:restarts=1,steps=5", "events": ["retrieval"]},
        heavy={"samples": SIZES.heavy["samples"]},
    )
    name = "attack-radius"
    version = 3
    partial = True
    pictured = 1
    uses_bank = True
    title = "Attack radius"
    meaning = (
        "The attack radius of an image is the smallest change found after which another image is nearer to it than its own "
        "clean self: half of the images are mistaken within the median. Each radius comes with a changed image that was "
        "checked, so the true one is at most that; a better attack may find a smaller one."
    )
    headline = ("attack_radius",)
    questions = (
        Question(
            place=-10,
            text="At which change does it mistake images?",
            quantities=("attack_radius",),
            meaning="change after which half of the images are mistaken",
        ),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for event in self.events:
            if event not in EVENTS:
                raise UnknownName(f"{self.name}: event", event, EVENTS)

    def observation(self) -> Joint:
        return Joint((*map(self.radii, self.events), *(part for parts in self._attacked().values() for part in parts)))

    def conclude(self, population: Population, rows: Sequence[int], observed: Observed) -> Findings:
        series = []
        for event in self.events:
            radii = self.observation().of(self.radii(event), observed)["radius"]
            if event == "retrieval":
                radii = self._at_most_those_of_balls(radii, population, rows, observed)
            unit, reason = f"{self.widest.name} distance", LEFT_OUT if event == "retrieval" else UNPAIRED
            quantity = QUANTITIES[event]
            series.append(series_of(quantity, self._conditions, radii, unit, Claim.UPPER, SMALLEST, reason))
        ids, warnings = [population.images.ids[row] for row in rows], population_warnings(population, [self.divergence])
        findings = radius_findings(ids, series, self.widest.name, warnings)
        # The images of a bank are given, and groups of images have intervals of their own.
        if population.bank_images is not None or population.images.groups is not None or "retrieval" not in self.events:
            return findings
        return of_neighbours(findings, QUANTITIES["retrieval"], *neighbours(population, rows, self.divergence))

    def illustrate(
        self, population: Population, rows: Sequence[int], observed: Observed, findings: Findings
    ) -> tuple[Picture, ...]:
        """Show the image with the smallest radius: clean, attacked, its match and the change."""
        domain, values = population.encoder.domain, findings.series[0].values
        if self.events[0] != "retrieval" or len(domain.shape) != 3:
            return ()
        radii = self.radii("retrieval")
        # Where an attack of breakaway was better, the search does not know the image.
        found = self.observation().of(radii, observed)["radius"].tolist()
        pairs = enumerate(zip(values, found, strict=True))
        known = [(value, place) for place, (value, searched) in pairs if 0 < value == searched < float("inf")]
        if not known:
            return ()
        radius, place = min(known)
        search = radii.search(population, [rows[place]])
        moved = radii.nearest(population, [rows[place]], search).points
        divergence, clean = population.fitted(self.divergence), search.goal.pixels
        parts = {
            "clean": clean,
            "attacked": moved,
            "nearest image": nearest_image(population, divergence, population.encode(moved), [rows[place]]),
            "change": change(clean, moved, domain, radius),
        }
        smallest = f"{findings.ids[place]}: attack radius {radius_in_print(self.widest.name, radius)}"
        caption = f"{smallest} ({', '.join(self._conditions.values())})"
        return pictures_of([caption], parts, domain)

    @property
    def _conditions(self) -> Conditions:
        return {"ball": str(self.widest), "attack": label(self.attack), "divergence": str(self.divergence)}

    def radii(self, event: str) -> Radii:
        """Return the search for the radii of ``event``."""
        return Radii(event, self.widest, self.attack, self.divergence, self.rivals, self.samples)

    def beside(self, breakaway: Breakaway) -> AttackRadius:
        """Return this evaluation with the attacks of ``breakaway`` unless it has balls of its own."""
        if self.balls:
            return self
        return replace(self, balls=breakaway.balls, fixed=breakaway.attacks, pairwise=breakaway.pairwise)

    def _attacked(self) -> dict[Ball, tuple[Untargeted, Pairwise]]:
        """Return what is observed in each ball within the widest one, as ``breakaway`` does."""
        within = (ball for ball in self.balls if ball.name == self.widest.name and ball.radius <= self.widest.radius)
        return {
            ball: (
                Untargeted(ball, self.fixed, self.divergence, self.samples),
                Pairwise(ball, self.pairwise, self.divergence, self.rivals, self.samples),
            )
            for ball in (within if "retrieval" in self.events else ())
        }

    def _at_most_those_of_balls(
        self, radii: Float[Tensor, "n"], population: Population, rows: Sequence[int], observed: Observed
    ) -> Float[Tensor, "n"]:
        """Return ``radii``, but the radius of a ball for images that an attack in it lost sooner."""
        searched = Searched(population)
        for ball, parts in self._attacked().items():
            for codes in (codes for part in parts for codes in self.observation().of(part, observed).values()):
                lost = searched.closer(rows, self.divergence, codes)[0] > 0
                radii = torch.where(lost.to(radii.device) & (radii > ball.radius), ball.radius, radii)
        return radii
