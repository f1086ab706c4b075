"""Randomized smoothing of probes: the ε up to which a probe's majority among noisy copies keeps its class.

The majority class of the first copies is tested on fresh ones. If its probability is at least ``p > 1/2`` with confidence
``1 - alpha``, the radius is ``sigma Phi^-1(p)``; otherwise the probe abstains. Cohen et al. 2019,
https://arxiv.org/abs/1902.02918, algorithm ``Certify``. Departure: all first copies choose the class, because center
smoothing needs them anyway; the paper draws 100. More copies choose the right class more often.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from holdfast.core.balls import L2
from holdfast.core.records import Claim, Conditions, Curve, Estimate, Findings, Series
from holdfast.core.run_settings import Observed
from holdfast.core.statistics.summaries import series_of, summarise
from holdfast.measure.evaluation import Sizes
from holdfast.measure.observation import findings_of, radius_curves
from holdfast.measure.population import Population
from holdfast.probes.base import Probe
from holdfast.smoothing.copies import least_share
from holdfast.smoothing.copies import radius as certified_radius
from holdfast.smoothing.noisy_codes import NoisyCodes
from holdfast.smoothing.plan import LEAST, SIZES, SmoothedEvaluation, check_votes

RADIUS = "l2 radius within which the smoothed probe stays right; 0 where it is wrong"
ACCURACY = "the smoothed probe staying right after every change of this l2 size"
WRONG = "the smoothed probe is wrong or abstains"
UNKNOWN = "the probe could not be asked"


@final
@dataclass(frozen=True)
class RandomizedSmoothing(SmoothedEvaluation):
    """ℓ2 perturbation up to which a smoothed probe provably keeps the correct class.

    Paper: Cohen et al. 2019, https://arxiv.org/abs/1902.02918, algorithm ``Certify``. Departure: all of the first
    copies choose the class, where the paper draws 100.
    """

    radii: tuple[float, ...] = (0.25, 0.5, 0.75)
    """ε in ℓ2 at which certificates are reported, in pixel units."""
    sizes = Sizes(SIZES.quick, SIZES.full, {**SIZES.large, "radii": [0.25, 0.5]}, SIZES.heavy)
    name = "randomized-smoothing"
    version = 3
    uses_labels = True
    uses_bank = True
    needs_bank = True
    needs_labels = True
    title = "Randomized smoothing of probes"
    meaning = (
        "A probe that is asked about many noisy copies of an image, and goes by the majority, provably keeps its answer up "
        "to the certified radius, whatever the encoder. The average counts images it gets wrong, and those on which it "
        "abstains, as 0; the certificates hold for the smoothed probe with the stated confidence."
    )
    headline = ("average_certified_probe_radius", "certified_probe_accuracy")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_votes(self.name, self.smoothing, self.radii, self.alpha_of_look)

    @property
    def least_copies(self) -> int:
        return LEAST

    def observation(self) -> NoisyCodes:
        return self.noisy_codes

    def conclude(self, population: Population, rows: Sequence[int], observed: Observed) -> Findings:
        series, estimates, curves, cautions = list[Series](), list[Estimate](), list[Curve](), list[str]()
        labels = population.labels[list(rows)]
        for probe in self.probes:
            fitted = population.learned(probe)  # or why it could not be
            counts = self.noisy_codes.of_probe(probe, observed)
            chosen = counts["first"].argmax(1)
            reach = certified_radius(
                least_share(counts["votes"].gather(1, chosen[:, None])[:, 0], counts["copies"], self.alpha_of_look),
                self.sigma,
            )
            right = fitted.places(labels) == chosen.to(population.run.device)
            some, numbers = self._numbers(probe, reach.cpu(), right.cpu())
            series += some
            estimates += numbers
            kept = reach.where(right.to(reach.device), torch.nan).nan_to_num(nan=0.0)
            name, label = "certified_accuracy_by_radius", "certified accuracy"
            curves.append(self.survival_curve(name, label, kept, probe=str(probe)))
            cautions += [fitted.caution] if fitted.caution else []
        curves += radius_curves(estimates)
        return findings_of(population, rows, series, estimates, dict.fromkeys(cautions), curves)

    def _numbers(
        self, probe: Probe, reach: Float[Tensor, "b"], right: Bool[Tensor, "b"]
    ) -> tuple[list[Series], list[Estimate]]:
        """Return the certificates of one probe; ``reach`` is nan if it abstains."""
        case = {"noise": f"{self.sigma:g}", "probe": str(probe)}
        answered = right & ~reach.isnan()
        kept = reach.where(answered, 0.0)
        certified = self._radius_series("certified_probe_radius", case, kept)
        of_right = self._radius_series("certified_probe_radius_of_correct", case, reach.where(answered, torch.nan))
        accuracy = _flags("smoothed_probe_accuracy", case, answered, "the smoothed probe being right")
        abstained = _flags("probe_abstentions", case, reach.isnan(), "the smoothed probe abstaining")
        survivals = [self._survival(radius, case, kept) for radius in self.radii]
        estimates = [
            self.certified_number(certified, "mean", quantity="average_certified_probe_radius"),
            self.certified_number(certified, "median", quantity="median_certified_probe_radius"),
            self.certified_number(of_right, "mean", quantity="average_certified_probe_radius_of_correct"),
            summarise(accuracy, "share", "higher"),
            summarise(abstained, "share", "lower"),
            *(self.certified_number(survival, "share") for survival in survivals),
        ]
        return [certified, of_right, accuracy, abstained, *survivals], estimates

    def _radius_series(self, quantity: str, case: Conditions, values: Float[Tensor, "b"]) -> Series:
        """Return certified radii, of which none is larger than what copies that all agree certify."""
        series = series_of(quantity, case, values, "l2 radius", Claim.LOWER, RADIUS, WRONG)
        return series.model_copy(update={"limits": (0.0, self.farthest)})

    def _survival(self, radius: float, case: Conditions, kept: Float[Tensor, "b"]) -> Series:
        """Return for each image whether it is certified to be answered rightly within ``radius``."""
        conditions = {"ball": str(L2(radius)), **case}
        flags = (kept > radius).double()
        return series_of("certified_probe_accuracy", conditions, flags, "yes or no", Claim.LOWER, ACCURACY, UNKNOWN)


def _flags(quantity: str, case: Conditions, holds: Bool[Tensor, "b"], of: str) -> Series:
    """Return for each image whether something holds of the smoothed probe."""
    return series_of(quantity, case, holds.double(), "yes or no", Claim.ESTIMATE, of, UNKNOWN)
