"""SynBench scores dressed for the report: intervals, the bias of finite samples, the suggested budget."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import nan

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.core.records import Claim, Conditions, Estimate
from holdfast.core.run_settings import Observed
from holdfast.core.statistics.intervals import share_interval
from holdfast.evaluations.synthetic.uncertainty import EXTRAPOLATED, WHOLE, score_covariance, tied
from holdfast.synthetic.score import score
from holdfast.synthetic.suggestion import expected_bounds

Z = 1.959963984540054
"""Standard errors on each side of a 95% interval."""


@dataclass(frozen=True)
class ScoringInputs:
    """What was observed, and under which settings."""

    observed: Observed
    scales: tuple[float, ...]
    budgets: tuple[float, ...]
    thresholds: tuple[float, ...]
    mode: str
    n: int
    features: int

    @property
    def crowding(self) -> float:
        """Features per train sample, to which the bias of finite samples is about proportional."""
        return self.features / self.n

    @property
    def bounds(self) -> Float[Tensor, "n p e"]:
        """The expected bounds."""
        return expected_bounds(self.observed)

    def scores(self, parts: tuple[float, ...]) -> Scores:
        """Return the combination of the scores under the rules of each part of the train set."""
        each = score(self.observed["right"], self.bounds, self.scales, self.thresholds, self.mode)
        combined = torch.einsum("tpe,p->te", each, each.new_tensor(parts))
        return Scores(
            combined.clamp_min(0), score_covariance(self.observed, self.scales, self.thresholds, self.n, parts)
        )

    def ceiling(self) -> Float[Tensor, "t e"]:
        """Return the scores if the accuracy at every scale stood at the upper end of its own interval."""
        right = self.observed["right"][:, -1]
        upper = [[share_interval(round(share * self.n), self.n)[1] for share in row] for row in right.tolist()]
        return score(right.new_tensor(upper), self.bounds[:, -1].clamp_min(1), self.scales, self.thresholds)


@dataclass(frozen=True)
class Scores:
    """Scores at each threshold and budget, and their covariance over budgets."""

    value: Float[Tensor, "t e"]
    covariance: Float[Tensor, "t e e"]

    @property
    def error(self) -> Float[Tensor, "t e"]:
        """The standard errors."""
        return self.covariance.diagonal(dim1=1, dim2=2).clamp_min(0).sqrt()


def estimates(inputs: ScoringInputs) -> tuple[Estimate, ...]:
    """Return the scores and suggested budgets, as published and extrapolated to unlimited samples, and what biases them."""
    whole, extrapolated = inputs.scores(WHOLE), inputs.scores(EXTRAPOLATED)
    return (
        *_means(inputs, extrapolated, "_extrapolated", "with unlimited samples"),
        *_means(inputs, whole, "", "with so many samples"),
        *_scores(inputs, whole, "", "with so many samples"),
        *_scores(inputs, extrapolated, "_extrapolated", "with unlimited samples"),
        *_suggestions(inputs, whole, ""),
        *_suggestions(inputs, extrapolated, "_extrapolated"),
        Estimate(
            quantity="features_per_sample",
            value=inputs.crowding,
            low=inputs.crowding,
            high=inputs.crowding,
            n=inputs.n,
            method=f"counted: {inputs.features} features over {inputs.n} train samples per scale",
            unit="ratio",
            claim=Claim.ESTIMATE,
            of="what the bias of finite samples is about proportional to",
            better="neither",
        ),
    )


def _scores(inputs: ScoringInputs, scores: Scores, kind: str, of: str) -> Iterator[Estimate]:
    ceiling = inputs.ceiling()
    for e, budget in enumerate(inputs.budgets):
        for t, threshold in enumerate(inputs.thresholds):
            conditions = {"budget": f"{budget:g}", "threshold": f"{threshold:g}"}
            numbers = (float(part[t, e]) for part in (scores.value, scores.error, ceiling))
            yield _score(inputs, f"synbench_score{kind}", conditions, of, *numbers)


def _means(inputs: ScoringInputs, scores: Scores, kind: str, of: str) -> Iterator[Estimate]:
    """Yield each budget's mean over the thresholds: few numbers for a summary."""
    between = f"{min(inputs.thresholds):g} to {max(inputs.thresholds):g}"
    ceiling = inputs.ceiling()
    for e, budget in enumerate(inputs.budgets):
        # The mean of the standard errors bounds that of the mean, however the thresholds' scores depend on each other.
        numbers = (float(part[:, e].mean()) for part in (scores.value, scores.error, ceiling))
        average = f"{of}, on average over thresholds {between}"
        yield _score(inputs, f"mean_synbench_score{kind}", {"budget": f"{budget:g}"}, average, *numbers)


def _score(
    inputs: ScoringInputs, quantity: str, conditions: Conditions, of: str, value: float, error: float, ceiling: float
) -> Estimate:
    how = f"standard error {error:.2g} from the influence of each sample"
    if error == 0:
        how = "no scale was above the threshold; upper end from the mid-P limits of the accuracies"
    return Estimate(
        quantity=quantity,
        conditions=conditions,
        value=value,
        low=max(0.0, value - Z * error),
        high=value + Z * error if error else max(value, ceiling),
        n=inputs.n,
        method=f"{how}; {inputs.n} samples per set, {inputs.crowding:.2g} features per sample",
        unit="share of the reference area",
        claim=Claim.ESTIMATE,
        of=f"separability kept {of}",
        better="higher",
        statistic="whole",
    )


def _suggestions(inputs: ScoringInputs, scores: Scores, kind: str) -> Iterator[Estimate]:
    """Yield for each threshold the budget for robust linear probing with the highest score, and those it ties with."""
    for t, threshold in enumerate(inputs.thresholds):
        best, *others = tied(scores.value[t], scores.covariance[t], Z)
        value, reason = inputs.budgets[best], None
        alike = sorted([value, *(inputs.budgets[k] for k in others)])
        if not bool((scores.value[t] > 0).any()):
            value, alike, reason = nan, [nan], "every budget scores 0, so none is suggested"
        elif len(alike) > 1:
            reason = f"at threshold {threshold:g} the budgets {', '.join(f'{budget:g}' for budget in alike)} are tied"
        conditions: Conditions = {"threshold": f"{threshold:g}"}
        yield Estimate(
            quantity=f"suggested_budget{kind}",
            conditions=conditions,
            value=value,
            low=min(alike),
            high=max(alike),
            n=inputs.n,
            method="highest score; the interval spans the budgets whose score is not significantly lower",
            unit="share of the distance between classes",
            claim=Claim.ESTIMATE,
            of="budget for robust linear probing",
            better="neither",
            reason=reason,
        )
