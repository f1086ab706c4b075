"""SynBench: how much of the separability of a known Gaussian mixture an encoder keeps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.core.errors import HoldfastError, did_you_mean
from holdfast.core.records import Curve, Findings, Question
from holdfast.core.run_settings import Observed
from holdfast.measure.evaluation import Evaluation, Sizes
from holdfast.measure.population import Population
from holdfast.synthetic.accuracies import FEWEST, RuleAccuracies, features
from holdfast.synthetic.mixture import DIRECTIONS, check_budgets
from holdfast.synthetic.score import (
    BUDGETS,
    ENCODINGS,
    MODES,
    SAMPLES,
    SCALES,
    THRESHOLDS,
    expected_above,
    expected_bound,
    reference,
)
from holdfast.synthetic.synbench_findings import ScoringInputs, estimates, synbench_warnings

POINTS = 101
TELLING = 0.55
"""Accuracies below which the bound, of the few inputs that are right by luck, is mostly noise."""


def curves(
    observed: Observed, scales: Sequence[float], budgets: Sequence[float], threshold: float
) -> tuple[Curve, ...]:
    """Return what each budget's rules reach, beside what the mixture itself allows.

    That is the expected bound above each accuracy from ``threshold`` on, where the share of the area under the reference
    is the score; the accuracy at each scale; and the bound at each accuracy.
    """
    accuracy = observed["right"][:, -1]
    bound = observed["bound"][:, -1] / accuracy.clamp_min(1e-9)
    parts = [_of_budget(accuracy[:, k], bound[:, k], scales, budget, threshold) for k, budget in enumerate(budgets)]
    return tuple(curve for kind in zip(*parts, strict=True) for curve in kind if curve.x)


def _of_budget(
    accuracy: Float[Tensor, "n"], bound: Float[Tensor, "n"], scales: Sequence[float], budget: float, threshold: float
) -> Iterator[Curve]:
    best, most = reference(scales)
    conditions = {"budget": f"{budget:g}"}
    demanded = torch.linspace(threshold, 1, POINTS, dtype=torch.float64)
    yield Curve(
        quantity="expected_bound",
        conditions=conditions,
        x_label="accuracy demanded",
        y_label="expected bound",
        x=_numbers(demanded),
        y=_numbers(expected_above(accuracy, bound, demanded)),
        reference=_numbers(expected_above(best, most, demanded)),
        shaded=True,
    )
    yield Curve(
        quantity="accuracy",
        conditions=conditions,
        x_label="scale",
        y_label="accuracy",
        x=tuple(scales),
        y=_numbers(accuracy),
        reference=_numbers(best),
    )
    order = accuracy.argsort()
    order = order[accuracy[order] > TELLING]
    yield Curve(
        quantity="bound",
        conditions=conditions,
        x_label="accuracy",
        y_label="bound where right",
        x=_numbers(accuracy[order]),
        y=_numbers(bound[order]),
        reference=_numbers(expected_bound(accuracy[order])),
    )


def _numbers(values: Float[Tensor, "p"]) -> tuple[float, ...]:
    return tuple(values.tolist())


# SynBench: how much of the separability of a known Gaussian mixture an encoder keeps, with no data at all.
#
# Ko, Chen, Mohapatra, Das and Daniel 2022, https://arxiv.org/abs/2210.02989. The numbers are defined in ``score``,
# the rules they rest on in ``bayes``. Departures: exact areas (``mode`` gives the published sum), an exact solver,
# the expected bound averaged over all correct samples (the authors' program averages the means of batches of 256,
# which moves a score by less than 0.0001), and every score with its interval and with the bias of finite samples
# estimated.


@final
@dataclass(frozen=True)
class SynBench(Evaluation):
    """How much of the separability of synthetic Gaussian classes the representation keeps; looks at no image."""

    scales: tuple[float, ...] = SCALES
    thresholds: tuple[float, ...] = THRESHOLDS
    budgets: tuple[float, ...] = BUDGETS
    samples: int | str = SAMPLES
    encodings: int = ENCODINGS
    direction: str = "ones"
    mode: str = "exact"
    sizes = Sizes(
        quick={"scales": [4 * k / 10 for k in range(1, 13)], "samples": 1024},
        full={"samples": "auto"},
        large={"samples": 256},
        heavy={"samples": 64},
    )
    name = "synbench"
    version = 3
    title = "SynBench: synthetic classes"
    meaning = (
        "Two Gaussian classes are fed to the encoder, which then needs no images; the score compares the accuracy and the "
        "margin of the best robust linear rule on its codes with what the classes themselves allow: 1 keeps all, 0 nothing. "
        "It depends strongly on the direction in which the classes differ and on the grid of scales, which the settings "
        "record, and it does not see robustness to attacks."
    )
    headline = ("mean_synbench_score_extrapolated", "mean_synbench_score")
    words = (("synbench", "SynBench"),)
    questions = (
        Question(
            place=120,
            text="What does synthetic data say?",
            quantities=headline,  # where there are both, the former
            meaning="share kept of what two classes of noise allow",
            select="first",
        ),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.scales) < 2 or min(self.scales) <= 0:
            raise HoldfastError(f"synbench needs two scales or more, all positive, got {self.scales}")
        for threshold in self.thresholds:
            if not 0.5 < threshold < 1:
                raise HoldfastError(f"synbench thresholds are accuracies between 0.5 and 1, got {threshold:g}")
        check_budgets(self.budgets)
        for value, known in ((self.direction, DIRECTIONS), (self.mode, MODES)):
            if value not in known:
                raise HoldfastError(f"synbench does not know {value!r}; {did_you_mean(value, list(known))}")
        if self.samples != "auto" and not (isinstance(self.samples, int) and self.samples >= FEWEST):
            raise HoldfastError(f"synbench takes samples of {FEWEST} or more per set, or auto, got {self.samples!r}")
        fewest = 2 * FEWEST * len(self.scales)
        if self.encodings < fewest:
            raise HoldfastError(
                f"{len(self.scales)} scales need at least {fewest} encodings, got {self.encodings}; "
                "allow more, or give fewer scales"
            )

    def observation(self) -> RuleAccuracies:
        return RuleAccuracies(self.scales, self.budgets, self.samples, self.encodings, self.direction)

    def conclude(self, population: Population, rows: Sequence[int], observed: Observed) -> Findings:
        observed = {name: values.double().cpu() for name, values in observed.items()}
        probe, d = self.observation(), features(population)
        inputs = ScoringInputs(observed, self.scales, self.budgets, self.thresholds, self.mode, probe.drawn(d), d)
        return Findings(
            ids=(),  # no number belongs to one image
            estimates=estimates(inputs),
            curves=curves(observed, self.scales, self.budgets, min(self.thresholds)),
            warnings=synbench_warnings(inputs, self.encodings if inputs.n < probe.wanted(d) else None),
        )
