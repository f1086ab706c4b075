"""Impersonation: how close a targeted attack brings an image's embedding to that of another image.

``relative_quantile(i -> j) = d(f(x^i->j), f(x_j)) / d(f(x_i), f(x_j))``, divided by the *clean* distance: 1 means no
progress and 0 a perfect impersonation. Petrov and Kwiatkowska 2022, https://arxiv.org/abs/2210.04076, section 5.1. The
authors' program divides by the distance after the random start. Beside it, without labels: the fraction of attacked
images whose nearest clean image is the target.

With a labelled reference set, the paper's success rate is measured too. It counts pairs of two classes that a probe gets
right, and how often the probe takes one attacked image for the other's class, averaged over both directions. The attack
knows neither labels nor probe, and the ball stays around the clean image. The authors' program centres it again at every
reporting step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, final

import torch
from torch import Tensor

from holdfast.attacks.attacked_codes import SIZES, UNDEFINED, Case, Targeted
from holdfast.attacks.attacked_evaluation import AttackedEvaluation
from holdfast.attacks.presets import aim_of
from holdfast.core.balls import Ball
from holdfast.core.divergences import Cosine, Divergence
from holdfast.core.errors import HoldfastError, OutOfRange
from holdfast.core.pictures import SHOWN
from holdfast.core.points.counting import closer_counts
from holdfast.core.records import Claim, Findings, Picture, Question, Series
from holdfast.core.run_settings import Observed
from holdfast.core.statistics.summaries import series_of, summarise
from holdfast.measure.evaluation import LATER
from holdfast.measure.observation import findings_of, pictures_of, population_warnings, radius_curves
from holdfast.measure.population import Fit, Population
from holdfast.probes.base import FittedProbe, Probe, class_names
from holdfast.probes.linear import Linear

RATE = "rate under the best attack"
UNCOUNTED = "both images are of one class, or the probe gets one of them wrong"


@final
@dataclass(frozen=True)
class Impersonation(AttackedEvaluation):
    """How close targeted attacks bring one image's embedding to that of another image.

    Paper: Petrov and Kwiatkowska 2022, https://arxiv.org/abs/2210.04076, section 5.1.
    """

    samples: int = 1024
    """Largest number of pairs."""
    probe: Probe = Linear()
    """Probe that judges the pairs, if there is a labelled reference set."""
    objective: str = field(default="", metadata=LATER)
    """Distance to the target that attacks minimise, such as `l2`; empty: each of `divergences`."""
    by_class: bool = field(default=False, metadata=LATER)
    """True to pair images of different classes only, which needs labels."""
    sizes = SIZES
    name = "impersonation"
    version = 4
    pictured = 3
    uses_labels = True
    uses_bank = True
    title = "Impersonation"
    meaning = (
        "The relative quantile is the distance to a target image that is left after the attack, as a fraction of the clean "
        "distance: 1 means the attack got nowhere, 0 that it imitates the target perfectly. The impersonation rate is "
        "the fraction of attacked images whose nearest clean image is now the target; a stronger attack may get further."
    )
    headline = ("relative_quantile", "impersonation_rate")
    questions = (
        Question(
            place=20,
            text="Can one image be passed off as another?",
            quantities=("impersonation_rate",),
            meaning="images made the nearest of a chosen other one",
            counts="pairs",
        ),
    )

    def fits(self) -> tuple[Fit[Any], ...]:
        return (*super().fits(), self.probe)

    def __post_init__(self) -> None:
        super().__post_init__()
        if aim_of(self.objective, self.divergences[0])[1]:
            raise OutOfRange("impersonation: objective", self.objective, "a distance such as l2")

    def conclude(self, population: Population, rows: Sequence[int], observed: Observed) -> Findings:
        partners = self._partners(population)[list(rows)]
        anchors, target = population.codes[list(rows)], population.codes[partners]
        kin = population.kin(partners.tolist(), population)  # images of the target's group do not stand in its way
        quantiles, successes, similar = list[Series](), list[Series](), list[Series]()
        for case in self._cases():
            divergence = population.fitted(case.divergence)
            moved = self._after(case, observed)["ahead"].to(anchors.device)
            left = divergence(moved.double(), target.double()) / divergence(anchors.double(), target.double())
            if self.objective and case.divergence == Cosine():
                near = 1 - divergence(moved.double(), target.double())
                of, unit = "largest similarity to the target", "cosine similarity"
                similar.append(series_of("cosine_similarity", case.conditions, near, unit, Claim.LOWER, of, UNDEFINED))
            # 0/0 of identical codes is nan already; x/0 would read as infinitely far from a target it started at.
            left = left.masked_fill(~left.isfinite(), torch.nan)
            rivals = closer_counts(divergence, moved, partners.to(anchors.device), population.codes, kin)
            impersonated = (rivals == 0).double().masked_fill(left.isnan(), torch.nan)
            of, unit = "smallest reachable", "fraction of clean distance"
            quantiles.append(series_of("relative_quantile", case.conditions, left, unit, Claim.UPPER, of, UNDEFINED))
            where = case.conditions
            successes.append(series_of("impersonated", where, impersonated, "yes or no", Claim.LOWER, RATE, UNDEFINED))
        fooled, warned = self._fooled(population, rows, observed)
        estimates = [summarise(series, "median", "higher") for series in quantiles]
        rates = [summarise(series, "median", "lower") for series in similar]
        rates += [summarise(series, "share", "lower", "impersonation_rate") for series in successes]
        rates += [summarise(series, "mean", "lower", "impersonation_success_rate") for series in fooled]
        series, numbers = (*quantiles, *similar, *successes, *fooled), (*estimates, *rates)
        warnings = (*population_warnings(population, self.divergences), *warned)
        return findings_of(population, rows, series, numbers, warnings, radius_curves(estimates))

    def illustrate(
        self, population: Population, rows: Sequence[int], observed: Observed, findings: Findings
    ) -> tuple[Picture, ...]:
        def attack(case: Case, shown: list[int]) -> dict[str, torch.Tensor]:
            targets = self._partners(population)[shown].tolist()
            pixels = self._moved(population, case, shown, targets)
            return {"attacked": pixels, "target": population.pixels(targets)}

        shown = self._extremes(population, rows, findings, "relative_quantile", attack)
        return (*shown, *self._sheet(population, rows, findings))

    def _fooled(
        self, population: Population, rows: Sequence[int], observed: Observed
    ) -> tuple[list[Series], tuple[str, ...]]:
        """Return for each pair the share of its two ways in which the probe is fooled, and what to say of the probe."""
        try:
            probe = self._probe(population)
        except HoldfastError as error:
            return [], (f"How a probe sees the attacks is not known: {error}",)
        if probe is None:
            return [], ()
        partners = self._partners(population)[list(rows)].tolist()
        anchors, other = population.labels[list(rows)], population.labels[partners]
        known = [probe.ranks(population.codes[at], of) == 0 for at, of in ((list(rows), anchors), (partners, other))]
        counted, successes = known[0] & known[1] & (anchors != other), []
        for case in self._cases():
            moved = self._after(case, observed)
            ways = [(moved["ahead"], other), (moved["back"], anchors)]
            fooled = [probe.ranks(codes.to(anchors.device), target) == 0 for codes, target in ways]
            share = ((fooled[0].double() + fooled[1].double()) / 2).masked_fill(~counted, torch.nan)
            where, unit = replace(case, probe=str(self.probe)).conditions, "fraction of both ways"
            successes.append(series_of("impersonation_success", where, share, unit, Claim.LOWER, RATE, UNCOUNTED))
        return successes, ((probe.caution,) if probe.caution else ())

    def _probe(self, population: Population) -> FittedProbe | None:
        """Return the probe, if there are labels to learn it from and to ask it about, and it scores the codes measured."""
        bank = population.bank_images
        if bank is None or bank.labels is None or population.images.labels is None:
            return None
        probe = population.learned(self.probe)
        if probe.encoder is not population.encoder:
            raise HoldfastError(f"{self.probe} has its own encoder; use one that scores embeddings, such as linear")
        return probe

    def _sheet(self, population: Population, rows: Sequence[int], findings: Findings) -> tuple[Picture, ...]:
        """Return attacked images that the probe takes for the class of their target."""
        case = self._shown_case
        fooling = [series for series in findings.series if series.quantity == "impersonation_success"]
        values = next((s.values for s in fooling if case.conditions.items() <= s.conditions.items()), ())
        chosen = [rows[index] for index, value in enumerate(values) if value > 0][:SHOWN]
        if not chosen or len(population.encoder.domain.shape) != 3:
            return ()
        probe, targets = population.learned(self.probe), self._partners(population)[chosen].tolist()
        ways = [(here, there) for pair in zip(chosen, targets, strict=True) for here, there in (pair, pair[::-1])]
        sources, aims = [here for here, _ in ways], [there for _, there in ways]
        moved = self._moved(population, case, sources, aims)
        answers = probe.classes[probe.scores(population.encode(moved)).argmax(1)]
        names = [class_names(population, labels) for labels in (population.labels[sources], answers)]
        fooled = (answers == population.labels[aims]).nonzero()[:, 0].tolist()
        captions = [
            f"{population.images.ids[sources[k]]}: {names[0][k]}, taken for {names[1][k]} by {self.probe} ({case.ball})"
            for k in fooled
        ]
        parts = {"clean": population.pixels(sources), "attacked": moved, "target": population.pixels(aims)}
        chosen_parts = {name: pixels[fooled] for name, pixels in parts.items()}
        return pictures_of(captions, chosen_parts, population.encoder.domain)

    def _attacks(self, ball: Ball, divergence: Divergence) -> Targeted:
        return Targeted(ball, self.attacks, aim_of(self.objective, divergence)[0], self.samples, self.by_class)

    def _partners(self, population: Population) -> Tensor:
        return self._attacks(self.balls[0], self.divergences[0]).paired(population).partners
