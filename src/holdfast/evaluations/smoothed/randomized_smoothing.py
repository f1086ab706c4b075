"""Randomized smoothing of probes: up to which change of an image a probe's majority among noisy copies keeps its class.

The class that most of the first copies get is tested on fresh ones: if it has a chance of at least ``p > 1/2``, with
confidence ``1 - alpha``, the radius is ``sigma Phi^-1(p)``; else the probe abstains. Cohen et al. 2019,
https://arxiv.org/abs/1902.02918, algorithm ``Certify``. Departure: the class is chosen by all of the first copies, which
center smoothing needs anyway, where the paper draws 100; more of them choose the right one more often.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from holdfast.core.balls import L2
from holdfast.core.records import Claim, Curve, Estimate, Findings, Series
from holdfast.core.run_settings import Observed
from holdfast.core.statistics import summarise
from holdfast.core.statistics.series import series_of
from holdfast.evaluations.smoothed.base import LEAST, SmoothedEvaluation
from holdfast.evaluations.smoothed.findings import radius_curves, sure
from holdfast.evaluations.smoothed.observations import NoisyCodes
from holdfast.evaluations.smoothed.plan import require_votes
from holdfast.evaluations.smoothed.sizes import SIZES
from holdfast.evaluations.smoothed.votes import farthest, least_share
from holdfast.evaluations.smoothed.votes import radius as certified_radius
from holdfast.probes.base import Probe
from holdfast.protocol.population import Population
from holdfast.protocol.sizes import Sizes

RADIUS = "l2 radius within which the smoothed probe stays right; 0 where it is wrong"
ACCURACY = "the smoothed probe staying right after every change of this l2 size"
WRONG = "the smoothed probe is wrong or abstains"
UNKNOWN = "the probe could not be asked"
GRID = 41


@final
@dataclass(frozen=True)
class RandomizedSmoothing(SmoothedEvaluation):
    """How far images may change while a probe, smoothed, provably stays right."""

    radii: tuple[float, ...] = (0.25, 0.5, 0.75)
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
        require_votes(self.name, self.smoothing, self.radii, self.alpha_of_look)

    @property
    def least_copies(self) -> int:
        return LEAST

    def observation(self) -> NoisyCodes:
        return self.noisy_codes

    def conclude(self, population: Population, rows: Sequence[int], observed: Observed) -> Findings:
        series: list[Series] = []
        estimates: list[Estimate] = []
        curves: list[Curve] = []
        cautions: list[str] = []
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
            curves.append(self._curve(probe, reach.cpu(), right.cpu()))
            cautions += [fitted.caution] if fitted.caution else []
        return Findings(
            ids=tuple(population.images.ids[row] for row in rows),
            series=tuple(series),
            estimates=tuple(estimates),
            curves=(*curves, *radius_curves(estimates, self.radii)),
            warnings=tuple(dict.fromkeys(cautions)),
        )

    def _numbers(
        self, probe: Probe, reach: Float[Tensor, "b"], right: Bool[Tensor, "b"]
    ) -> tuple[list[Series], list[Estimate]]:
        """Return what is certified of one probe: ``reach`` is nan where it abstains."""
        case = {"noise": f"{self.sigma:g}", "probe": str(probe)}
        answered = right & ~reach.isnan()
        kept = reach.where(answered, 0.0)
        limits = (0.0, farthest(self.copies, self.sigma, self.alpha_of_look))
        flag = "yes or no"
        certified, of_right = (
            series_of(quantity, case, values, "l2 radius", Claim.LOWER, RADIUS, WRONG).model_copy(
                update={"limits": limits}
            )
            for quantity, values in (
                ("certified_probe_radius", kept),
                ("certified_probe_radius_of_correct", reach.where(answered, torch.nan)),
            )
        )
        accuracy = series_of(
            "smoothed_probe_accuracy",
            case,
            answered.double(),
            flag,
            Claim.ESTIMATE,
            "the smoothed probe being right",
            UNKNOWN,
        )
        abstained = series_of(
            "probe_abstentions",
            case,
            reach.isnan().double(),
            flag,
            Claim.ESTIMATE,
            "the smoothed probe abstaining",
            UNKNOWN,
        )
        records = [certified, of_right, accuracy, abstained]
        numbers = [
            sure(summarise(certified, "mean", "higher", "average_certified_probe_radius"), self.alpha, len(reach)),
            sure(summarise(certified, "median", "higher", "median_certified_probe_radius"), self.alpha, len(reach)),
            sure(
                summarise(of_right, "mean", "higher", "average_certified_probe_radius_of_correct"),
                self.alpha,
                len(reach),
            ),
            summarise(accuracy, "share", "higher"),
            summarise(abstained, "share", "lower"),
        ]
        for radius in self.radii:
            ball = {"ball": str(L2(radius)), **case}
            survival = series_of(
                "certified_probe_accuracy", ball, (kept > radius).double(), flag, Claim.LOWER, ACCURACY, UNKNOWN
            )
            records.append(survival)
            numbers.append(sure(summarise(survival, "share", "higher"), self.alpha, len(reach)))
        return records, numbers

    def _curve(self, probe: Probe, reach: Float[Tensor, "b"], right: Bool[Tensor, "b"]) -> Curve:
        """Return the certified accuracy as a function of the radius; at 0 it is the accuracy."""
        grid = torch.linspace(0, farthest(self.copies, self.sigma, self.alpha_of_look), GRID, dtype=torch.float64)
        kept = reach.where(right, torch.nan).nan_to_num(nan=0.0)
        return Curve(
            quantity="certified_accuracy_by_radius",
            conditions={"noise": f"{self.sigma:g}", "probe": str(probe)},
            x_label="l2 radius",
            y_label="certified accuracy",
            x=tuple(grid.tolist()),
            y=tuple((kept[:, None] > grid).double().mean(0).tolist()),
        )
