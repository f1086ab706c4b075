"""Attack radius: the smallest perturbation found that makes an image match another one.

    attack radius(x) = min { norm(x' - x) : some other image is nearer to f(x') than x is }

The minimum is over the perturbed images that a search found (``radius_search``). Each was encoded and showed the event, so
the radius is an upper bound of the true one. Two further radii are of pairs of images. At the first, one image matches the
other: no clean image is nearer to its embedding. At the second, both overlap when both are perturbed:
``d(f(x_j'), f(x_i)) < d(f(x_i'), f(x_i))``.

If nothing was found within the widest ball, the radius is infinite. Medians and quartiles need no more.

Two images that are each other's nearest neighbour mostly have the same radius, because the boundary lies halfway between
them. Intervals allow for this (``of_neighbours``), and two encoders are compared by these intervals.

Other evaluations attack at fixed radii (``balls``). The same attacks run here on images that the search did not lose within
these balls, so no radius is larger than that of an attack that succeeded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from holdfast.attacks.attacked_codes import ATTACKS, BALLS, SIZES, UNDEFINED, change, nearest_image
from holdfast.attacks.attacked_radii import EVENTS, LEFT_OUT, SMALLEST, Radii, neighbours, of_neighbours
from holdfast.attacks.base import Attack
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
    balls: tuple[Ball, ...] = BALLS
    """Fixed perturbation sets of other evaluations; those in another norm are left out."""
    fixed: tuple[Attack, ...] = ATTACKS
    """Attacks of other evaluations in `balls`, away from the image's own embedding or towards a partner."""
    pairwise: Attack = NAMED["adaptive"]
    """Attack on retrieval of `breakaway` in `balls`."""
    samples: int = 300
    """Number of images; half as many pairs."""
    sizes = Sizes(
        quick={"samples": 60, "attack": "adaptive:restarts=1,steps=10"},
        full={"samples": 10_000, "attack": "adaptive:steps=100,restarts=5"},
        large={
            "samples": 30,
            "attack": "adaptive:restarts=1,steps=5",
            "events": ["retrieval"],
            "balls": ["linf:0.05"],
            "fixed": ["u-pgd", "adaptive:restarts=1"],
            "pairwise": "adaptive:restarts=1",
        },
        heavy={"fixed": SIZES.heavy["attacks"], "pairwise": "adaptive:restarts=1,steps=8"},
    )
    name = "attack-radius"
    version = 2
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
        return Joint(tuple(map(self._radii, self.events)))

    def conclude(self, population: Population, rows: Sequence[int], observed: Observed) -> Findings:
        series = []
        for event in self.events:
            radii = self.observation().of(self._radii(event), observed)["radius"]
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
        known = [(value, place) for place, value in enumerate(values) if 0 < value < float("inf")]
        if self.events[0] != "retrieval" or not known or len(domain.shape) != 3:
            return ()
        radius, place = min(known)
        radii = self._radii("retrieval")
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

    def _radii(self, event: str) -> Radii:
        return Radii(event, **{name: value for name, value in vars(self).items() if name != "events"})
