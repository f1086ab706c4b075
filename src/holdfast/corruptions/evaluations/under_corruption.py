"""Accuracy that probes lose when all images are corrupted alike: test I of Zhong et al. 2022.

    Delta = (Acc(original) - Acc(corrupted)) / Acc(original)          https://arxiv.org/abs/2206.05259

The encoder stays. Reference set and measured images are corrupted and encoded again, and the probe is trained again. So
Delta asks whether the encoder still separates the classes, not whether corrupted images keep their embeddings. The
second, much harder question uses the probe trained on the clean reference set and is reported under its own names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.core.errors import HoldfastError, OutOfRange
from holdfast.core.records import Claim, Conditions, Estimate, Findings, Series
from holdfast.core.run_settings import Observed
from holdfast.core.statistics.groups import numbered
from holdfast.core.statistics.summaries import series_of, summarise
from holdfast.core.statistics.tails import design_effect, tails, worst_group
from holdfast.corruptions.corrupted_codes import (
    UNDEFINED,
    CorruptedAnswers,
    deviation,
    drops,
    rank_correlation,
    unfit,
    without_labels,
)
from holdfast.measure.evaluation import Evaluation, Sizes
from holdfast.measure.observation import Joint, findings_of
from holdfast.measure.population import Population
from holdfast.probes.base import Probe, accuracy_warnings, chance_estimate, class_names
from holdfast.probes.linear import Linear
from holdfast.probes.neighbours import Knn
from holdfast.transforms.base import Transform
from holdfast.transforms.everyday import Gamma
from holdfast.transforms.shuffles import GlobalShuffle, LocalShuffle

SIX: tuple[Transform, ...] = (
    Gamma(0.2),
    Gamma(5.0),
    GlobalShuffle(4),
    GlobalShuffle(patch=4),
    LocalShuffle(4),
    LocalShuffle(patch=4),
)
"""The settings of the paper: its larger grids have a quarter as many patches per side as the image has pixels."""
ALL = "all"
CLEAN = "accuracy of the probe on clean images"
WRONG = "no clean image is classified right, so there is nothing to lose"
TAUGHT = {
    "taught": ("corrupted_accuracy", "relative_accuracy_drop"),
    "clean": ("clean_bank_accuracy", "clean_bank_drop"),
}
"""How accuracies and drops are called: taught by the corrupted bank, and by the clean one."""
LOW_ENDS = tuple(f"mean_{accuracy}" for accuracy, _ in TAUGHT.values())
"""Means over corruptions that are reported with their low end over images."""


@final
@dataclass(frozen=True)
class CorruptionTest(Evaluation):
    """Accuracy that probes lose when reference set and measured images are corrupted alike.

    Paper: Zhong et al. 2022, https://arxiv.org/abs/2206.05259, test I.
    """

    probes: tuple[Probe, ...] = (Knn(), Linear())
    """Probes to train."""
    corruptions: tuple[Transform, ...] = SIX
    """Transforms applied to both image sets."""
    permutations: int = 3
    """Number of seeds of each shuffle, from its own `seed` on."""
    samples: int = 10_000
    """Number of images."""
    reference: int = 2000
    """Number of images whose pairs give the scale of quantiles."""
    sizes = Sizes(
        quick={"samples": 1000},
        full={"samples": 50_000, "permutations": 8, "reference": 10_000},
        large={"samples": 200, "permutations": 1},
        heavy={"samples": 60},
    )
    name = "corruption-test"
    version = 2
    changes = "corruptions"
    partial = True
    uses_labels = True
    uses_bank = True
    needs_labels = True
    needs_bank = True
    title = "Corruption test, with labels"
    meaning = (
        "The relative drop says which fraction of a probe's accuracy is lost when the bank and the measured images are "
        "corrupted in the same way and the probe is taught again. Encoders that know little lose little: compare the "
        "accuracies, and those of raw pixels and a random encoder, before any drop."
    )
    headline = ("mean_relative_accuracy_drop", "mean_corrupted_accuracy", "clean_accuracy")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.permutations < 1:
            raise OutOfRange(f"{self.name}.permutations", self.permutations, "at least 1")

    def observation(self) -> Joint:
        return Joint((self._clean(), *map(self._corrupted, self.corruptions)))

    def conclude(self, population: Population, rows: Sequence[int], observed: Observed) -> Findings:
        fit, warnings = self._fitting(population)
        joint, plain, numbers = self.observation(), self._clean(), Numbers()
        by_corruption = {corruption: joint.of(self._corrupted(corruption), observed) for corruption in fit}
        for probe in self.probes:
            right = plain.of_probe(probe, joint.of(plain, observed))["clean"][:, 0].double()
            answers = {
                corruption: self._corrupted(corruption).of_probe(probe, values)
                for corruption, values in by_corruption.items()
            }
            numbers.probe(probe, right, answers)
        numbers.low_ends(population, rows)
        numbers.retrieval(population, by_corruption, self.reference)
        numbers.correlations([str(probe) for probe in self.probes], [str(corruption) for corruption in fit])
        learned = [population.learned(probe) for probe in self.probes]
        clean = [estimate for estimate in numbers.estimates if estimate.quantity == "clean_accuracy"]
        warnings += accuracy_warnings(population, rows, learned, clean, "its drops")
        estimates = (*numbers.estimates, chance_estimate(population, rows))
        return findings_of(population, rows, numbers.series, estimates, warnings)

    def _clean(self) -> CorruptedAnswers:
        return CorruptedAnswers(self.probes, (), self.samples)

    def _corrupted(self, corruption: Transform) -> CorruptedAnswers:
        return CorruptedAnswers(self.probes, self._variants(corruption), self.samples, True)

    def _variants(self, corruption: Transform) -> tuple[Transform, ...]:
        """Return ``corruption``, once for each permutation if it has any."""
        if "seed" not in {field.name for field in fields(corruption)}:
            return (corruption,)
        first = vars(corruption)["seed"]
        kind: Callable[..., Transform] = type(corruption)
        return tuple(kind(**{**vars(corruption), "seed": first + step}) for step in range(self.permutations))

    def _fitting(self, population: Population) -> tuple[list[Transform], list[str]]:
        """Return the corruptions that can change these images, and what to say of default ones that cannot.

        Raises:
            HoldfastError: one that was asked for cannot, or none can.
        """
        fit, warnings = list[Transform](), list[str]()
        for corruption in self.corruptions:
            why = unfit(population.encoder, corruption)
            if why and corruption not in SIX:
                raise HoldfastError(why)
            if why:
                warnings.append(f"{corruption} is left out: {why}.")
            else:
                fit.append(corruption)
        if not fit:
            raise HoldfastError(f"no corruption can change these images: {' '.join(warnings)}")
        return fit, warnings


ByCorruption = dict[Transform, Observed]
"""What was observed under each corruption."""


@dataclass
class Numbers:
    """Series and estimates as they come."""

    series: list[Series] = field(default_factory=list)
    estimates: list[Estimate] = field(default_factory=list)

    def probe(self, probe: Probe, clean: Float[Tensor, "n"], answers: ByCorruption) -> None:
        """Add what a probe knows, clean and corrupted: first over all corruptions, then under each."""
        for kind, (accuracy, drop) in TAUGHT.items():
            # Permutations of one corruption are averaged before corruptions are.
            right = {str(corruption): values[kind].double().mean(1) for corruption, values in answers.items()}
            lost = {name: drops(clean, values) for name, values in right.items()}
            for table, quantity in ((lost, drop), (right, accuracy)):
                mean = torch.stack([*table.values()]).mean(0)
                self._add(f"mean_{quantity}", {"probe": str(probe), "corruption": ALL}, mean)
                for name, values in table.items():
                    self._add(quantity, {"probe": str(probe), "corruption": name}, values)
        for corruption, answer in answers.items():
            if (each := answer["taught"].double()).shape[1] > 1:
                lost_each = [float(drops(clean, column).mean()) for column in each.unbind(1)]
                self.estimates.append(deviation(lost_each, {"probe": str(probe), "corruption": str(corruption)}))
        case, unit = {"probe": str(probe)}, "yes or no"
        self.series.append(series_of("clean_right", case, clean, unit, Claim.ESTIMATE, CLEAN, UNDEFINED))
        self.estimates.append(summarise(self.series[-1], "share", "higher", "clean_accuracy"))

    def low_ends(self, population: Population, rows: Sequence[int]) -> None:
        """Add what mean accuracies hide: images right under few corruptions, the lowest, and the worst class."""
        images = population.images
        groups = () if images.groups is None else tuple(images.groups[row] for row in rows)
        names = class_names(population, population.labels[list(rows)])
        for series in [each for each in self.series if each.quantity in LOW_ENDS]:
            for scored, estimate in tails(series, groups):
                self.series += [] if scored is None else [scored]
                self.estimates.append(estimate)
            values = np.array(series.values)
            effect = design_effect(values, values, numbered(np.array(groups))) if groups else 1.0
            worst = worst_group(series, names, f"{series.quantity}_worst_class", effect=effect)
            self.estimates += [] if worst is None else [worst]

    def retrieval(self, population: Population, by_corruption: ByCorruption, reference: int) -> None:
        """Add what corruptions do without any label."""
        references = population.choose(reference)
        pairs, groups = population.codes[references], population.groups_of(references)
        for corruption, values in by_corruption.items():
            precise = {name: values[name].double() for name in ("kept", "change")}
            series, estimates = without_labels(str(corruption), precise, pairs, groups)
            self.series += series
            self.estimates += estimates

    def correlations(self, probes: Sequence[str], corruptions: Sequence[str]) -> None:
        """Add whether corruptions that cost accuracy are those that retrieval and displacement, without labels, call bad."""
        for probe in probes:
            for drop, label_free, sign in (
                ("relative_accuracy_drop", "nearest_neighbour_accuracy", -1),
                ("relative_accuracy_drop", "universal_quantile", 1),
                ("clean_bank_drop", "nearest_neighbour_accuracy", -1),
                ("clean_bank_drop", "universal_quantile", 1),
            ):
                lost = [self._value(drop, probe=probe, corruption=corruption) for corruption in corruptions]
                harm = [sign * self._value(label_free, corruption=corruption) for corruption in corruptions]
                case = {"probe": probe, "of": drop, "with": label_free}
                self.estimates += rank_correlation(lost, harm, case)

    def _value(self, quantity: str, **conditions: str) -> float:
        return next(
            estimate.value
            for estimate in self.estimates
            if estimate.quantity == quantity and conditions.items() <= estimate.conditions.items()
        )

    def _add(self, quantity: str, conditions: Conditions, values: Float[Tensor, "n"]) -> None:
        dropped = quantity.endswith("drop")
        unit = "fraction of clean accuracy" if dropped else "fraction of draws"
        of = "relative drop of accuracy" if dropped else "accuracy on corrupted images"
        series = series_of(quantity, conditions, values, unit, Claim.ESTIMATE, of, WRONG)
        self.series.append(series)
        self.estimates.append(summarise(series, "mean", "lower" if dropped else "higher"))
