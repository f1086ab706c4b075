"""Probe radius: the smallest perturbation found that makes a probe answer wrong.

    probe radius(x) = min { norm(x' - x) : the probe gets x' wrong },   0 where it gets x wrong

The minimum is over the perturbed images that a search found (``radius_search``). The attacker knows the probe and maximises
the margin of a wrong class through the encoder. Each image was encoded and classified wrong, so the radius is an upper bound
of the true one. If an image stays right within the widest ball, its radius is infinite. The attacks of ``robust-accuracy``
at fixed radii run here too, on images that the search did not lose within them, so no radius is larger than that of an
attack that succeeded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch

from holdfast.attacks.base import Attack
from holdfast.attacks.objectives import simple as misclassification
from holdfast.attacks.presets import NAMED, label
from holdfast.attacks.radius_search import Goal, Nearest, fixed_forwards, nearest_found, search_forwards
from holdfast.core.balls import Ball, Linf
from holdfast.core.divergences import Divergence, L2Distance
from holdfast.core.encoder import Codes, Pixels
from holdfast.core.records import Claim, Conditions, Findings
from holdfast.core.run_settings import Observed
from holdfast.core.statistics.quantiles import radius_findings
from holdfast.core.statistics.summaries import series_of
from holdfast.measure.evaluation import Evaluation, Sizes
from holdfast.measure.observation import Joint, Observation, population_warnings
from holdfast.measure.population import Fit, Population
from holdfast.probes.base import Probe
from holdfast.probes.linear import Linear
from holdfast.probes.neighbours import Knn
from holdfast.probes.probed_codes import ABSENT, AttackedAnswers, TransferredAnswers, label_free

SMALLEST = "smallest radius at which the probe is wrong"


@final
@dataclass(frozen=True)
class ProbeRadii(Observation):
    """Radius at which an attack made a probe answer wrong.

    It is infinite if never, and 0 if the probe errs on the clean image.
    """

    probe: Probe
    widest: Ball
    """Largest ball to search; radius in pixel units."""
    attack: Attack
    balls: tuple[Ball, ...]
    """Balls of fixed radius."""
    fixed: tuple[Attack, ...]
    """Attacks in these balls."""
    divergence: Divergence
    """Distance between embeddings that an attacker without labels maximises."""
    samples: int
    name = "probe-radii"
    version = 1
    uses_labels = True
    uses_bank = True

    def fits(self) -> tuple[Fit[object], ...]:
        return (*super().fits(), self.probe)

    def forward_passes(self, population: Population) -> int:
        fixed = 2 * fixed_forwards(self.widest, self.balls, self.fixed)  # by who knows the probe and who does not
        return search_forwards(self.attack) + fixed

    def observe(self, population: Population, rows: Sequence[int]) -> Observed:
        return {"radius": self.nearest(population, rows).radii.double()}

    def nearest(self, population: Population, rows: Sequence[int]) -> Nearest:
        """Nearest images found that the probe classifies wrong."""
        probe, labels = population.learned(self.probe), population.labels[list(rows)]

        def wrong(codes: Codes) -> torch.Tensor:
            return probe.ranks(codes, labels) != 0

        def attacked(ball: Ball, positions: Sequence[int]) -> list[Pixels]:
            chosen = [rows[position] for position in positions]
            knowing = AttackedAnswers(self.probe, ball, self.fixed, self.samples)
            blind = TransferredAnswers((self.probe,), ball, label_free(self.fixed), self.divergence, self.samples)
            return [*knowing.pixels(population, chosen), *blind.pixels(population, chosen)]

        objective = misclassification.margin_of_logits(probe.logits, probe.places(labels))
        goal = Goal(probe.encoder, population.pixels(rows), objective, wrong)
        noise = population.run.noise([population.images.ids[row] for row in rows]).fork("radius", "misclassification")
        return nearest_found(goal, self.attack, self.widest, noise, self.balls, attacked)


@final
@dataclass(frozen=True)
class ProbeRadius(Evaluation):
    """Smallest perturbation found that makes a probe answer wrong.

    The true radius is at most the reported one (upper bound); it is 0 where the probe errs on the clean image.
    """

    widest: Ball = Linf(0.5)
    """Norm of perturbations and largest ε searched."""
    attack: Attack = NAMED["adaptive"]
    """Attack at several ε, beside the minimum-norm attack."""
    probes: tuple[Probe, ...] = (Knn(), Linear())
    """Probes to train on the reference set."""
    balls: tuple[Ball, ...] = (Linf(0.05), Linf(0.1))
    """Fixed perturbation sets of `robust-accuracy`; those in another norm are left out."""
    fixed: tuple[Attack, ...] = (NAMED["adaptive"],)
    """Attacks of `robust-accuracy` in `balls`."""
    divergence: Divergence = L2Distance()
    """Distance that the label-free attack maximises in `balls`."""
    samples: int = 300
    """Number of attacked images."""
    sizes = Sizes(
        quick={"samples": 60, "attack": "adaptive:restarts=1", "fixed": ["adaptive:restarts=1"]},
        full={"samples": 10_000, "attack": "adaptive:steps=100,restarts=5"},
        large={"samples": 30, "attack": "adaptive:restarts=1,steps=5", "balls": ["linf:0.05"]},
    )
    name = "probe-radius"
    version = 2
    partial = True
    uses_labels = True
    uses_bank = True
    needs_labels = True
    needs_bank = True
    at_classes = ("fixed",)
    title = "Attack radius of probes, with labels"
    meaning = (
        "The probe radius of an image is the smallest change found after which a simple classifier on the representation "
        "gets it wrong, 0 where it is wrong already. Each radius comes with a changed image that was checked, so the true "
        "one is at most that; a better attack may find a smaller one."
    )
    headline = ("probe_radius",)

    def observation(self) -> Joint:
        return Joint(tuple(map(self._radii, self.probes)))

    def conclude(self, population: Population, rows: Sequence[int], observed: Observed) -> Findings:
        series = []
        for probe in self.probes:
            radii, unit = self.observation().of(self._radii(probe), observed)["radius"], f"{self.widest.name} distance"
            conditions: Conditions = {"ball": str(self.widest), "attack": label(self.attack), "probe": str(probe)}
            series.append(series_of("probe_radius", conditions, radii, unit, Claim.UPPER, SMALLEST, ABSENT))
        ids = [population.images.ids[row] for row in rows]
        return radius_findings(ids, series, self.widest.name, population_warnings(population))

    def _radii(self, probe: Probe) -> ProbeRadii:
        return ProbeRadii(probe, self.widest, self.attack, self.balls, self.fixed, self.divergence, self.samples)
