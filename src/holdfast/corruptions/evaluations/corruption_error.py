"""Error of probes under the common corruptions, in five severities: the error of ImageNet-C.

    CE_c = sum over severities s of E_{c,s} / sum over s of E^baseline_{c,s},    mCE = mean over corruptions of CE_c

Hendrycks and Dietterich 2019, https://arxiv.org/abs/1903.12261. An evaluation sees one encoder, so it keeps the errors
``E``; reports form the published ratios from the results of several encoders (``holdfast.report.comparison.comparable``).
Departure: the classifier is a probe trained on the clean reference set; the authors corrupt the input of whole
classifiers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from holdfast.core.records import Claim, Conditions, Curve, Estimate, Findings, Series, grouped
from holdfast.core.run_settings import Observed
from holdfast.core.statistics.summaries import series_of, summarise
from holdfast.corruptions.corrupted_codes import (
    SEVERITIES,
    UNDEFINED,
    CorruptedAnswers,
    check_kinds,
    in_severities,
    rank_correlation,
    without_labels,
)
from holdfast.measure.evaluation import Evaluation, Sizes, without
from holdfast.measure.observation import Joint, curve_of, findings_of
from holdfast.measure.population import Population
from holdfast.probes.base import Probe, accuracy_warnings, chance_estimate
from holdfast.probes.linear import Linear
from holdfast.transforms.severity import FIFTEEN

ALL = "all"
ERROR = "error of the probe on corrupted images"


@final
@dataclass(frozen=True)
class CorruptionError(Evaluation):
    """Error of probes under common corruptions; the probes learn from clean images.

    Paper: Hendrycks and Dietterich 2019, https://arxiv.org/abs/1903.12261. Departure: the classifier is a probe fitted
    on the reference set, instead of a whole network.
    """

    probes: tuple[Probe, ...] = (Linear(),)
    """Probes to train."""
    kinds: tuple[str, ...] = FIFTEEN
    """Corruptions of ImageNet-C; its four extra ones can be named too."""
    severities: tuple[int, ...] = SEVERITIES
    """Severities, 1 (mild) to 5."""
    samples: int = 1000
    """Number of images."""
    reference: int = 2000
    """Number of images whose pairs give the scale of quantiles."""
    sizes = Sizes(quick={"samples": 100}, full={"samples": 10_000}, large={"samples": 20}, heavy={"samples": 12})
    name = "corruption-error"
    version = 1
    changes = "kinds"
    partial = True
    uses_labels = True
    uses_bank = True
    needs_labels = True
    needs_bank = True
    title = "Errors under common corruptions, with labels"
    meaning = (
        "The mean corruption error is how often a probe taught by clean images errs on images under common corruptions, "
        "over all kinds and severities alike. It contains the errors on clean images: read it beside those."
    )
    headline = ("mean_corruption_error", "clean_error")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_kinds(self.name, self.kinds)

    def observation(self) -> Joint:
        return Joint((self._clean(), *map(self._corrupted, self.kinds)))

    def conclude(self, population: Population, rows: Sequence[int], observed: Observed) -> Findings:
        series, estimates = list[Series](), list[Estimate]()
        references = population.choose(self.reference)
        pairs, groups = population.codes[references], population.groups_of(references)
        lost, label_free = list[float](), list[Estimate]()
        by_kind = {name: self.observation().of(self._corrupted(name), observed) for name in self.kinds}
        for name, values in by_kind.items():
            some, numbers = without_labels(name, values, pairs, groups)
            series += some
            label_free += numbers
            lost += (-values["kept"].nanmean(0)).tolist()
        clean, plain = list[Estimate](), self._clean()
        for probe in self.probes:
            answers = {name: self._corrupted(name).of_probe(probe, values) for name, values in by_kind.items()}
            errors = {name: 1 - answer["clean"].double() for name, answer in answers.items()}
            right = plain.of_probe(probe, self.observation().of(plain, observed))["clean"][:, 0]
            case, of = {"probe": str(probe)}, "error of the probe on clean images"
            original = series_of("clean_wrong", case, 1 - right, "yes or no", Claim.ESTIMATE, of, UNDEFINED)
            clean.append(summarise(original, "share", "lower", "clean_error"))
            records = list(self._errors(str(probe), errors, without(self, population.encoder)))
            series += [*records, original]
            estimates += [
                summarise(each, "mean", "lower", "mean_corruption_error" if whole(each) else "corruption_error")
                for each in records
            ]
            estimates.append(clean[-1])
            each = torch.cat([*errors.values()], dim=1).mean(0).tolist()
            case |= {"of": "corruption_error", "with": "nearest_neighbour_accuracy"}
            estimates += rank_correlation(each, lost, case)
        accuracies = [estimate.model_copy(update={"value": 1 - estimate.value}) for estimate in clean]
        learned = [population.learned(probe) for probe in self.probes]
        warnings = accuracy_warnings(population, rows, learned, accuracies, "its errors")
        every = (*estimates, *label_free, chance_estimate(population, rows))
        return findings_of(population, rows, series, every, warnings, severity_curves(estimates))

    def _clean(self) -> CorruptedAnswers:
        return CorruptedAnswers(self.probes, (), self.samples)

    def _corrupted(self, name: str) -> CorruptedAnswers:
        return CorruptedAnswers(self.probes, in_severities(name, self.severities), self.samples)

    def _errors(self, probe: str, errors: dict[str, Tensor], over: Conditions) -> Iterator[Series]:
        """Yield each image's share of errors over everything, under each corruption, and under each of its severities."""

        def wrong_series(values: Tensor, **case: str) -> Series:
            conditions, unit = {"probe": probe, **case}, "fraction of draws"
            return series_of("corrupted_wrong", conditions, values, unit, Claim.ESTIMATE, ERROR, UNDEFINED)

        yield wrong_series(torch.stack([error.mean(1) for error in errors.values()]).mean(0), corruption=ALL, **over)
        for name, wrong in errors.items():
            yield wrong_series(wrong.mean(1), corruption=name)
        for name, wrong in errors.items():
            for severity, values in zip(self.severities, wrong.unbind(1), strict=True):
                yield wrong_series(values, corruption=name, severity=str(severity))


def whole(series: Series) -> bool:
    """Return whether ``series`` is about all corruptions."""
    return series.conditions["corruption"] == ALL


def severity_curves(estimates: Sequence[Estimate]) -> Iterator[Curve]:
    """Yield the error under each corruption over its severities."""
    graded = [(each, each.conditions) for each in estimates if "severity" in each.conditions]
    lines = grouped(((case["probe"], case["corruption"]), each) for each, case in graded)
    for (probe, corruption), points in lines.items():
        case, severities = {"probe": probe, "corruption": corruption}, [float(p.conditions["severity"]) for p in points]
        yield curve_of("corruption_error", case, "severity", "error", severities, points)
