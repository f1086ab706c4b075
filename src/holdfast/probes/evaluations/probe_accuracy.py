"""Probe accuracy: how often simple classifiers on frozen embeddings, trained on the reference set, classify other images
right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from holdfast.core.errors import HoldfastError
from holdfast.core.records import Claim, Conditions, Curve, Estimate, Findings
from holdfast.core.run_settings import Observed
from holdfast.core.statistics.intervals import share_interval
from holdfast.core.statistics.summaries import summarise
from holdfast.measure.evaluation import LATER, Evaluation, Sizes
from holdfast.measure.observation import Joint, curve_of, estimate_of, findings_of
from holdfast.measure.population import Population
from holdfast.probes.base import Probe, accuracy_warnings, chance_estimate, class_names
from holdfast.probes.linear import Linear
from holdfast.probes.neighbours import Knn
from holdfast.probes.probed_codes import CLEAN, Answers, margin_series, right_series
from holdfast.transforms.subsets import LongTailed, Subset, labels_of, shot_groups

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
    shots: str = field(default="", metadata=LATER)
    """Classes grouped by their training images: `bank`, or the long tail, as in `long-tail:most=1280,least=5`."""
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
        return Joint(tuple(Answers(probe, self.samples) for probe in self.probes))

    def conclude(self, population: Population, rows: Sequence[int], observed: Observed) -> Findings:
        answers = [self.observation().of(Answers(probe, self.samples), observed) for probe in self.probes]
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
        listed = [estimate for each in by_class if len(each) <= LISTED for estimate in each]
        by_shots = shot_accuracies(labels, ranks, named, shots_of(population, self.shots))
        estimates = (*first, *five, chance_estimate(population, rows), *listed, *by_shots)
        curves = [class_curve(each, where) for each, where in zip(by_class, named, strict=True) if len(each) > 1]
        learned = [population.learned(probe) for probe in self.probes]
        warnings = accuracy_warnings(population, rows, learned, first, "its margins")
        return findings_of(population, rows, (*right, *(among if many else ()), *margins), estimates, warnings, curves)


def class_accuracies(
    population: Population, labels: Tensor, ranks: Float[Tensor, "n"], conditions: Conditions
) -> list[Estimate]:
    """Accuracy on the images of each class."""
    classes = labels.unique()
    return [
        _share("class_accuracy", ranks[labels == label] == 0, {**conditions, "class": name})
        for label, name in zip(classes, class_names(population, classes), strict=True)
    ]


def _share(quantity: str, right: Bool[Tensor, "m"], conditions: Conditions) -> Estimate:
    n, number = len(right), (float(right.double().mean()), *share_interval(int(right.sum()), len(right)))
    unit, how = "fraction of samples", "mid-P"
    return estimate_of(quantity, number, n, how, unit, CLEAN, "higher", conditions, statistic="whole")


def shots_of(population: Population, shots: str) -> dict[str, tuple[int, ...]]:
    """Classes with many, medium and few training images.

    Args:
        shots: ``bank``, the text of a long tail, or empty.

    Raises:
        HoldfastError: ``shots`` is something else, or the bank has too few images.
    """
    if not shots:
        return {}
    bank = population.bank.images
    if shots == "bank":
        return shot_groups(Counter(labels_of(bank)))
    subset = Subset.read(shots)
    if not isinstance(subset, LongTailed):
        raise HoldfastError(
            f"probe-accuracy.shots: got {shots}. Expected bank, or a long tail such as long-tail:most=1280,least=5."
        )
    return subset.tail(bank, population.run.seed).shots()


def shot_accuracies(
    labels: Tensor,
    ranks: Sequence[Float[Tensor, "n"]],
    conditions: Sequence[Conditions],
    groups: Mapping[str, Sequence[int]],
) -> list[Estimate]:
    """Accuracy of each probe on the images of each group of classes that has some."""
    within = {name: torch.isin(labels, torch.tensor(classes)) for name, classes in groups.items() if classes}
    return [
        _share("shot_accuracy", rank.cpu()[rows] == 0, {**where, "shots": name})
        for rank, where in zip(ranks, conditions, strict=True)
        for name, rows in within.items()
        if bool(rows.any())
    ]


def class_curve(classes: Sequence[Estimate], conditions: Conditions) -> Curve:
    """Accuracies of all classes, from the worst to the best."""
    order = torch.tensor([kind.value for kind in classes]).argsort(stable=True).tolist()
    ranked = [classes[index] for index in order]
    places = range(1, len(ranked) + 1)
    return curve_of("class_accuracy", conditions, "classes, the worst first", "accuracy", places, ranked)
