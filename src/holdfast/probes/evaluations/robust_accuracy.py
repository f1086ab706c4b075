"""Robust accuracy: how often probes are still right when images are attacked.

    robust accuracy = fraction of images that the probe gets right, clean and attacked
    attack success  = P(attacked wrong | clean right)

There are two attackers. The first knows everything and maximises the probe's margin through the encoder. For the
nearest-neighbour probe it uses the logarithm of all votes, which has gradients where the k nearest have none. The second
knows neither labels nor probe and moves the embedding away from the clean one, as label-free evaluations do. Its effect on
a probe shows how much of the label-free threat is a threat to the task.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import final

import torch
from torch import Tensor

from holdfast.attacks.attacked_codes import change
from holdfast.attacks.base import Attack
from holdfast.attacks.presets import NAMED, label
from holdfast.core.balls import Ball, Linf
from holdfast.core.divergences import Divergence, L2Distance
from holdfast.core.pictures import SHOWN
from holdfast.core.records import Claim, Conditions, Curve, Estimate, Findings, Picture, Question, Series
from holdfast.core.run_settings import Observed
from holdfast.core.statistics.summaries import series_of, summarise
from holdfast.measure.evaluation import Evaluation, Sizes
from holdfast.measure.observation import Joint, Observation, findings_of, pictures_of, radius_curve
from holdfast.measure.population import Population
from holdfast.probes.base import Probe, accuracy_warnings, class_names
from holdfast.probes.linear import Linear
from holdfast.probes.neighbours import Knn
from holdfast.probes.probed_codes import (
    Answers,
    AttackedAnswers,
    TransferredAnswers,
    label_free,
    margin_series,
    right_series,
)

ROBUST = "accuracy under the best attack"
WRONG = "the probe gets the clean image wrong"
AT_PROBE, AT_CODE = "the probe", "the code"
"""What an attack may go for."""


@dataclass(frozen=True)
class Threat:
    """One attack on one probe."""

    probe: Probe
    ball: Ball
    attack: Attack
    aim: str
    """Goal of the attack: ``AT_PROBE`` or ``AT_CODE``."""

    @property
    def conditions(self) -> Conditions:
        """How series and estimates name it."""
        return {"ball": str(self.ball), "attack": f"{label(self.attack)} at {self.aim}", "probe": str(self.probe)}


@final
@dataclass(frozen=True)
class RobustAccuracy(Evaluation):
    """Accuracy of probes under attack: through the encoder, and by attacks without labels.

    The accuracy under the worst perturbation is at most the reported one (upper bound).
    """

    balls: tuple[Ball, ...] = (Linf(0.05), Linf(0.1))
    """Perturbation sets."""
    attacks: tuple[Attack, ...] = (NAMED["adaptive"],)
    """Attacks at the probe and at the embedding."""
    probes: tuple[Probe, ...] = (Knn(), Linear())
    """Probes to train on the reference set."""
    divergence: Divergence = L2Distance()
    """Distance that the label-free attack maximises."""
    samples: int = 1000
    """Number of attacked images."""
    sizes = Sizes(
        quick={"samples": 100, "attacks": ["adaptive:restarts=1"]},
        full={
            "samples": 10_000,
            "attacks": ["adaptive:steps=100,restarts=5", "square"],
            "probes": ["knn", "linear", "noise"],
        },
        large={"balls": ["linf:0.05"]},
        heavy={"samples": 30, "attacks": ["adaptive:restarts=1,steps=8"]},
    )
    name = "robust-accuracy"
    version = 2
    partial = True
    pictured = 3
    uses_labels = True
    uses_bank = True
    needs_labels = True
    needs_bank = True
    at_classes = ("attacks",)
    title = "Robust accuracy of probes, with labels"
    meaning = (
        "The fraction of images that a simple classifier on the representation gets right before and after an attack within "
        "the ball. An attack at the probe knows it; one at the embedding knows neither labels nor probe, and shows what the "
        "label-free threat costs a task. Attacks only show what is possible: the true robust accuracy is at most this."
    )
    headline = ("robust_accuracy", "attack_success_rate")
    questions = (
        Question(
            place=100,
            text="What do probes keep?",
            quantities=("robust_accuracy",),
            meaning="images that a simple classifier on it gets right under attack",
        ),
    )

    def observation(self) -> Joint:
        parts: list[Observation] = [Answers(probe, self.samples) for probe in self.probes]
        for ball in self.balls:
            parts += [self._attacked(probe, ball) for probe in self.probes]
            if self._label_free:
                parts.append(self._transferred(ball))
        return Joint(tuple(parts))

    def conclude(self, population: Population, rows: Sequence[int], observed: Observed) -> Findings:
        answers = {probe: self.observation().of(Answers(probe, self.samples), observed) for probe in self.probes}
        clean = {probe: answer["rank"] == 0 for probe, answer in answers.items()}
        plain = [right_series({"probe": str(probe)}, right) for probe, right in clean.items()]
        accuracies = [summarise(series, "share", "higher", "clean_accuracy") for series in plain]
        kept, fallen, margins = [], [], []
        for threat in self._threats():
            attacked = self._after(threat, observed)
            before, after = clean[threat.probe], attacked["rank"] == 0
            margin = torch.minimum(attacked["margin"], answers[threat.probe]["margin"])
            fell = (~after).double().masked_fill(~before, torch.nan)
            kept.append(_series("robust", threat, (before & after).double(), Claim.UPPER))
            fallen.append(_series("attack_succeeds", threat, fell, Claim.LOWER))
            margins.append(margin_series(threat.conditions, margin, "attacked_class_margin", Claim.UPPER))
        robust = [summarise(series, "share", "higher", "robust_accuracy") for series in kept]
        rates = [summarise(series, "share", "lower", "attack_success_rate") for series in fallen]
        learned, vain = [population.learned(probe) for probe in self.probes], "its numbers under attack"
        warnings = accuracy_warnings(population, rows, learned, accuracies, vain)
        series, numbers = (*plain, *kept, *fallen, *margins), (*accuracies, *robust, *rates)
        return findings_of(population, rows, series, numbers, warnings, self._curves(accuracies, robust))

    def illustrate(
        self, population: Population, rows: Sequence[int], observed: Observed, findings: Findings
    ) -> tuple[Picture, ...]:
        """Show images that the attack on the last probe, in the widest ball, made it misclassify."""
        ball, probe = max(self.balls, key=lambda ball: ball.radius), self.probes[-1]
        shown, where = self._attacked(probe, ball), Threat(probe, ball, self.attacks[-1], AT_PROBE).conditions
        fell = next(s.values for s in findings.series if (s.quantity, s.conditions) == ("attack_succeeds", where))
        chosen = [rows[index] for index, value in enumerate(fell) if value == 1][:SHOWN]
        if not chosen or len(population.encoder.domain.shape) != 3:
            return ()
        fitted, domain = population.learned(probe), population.encoder.domain
        clean, moved = population.pixels(chosen), shown.pixels(population, chosen)[-1]
        with torch.no_grad():
            answers = fitted.classes[fitted.scores(fitted.encoder.forward(moved)).argmax(1)]
        names = class_names(population, population.labels[chosen]), class_names(population, answers)
        captions = [
            f"{population.images.ids[row]}: {right}, taken for {wrong} ({', '.join(where.values())})"
            for row, right, wrong in zip(chosen, *names, strict=True)
        ]
        parts = {"clean": clean, "attacked": moved, "change": change(clean, moved, domain, ball.radius)}
        return pictures_of(captions, parts, domain)

    def _threats(self) -> Iterator[Threat]:
        """Yield every attack on every probe, as they are reported."""
        for ball, attack, aim in product(self.balls, self.attacks, (AT_PROBE, AT_CODE)):
            if aim == AT_CODE and attack not in self._label_free:
                continue
            for probe in self.probes:
                yield Threat(probe, ball, attack, aim)

    @property
    def _label_free(self) -> tuple[Attack, ...]:
        """The attacks that need no classes, and so can aim at the code."""
        return label_free(self.attacks)

    def _after(self, threat: Threat, observed: Observed) -> Observed:
        """Return what the probe answers after the attack of ``threat``."""
        if threat.aim == AT_CODE:
            transferred = self._transferred(threat.ball)
            return transferred.of_attack(threat.attack, threat.probe, self.observation().of(transferred, observed))
        attacked = self._attacked(threat.probe, threat.ball)
        return attacked.of_attack(threat.attack, self.observation().of(attacked, observed))

    def _attacked(self, probe: Probe, ball: Ball) -> AttackedAnswers:
        return AttackedAnswers(probe, ball, self.attacks, self.samples)

    def _transferred(self, ball: Ball) -> TransferredAnswers:
        return TransferredAnswers(self.probes, ball, self._label_free, self.divergence, self.samples)

    def _curves(self, clean: Sequence[Estimate], robust: Sequence[Estimate]) -> Iterator[Curve]:
        """Yield accuracy as a function of the radius, from the clean one on, for each norm, attack and probe."""
        start = {str(probe): estimate for probe, estimate in zip(self.probes, clean, strict=True)}
        groups: dict[tuple[str, str, str], list[tuple[float, Estimate]]] = {}
        for threat, estimate in zip(self._threats(), robust, strict=True):
            key = (threat.ball.name, threat.conditions["attack"], str(threat.probe))
            groups.setdefault(key, [(0.0, start[str(threat.probe)])]).append((threat.ball.radius, estimate))
        for (norm, attack, probe), points in groups.items():
            curve = radius_curve("robust_accuracy", {"ball": norm, "attack": attack, "probe": probe}, points)
            yield curve.model_copy(update={"y_label": "accuracy"})


def _series(quantity: str, threat: Threat, values: Tensor, claim: Claim) -> Series:
    return series_of(quantity, threat.conditions, values, "yes or no", claim, ROBUST, WRONG)
