"""SynBench scores as findings: intervals, sampling errors and warnings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import nan, sqrt

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.core.records import Conditions, Curve, Estimate, Warned
from holdfast.core.run_settings import Observed
from holdfast.core.statistics.intervals import share_interval
from holdfast.measure.observation import estimate_of, line_of
from holdfast.synthetic.score import Allowed, area, expected_bounds, score

# How far SynBench scores would move if all samples were drawn again, and whether one budget's score is really the best.
#
# A score is a sum over scales of ``f = u (a - a_t)_+ / a`` with ``a`` the mean of ``c`` (1 where a test sample is
# classified rightly) and ``u`` the mean of ``B c``. So one test sample moves it, where ``a > a_t``, in proportion to
#
#     (a - a_t) (B c - b c) / a + b (c - a),      b = u / a
#
# The train set moves the rules. How far shows in the rules of its two halves: half the difference of their ``f`` has,
# to first order, the variance of the ``f`` of the whole. All scales are independent, so their variances add up.

WHOLE = (0.0, 0.0, 1.0)
"""The score as a combination of those of (first half, second half, whole train set)."""
EXTRAPOLATED = (-0.5, -0.5, 2.0)
"""The score extrapolated to unlimited train samples, as its bias is about proportional to their inverse number."""


def score_covariance(
    observed: Observed, best: Allowed, thresholds: Sequence[float], n: int, parts: tuple[float, ...]
) -> Float[Tensor, "t e e"]:
    """Return the covariance over budgets of a combination of scores at each threshold.

    Args:
        parts: the weights of the scores under the rules of each part of the train set, two halves first.
    """
    a, u = observed["right"], observed["bound"]
    means = torch.cat([a, u], 2).flatten(1)
    spread = observed["products"] - means[:, :, None] * means[:, None, :]
    weights = a.new_tensor(parts)[:, None]
    covariances = []
    for threshold, areas in zip(thresholds, area(*best, thresholds).to(a), strict=True):
        above, safe = (a > threshold).to(a), a.clamp_min(threshold)
        slope = weights * torch.cat([above * threshold * u / safe.square(), above * (1 - threshold / safe)], 2)
        tested = slope.flatten(1)[:, :, None] * spread * slope.flatten(1)[:, None, :]
        e = a.shape[2]
        tested = tested.unflatten(2, (-1, e)).sum(2).unflatten(1, (-1, e)).sum(1)
        f = above * u * (1 - threshold / safe)
        gap = (f[:, 0] - f[:, 1]) / 2
        trained = gap[:, :, None] * gap[:, None, :]
        most = (len(a) * areas).expand(e)
        covariances.append((tested / n + trained).sum(0) / (most[:, None] * most))
    return torch.stack(covariances)


def tied(scores: Float[Tensor, "e"], covariance: Float[Tensor, "e e"], z: float) -> list[int]:
    """Return the place of the highest score, then those of scores less than ``z`` standard errors of the difference below.

    Example:
        >>> tied(torch.tensor([0.50, 0.52, 0.40]), torch.eye(3) * 1e-4, z=1.96)
        [1, 0]
    """
    values = [round(value, 9) for value in scores.tolist()]  # rounding errors are no difference
    best = values.index(max(values))
    spread = covariance.diag() + covariance[best, best] - 2 * covariance[best]
    reach = [z * sqrt(max(variance, 0.0)) for variance in spread.tolist()]
    return [best, *(k for k, value in enumerate(values) if k != best and values[best] - value <= reach[k])]


Z = 1.959963984540054
"""Standard errors on each side of a 95% interval."""


@dataclass(frozen=True)
class ScoringInputs:
    """Observed accuracies and their settings."""

    observed: Observed
    best: Allowed
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
        each = score(self.observed["right"], self.bounds, self.best, self.thresholds, self.mode)
        weights = (*parts[:2], *[0.0] * (each.shape[1] - 3), parts[2])
        combined = torch.einsum("tpe,p->te", each, each.new_tensor(weights))
        covariance = score_covariance(self.observed, self.best, self.thresholds, self.n, weights)
        return Scores(combined.clamp_min(0), covariance)

    def ceiling(self) -> Float[Tensor, "t e"]:
        """Return the scores if the accuracy at every scale stood at the upper end of its own interval."""
        right = self.observed["right"][:, -1]
        upper = [[share_interval(round(share * self.n), self.n)[1] for share in row] for row in right.tolist()]
        return score(right.new_tensor(upper), self.bounds[:, -1].clamp_min(1), self.best, self.thresholds)


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
    counted = f"counted: {inputs.features} features over {inputs.n} train samples per scale"
    bias = "what the bias of finite samples is about proportional to"
    return (
        *_means(inputs, extrapolated, "_extrapolated", "with unlimited samples"),
        *_means(inputs, whole, "", "at this number of samples"),
        *_scores(inputs, whole, "", "at this number of samples"),
        *_scores(inputs, extrapolated, "_extrapolated", "with unlimited samples"),
        *_suggestions(inputs, whole, ""),
        *_suggestions(inputs, extrapolated, "_extrapolated"),
        estimate_of("features_per_sample", (inputs.crowding,) * 3, inputs.n, counted, "ratio", bias, "neither"),
    )


def estimates_at(size: int, inputs: ScoringInputs) -> tuple[Estimate, ...]:
    """Return the mean scores of inputs of another height and width in pixels."""
    found = (
        *_means(inputs, inputs.scores(EXTRAPOLATED), "_extrapolated", "with unlimited samples"),
        *_means(inputs, inputs.scores(WHOLE), "", "at this number of samples"),
    )
    return tuple(each.model_copy(update={"conditions": {**each.conditions, "input_size": str(size)}}) for each in found)


def size_curves(by_size: Mapping[int, ScoringInputs]) -> tuple[Curve, ...]:
    """Return each budget's mean extrapolated score over the height and width of the inputs in pixels."""
    sizes = sorted(by_size)
    means = torch.stack([by_size[size].scores(EXTRAPOLATED).value.mean(0) for size in sizes])
    name, best = "mean_synbench_score_by_input_size", [1.0] * len(sizes)
    labels = "height and width of the inputs in pixels", "score with unlimited samples"
    return tuple(
        line_of(name, {"budget": f"{budget:g}"}, *labels, map(float, sizes), means[:, k], best)
        for k, budget in enumerate(by_size[sizes[0]].budgets)
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
    number = (value, max(0.0, value - Z * error), value + Z * error if error else max(value, ceiling))
    method = f"{how}; {inputs.n} samples per set, {inputs.crowding:.2g} features per sample"
    unit, of = "fraction of the reference area", f"separability kept {of}"
    return estimate_of(quantity, number, inputs.n, method, unit, of, "higher", conditions, statistic="whole")


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
        name, number, case = f"suggested_budget{kind}", (value, min(alike), max(alike)), {"threshold": f"{threshold:g}"}
        method = "highest score; the interval spans the budgets whose score is not significantly lower"
        unit, of = "fraction of the distance between classes", "budget for robust linear probing"
        yield estimate_of(name, number, inputs.n, method, unit, of, "neither", case, reason=reason)


CROWDED = 0.1
"""Features per train sample from which the bias of finite samples deserves a warning."""


def synbench_warnings(inputs: ScoringInputs, limit: int | None) -> tuple[str, ...]:
    """Return the sentences a reader must see beside the scores; ``limit`` is the one on encodings, where it cut them."""
    warnings: list[str] = []
    n, d, rank = inputs.n, inputs.features, int(inputs.observed["rank"].max())
    if rank == 0:
        sentence = (
            "Collapsed: all inputs of one class have the same embedding up to rounding, at every scale. "
            "No rule can be fitted, and the scores are 0 by definition."
        )
        warnings.append(Warned(sentence, "collapsed"))
    elif rank == 1:
        warnings.append("The embeddings vary along one direction only, so all budgets share one rule and one score.")
    elif rank < min(d, n - 2):
        warnings.append(
            f"The embeddings vary in {rank} of {d} directions; class differences along the others, which have no "
            "variance to compare them with, are left out."
        )
    if d > n - 2:
        warnings.append(
            f"{d} features for {n} train samples per scale: the covariance is singular and the rules cannot be trusted; "
            "raise synbench.samples, or set it to auto."
        )
    elif inputs.crowding > CROWDED:
        warnings.append(
            f"{d} features for {n} train samples per scale ({inputs.crowding:.2g} per sample): the scores are too low, the "
            "extrapolated ones nearer but outside their intervals, and the suggested budgets unreliable; raise "
            "synbench.samples, or set it to auto."
        )
    if limit is not None:
        error = float(inputs.scores(WHOLE).error.max())
        warnings.append(
            f"The limit of {limit:,} encodings bought {n:,} samples per set: standard errors up to {error:.2g}, "
            f"{inputs.crowding:.2g} features per sample."
        )
    return tuple(warnings)
