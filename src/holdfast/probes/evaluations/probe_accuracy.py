"""Probe accuracy: how well simple classifiers on frozen codes, taught by the bank, know the classes of other images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.core.records import Claim, Conditions, Curve, Estimate, Findings
from holdfast.core.run_settings import Observed
from holdfast.core.statistics.intervals import share_interval
from holdfast.core.statistics.summaries import summarise
from holdfast.measure.evaluation import Evaluation, Sizes
from holdfast.measure.observation import Joint
from holdfast.measure.population import Population
from holdfast.probes.base import Probe, accuracy_warnings, chance_estimate, class_names
from holdfast.probes.linear import Linear
from holdfast.probes.neighbours import Knn
from holdfast.probes.probed_codes import CLEAN, Answers, margin_series, right_series

TOP = 5
LISTED = 20
"""Largest number of classes with a line of their own; the curve shows all."""


@final
@dataclass(frozen=True)
class ProbeAccuracy(Evaluation):
    """Accuracy of simple classifiers on frozen embeddings, fitted on the reference set."""

    probes: tuple[Probe, ...] = (Knn(), Linear())
    """Probes to train on the reference set."""
    samples: int = 50_000
    """Largest number of classified images."""
    sizes = Sizes(full={"probes": ["knn", "knn:k=20", "linear", "noise", "fine-tune"]})
    name = "probe-accuracy"
    version = 1
    partial = True
    robustness = False
    uses_labels = True
    uses_bank = True
    needs_labels = True
    needs_bank = True
    title = "Probe accuracy, with labels"
    meaning = (
        "A probe is a simple classifier on the frozen representation, taught by the labelled images of the bank. Its "
        "accuracy on other images says how much of their classes the representation holds in a simple form; compare it "
        "with that of raw pixels and of a random encoder. It says nothing about robustness."
    )
    headline = ("top1_accuracy",)

    def observation(self) -> Joint:
        return Joint(tuple(map(self._answers, self.probes)))

    def conclude(self, population: Population, rows: Sequence[int], observed: Observed) -> Findings:
        answers = [self.observation().of(self._answers(probe), observed) for probe in self.probes]
        ranks = [answer["rank"] for answer in answers]
        named: list[Conditions] = [{"probe": str(probe)} for probe in self.probes]
        labels = population.labels[list(rows)].cpu()
        right = [right_series(where, rank == 0) for where, rank in zip(named, ranks, strict=True)]
        among = [right_series(where, rank < TOP, "among_five") for where, rank in zip(named, ranks, strict=True)]
        margins = [
            margin_series(where, answer["margin"], "class_margin", Claim.ESTIMATE)
            for where, answer in zip(named, answers, strict=True)
        ]
        first = [summarise(series, "share", "higher", "top1_accuracy") for series in right]
        many = len(population.learned(self.probes[0]).classes) > TOP  # among five of five, all are
        five = [summarise(series, "share", "higher", "top5_accuracy") for series in among if many]
        by_class = [class_accuracies(population, labels, rank.cpu(), w) for rank, w in zip(ranks, named, strict=True)]
        return Findings(
            ids=tuple(population.images.ids[row] for row in rows),
            series=(*right, *(among if many else ()), *margins),
            estimates=(
                *first,
                *five,
                chance_estimate(population, rows),
                *(estimate for each in by_class if len(each) <= LISTED for estimate in each),
            ),
            curves=tuple(
                class_curve(each, where) for each, where in zip(by_class, named, strict=True) if len(each) > 1
            ),
            warnings=accuracy_warnings(population, rows, [*map(population.learned, self.probes)], first, "its margins"),
        )

    def _answers(self, probe: Probe) -> Answers:
        return Answers(probe, self.samples)


def class_accuracies(
    population: Population, labels: Tensor, ranks: Float[Tensor, "n"], conditions: Conditions
) -> list[Estimate]:
    """Accuracy on the images of each class.

    Args:
        population: Images of the run with their clean embeddings.
        labels: Label of each image, shape (n,).
        ranks: Rank of the correct class, shape (n,); 0 is right.
        conditions: Conditions of the numbers.
    """
    classes, estimates = labels.unique(), []
    for label, name in zip(classes, class_names(population, classes), strict=True):
        right = ranks[labels == label] == 0
        low, high = share_interval(int(right.sum()), len(right))
        estimates.append(
            Estimate(
                quantity="class_accuracy",
                conditions={**conditions, "class": name},
                value=float(right.double().mean()),
                low=low,
                high=high,
                n=len(right),
                method="mid-P",
                unit="fraction of samples",
                claim=Claim.ESTIMATE,
                of=CLEAN,
                better="higher",
                statistic="whole",
            )
        )
    return estimates


def class_curve(classes: Sequence[Estimate], conditions: Conditions) -> Curve:
    """Accuracies of all classes, from the worst to the best.

    Args:
        classes: Accuracy of each class.
        conditions: Conditions of the curve.
    """
    order = torch.tensor([kind.value for kind in classes]).argsort(stable=True).tolist()
    ranked = [classes[index] for index in order]
    return Curve(
        quantity="class_accuracy",
        conditions=conditions,
        x_label="classes, the worst first",
        y_label="accuracy",
        x=tuple(range(1, len(ranked) + 1)),
        y=tuple(estimate.value for estimate in ranked),
        low=tuple(estimate.low for estimate in ranked),
        high=tuple(estimate.high for estimate in ranked),
    )
