"""What a mean hides: samples that keep at least a fraction, the mean of the lowest samples, and the worst group.

For fractions ``x_1 ... x_n``, such as the fraction of its neighbours that each query keeps:

    at_80      |{i : x_i >= 0.8}| / n                   Robustness-delta@K (Wang et al., https://arxiv.org/abs/2507.00379)
    worst_10   max over q of q - mean((q - x)+) / 0.1   mean of the lowest 10% (Rockafellar and Uryasev 2000)

The maximum lies at the 10% quantile ``q`` of the sample.

The interval of ``worst_10`` is that of Gaffke's bounds for means: each end is taken over the samples and one more at the
limit on that side, under random weights. Each weighting has its own quantile. ``benchmarks.statistics.coverage_values``
simulates it. Samples that depend on each other count for fewer, by their design effect (Kish 1965).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil, isnan, nan
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float

from holdfast.core.files import hashed
from holdfast.core.records import Estimate, Series
from holdfast.core.statistics.groups import GROUPED, Groups, group_mean_interval, numbered
from holdfast.core.statistics.intervals import Values, bounded_interval, draws_for, random_weights
from holdfast.core.statistics.summaries import series_of, summarise

AT_LEAST = (0.5, 0.8, 1.0)
LOWEST = (0.01, 0.1)
SMALLEST = 5
"""Least number of samples of a group that is compared with others."""
SLACK = 1e-9
"""Rounding of fractions such as 4/5, which count as at least 0.8."""


@dataclass(frozen=True)
class Tail:
    """A number about the low end of fractions, as the mean of a score of each fraction."""

    name: str
    """End of the name of the number, as in ``at_80``."""
    of: str
    """What the number is, after the name of the values."""
    threshold: float
    """Least fraction that counts, or the quantile up to which samples are the lowest."""
    share: float | None = None
    """Fraction of samples that are the lowest; None counts samples at or above the threshold."""

    def score(self, fractions: Float[np.ndarray, "*n"]) -> Float[np.ndarray, "*n"]:
        """Contribution of each fraction, whose mean is the number.

        Args:
            fractions: Fractions in [0, 1]; nan stays nan.

        Example:
            >>> fractions = np.array([0.0, 0.5, 1.0, 1.0])
            >>> [float(tail.score(fractions).mean()) for tail in tails_of(fractions, (0.5,), (0.5,))]
            [0.75, 0.25]
        """
        if self.share is None:
            counted = (fractions >= self.threshold - SLACK).astype(np.float64)
            return np.where(np.isnan(fractions), nan, counted)
        return np.asarray(self.threshold - np.maximum(self.threshold - fractions, 0) / self.share)


def tails_of(
    fractions: Values, at_least: Sequence[float] = AT_LEAST, lowest: Sequence[float] = LOWEST
) -> tuple[Tail, ...]:
    """Numbers about the low end of fractions.

    Args:
        at_least: Fractions that a sample must reach to count.
        lowest: Fractions of the samples that are the lowest, in (0, 1].
    """
    ordered = np.sort(fractions[~np.isnan(fractions)])
    found = [Tail(f"at_{100 * least:g}", f"at least {least:g}", least) for least in at_least]
    for share in lowest:
        # Rounded, since 0.07 * 100 is a little more than 7.
        last = max(1, ceil(round(share * len(ordered), 6)))
        quantile = float(ordered[last - 1]) if len(ordered) else nan
        found.append(Tail(f"worst_{100 * share:g}", f"mean of the lowest {share:g}", quantile, share))
    return tuple(found)


class Moves(NamedTuple):
    """How images that depend on each other move the fraction of them that a tail counts."""

    influences: Values
    """Influence of each image on the fraction."""
    below: float
    """Other images that one unseen image may push below the threshold, on average."""
    above: float
    """Other images that it may lift to the threshold."""


Influences = Callable[[Tail], Moves]


def tails(
    series: Series, groups: Sequence[str] = (), influences: Influences | None = None
) -> Iterator[tuple[Series | None, Estimate]]:
    """Yield each number of ``tails_of``, after a series of yes or no that it is the mean of, if it is one.

    Args:
        influences: How samples that depend on each other move a fraction of them; None if they are independent.
    """
    fractions = np.array(series.values, dtype=np.float64)
    known = ~np.isnan(fractions)
    numbers = numbered(np.array(groups, dtype=str)[known]) if groups else np.arange(int(known.sum()))
    for tail in tails_of(fractions):
        scores = tail.score(fractions)
        quantity, of = f"{series.quantity}_{tail.name}", f"{series.of}: {tail.of}"
        why, values = next(iter(series.reasons.values()), ""), torch.from_numpy(scores)
        scored = series_of(quantity, series.conditions, values, "yes or no", series.claim, of, why)
        estimate = summarise(scored, "share" if tail.share is None else "mean", "higher")
        if estimate.n and tail.share is not None:
            estimate = _lowest(estimate, fractions[known], tail, numbers, influences is None)
        elif estimate.n and (groups or influences is not None):
            moves = Moves(scores[known], 0.0, 0.0) if influences is None else influences(tail)
            estimate = _counted(estimate, moves, numbers)
        if groups and not isnan(estimate.low):
            estimate = estimate.model_copy(update={"method": f"{estimate.method}, {GROUPED}"})
        if tail.share is None:
            yield scored, estimate
        else:  # each weighting of the samples has its own lowest ones, so that only intervals can be compared
            yield None, estimate.model_copy(update={"unit": series.unit, "series": None, "statistic": "whole"})


def _counted(estimate: Estimate, moves: Moves, numbers: Groups) -> Estimate:
    """Return a fraction of samples with the interval of the mean of their influences."""
    values = moves.influences
    limits = min(0.0 - moves.below, float(values.min())), max(1 + moves.above, float(values.max()))
    count = int(numbers.max()) + 1
    alone = count == len(values)
    low, high = bounded_interval(values, limits) if alone else group_mean_interval(values, numbers, limits)
    method = f"Gaffke's bounds for values in [{limits[0]:.3g}, {limits[1]:.3g}], {draws_for(count)} draws"
    if isnan(low):
        method = f"no interval: {count} group"
    low, high = max(0.0, min(low, estimate.value)), min(1.0, max(high, estimate.value))
    return estimate.model_copy(update={"low": low, "high": high, "method": method})


def _lowest(estimate: Estimate, fractions: Values, tail: Tail, numbers: Groups, independent: bool) -> Estimate:
    """Return the mean of the lowest ``fractions``, with an interval if images are independent except within groups."""
    share = tail.share or 1.0
    value = lowest_mean(fractions, share)
    if not independent:
        # One image moves many of the lowest, and with them the quantile: simulated intervals covered .6 to .9.
        method = "images search each other, so the lowest depend on each other: no interval"
        return estimate.model_copy(update={"value": value, "low": nan, "high": nan, "method": method})
    scores = tail.score(fractions)
    effect = design_effect(scores, scores, numbers)
    low, high = lowest_interval(fractions, share, effect)
    method = f"Gaffke's bounds for the {tail.of}, {draws_for(len(fractions))} draws"
    if effect > 1:
        method = f"{method}; {effect:.3g} images count for one"
    return estimate.model_copy(
        update={"value": value, "low": min(low, value), "high": max(high, value), "method": method}
    )


def lowest_mean(fractions: Values, share: float) -> float:
    """Mean of the lowest ``share`` of fractions; the last sample counts in part.

    Example:
        >>> round(lowest_mean(np.array([0.2, 0.5, 0.9, 1.0]), 0.375), 6)
        0.3
    """
    score = np.sort(tails_of(fractions, (), (share,))[0].score(fractions))
    return float(np.clip(score.mean() if score[0] < score[-1] else score[0], 0, 1))


def lowest_interval(fractions: Values, share: float, effect: float = 1.0) -> tuple[float, float]:
    """95% interval of the mean of the lowest ``share`` of fractions, by Gaffke's bounds.

    Args:
        effect: Samples that count for one, because they depend on each other; 1 or more.

    Example:
        >>> low, high = lowest_interval(np.ones(300), 0.1)
        >>> round(low, 2), high
        (0.88, 1.0)
    """
    ordered, n = np.sort(fractions), len(fractions)
    weights = random_weights(n) if effect <= 1 else _dependent_weights(n, effect)
    rest = np.maximum(1 - weights.sum(1, dtype=np.float64), 0)
    counted, ends = np.cumsum(weights, axis=1, dtype=np.float64), []
    for limit, quantile in ((0.0, (1 - 0.95) / 2), (1.0, (1 + 0.95) / 2)):
        first = rest if limit == 0 else np.zeros(len(weights))
        filled = np.minimum(counted + first[:, None], share)
        # What the samples leave of the lowest share is held by the unseen one at the upper limit.
        sums = np.diff(filled, axis=1, prepend=np.minimum(first, share)[:, None]) @ ordered
        ends.append(float(np.quantile((sums + (share - filled[:, -1]) * limit) / share, quantile)))
    return min(max(ends[0], 0.0), 1.0), min(max(ends[1], 0.0), 1.0)


def _dependent_weights(n: int, effect: float) -> Float[np.ndarray, "r n"]:
    """Return random weights of ``n`` samples that count for ``n / effect``, beside one more that counts for one."""
    rng = np.random.default_rng(abs(hashed("dependent", n)))
    weights = rng.standard_gamma(1 / effect, (draws_for(n), n), dtype=np.float32)
    more = rng.standard_exponential((len(weights), 1), dtype=np.float32)
    return weights / (weights.sum(1, keepdims=True) + more)


def design_effect(scores: Values, moves: Values, groups: Groups) -> float:
    """Samples that count for one: variance of the mean over that of as many independent samples (Kish 1965).

    Args:
        moves: Influence of each sample on the mean, shape (n,); the values themselves if samples are independent.
    """
    from scipy.special import stdtrit

    n, count = len(scores), int(groups.max()) + 1 if len(groups) else 0
    if count < 2:
        return float(max(n, 1))
    alone = float(np.square(scores - scores.mean()).sum())
    together = float(np.square(np.bincount(groups, weights=moves - moves.mean())).sum()) * count / (count - 1)
    independent = alone * n / (n - 1)
    effect = max(1.0, together / independent if independent > 0 else n / count)
    student = float(stdtrit(count - 1, 0.975) / stdtrit(n - 1, 0.975)) ** 2
    return effect * student if effect * student > 1 + SLACK else 1.0


def worst_group(series: Series, names: Sequence[str], quantity: str, effect: float = 1.0) -> Estimate | None:
    """Mean of the group with the lowest mean, with an interval for the lowest mean among all such groups.

    The means of all groups have intervals that hold together with the confidence asked for (Bonferroni). The least of their
    lower and of their upper ends bound the lowest mean, however it was found.

    Args:
        effect: Samples that count for one, because they depend on each other; 1 or more.

    Returns:
        The number, whose ``reason`` names the group; None if fewer than two groups have ``SMALLEST`` samples.
    """
    values = np.array(series.values, dtype=np.float64)
    known = ~np.isnan(values)
    groups = {
        name: values[known][numbers == number]
        for numbers in [numbered(np.array(names, dtype=str)[known])] if known.any()
        for number, name in enumerate(np.unique(np.array(names, dtype=str)[known]).tolist())
    }  # fmt: skip
    large = {name: part for name, part in groups.items() if len(part) >= SMALLEST}
    if len(large) < 2:
        return None
    worst = min(large, key=lambda name: (float(np.sort(large[name]).mean()), name))
    ends = [
        fraction_interval(float(part.sum()) / effect, len(part) / effect, 0.05 / len(large)) for part in large.values()
    ]
    value, small = float(np.sort(large[worst]).mean()), len(groups) - len(large)
    left_out = f"; {small} of fewer than {SMALLEST} are left out" if small else ""
    return Estimate(
        quantity=quantity,
        conditions=series.conditions,
        value=value,
        low=min(value, *(low for low, _ in ends)),
        high=max(value, min(high for _, high in ends)),
        n=len(large[worst]),
        method=f"Clopper and Pearson's for each group, Bonferroni; the least {GROUPED}",
        unit=series.unit,
        claim=series.claim,
        of=f"{series.of}: the worst group",
        better="higher",
        reason=f"the worst of {len(large)} groups is {worst!r} with {len(large[worst])} samples{left_out}",
    )


def fraction_interval(total: float, n: float, error: float) -> tuple[float, float]:
    """Interval of the mean of fractions by Clopper and Pearson's, which is wider than fractions between 0 and 1 need.

    Args:
        error: Probability of a miss, in (0, 1).

    Example:
        >>> low, high = fraction_interval(0.0, 30.0, 0.05)
        >>> low, round(high, 3)
        (0.0, 0.116)
    """
    from scipy.special import betaincinv

    total = min(max(total, 0.0), n)
    low = float(betaincinv(total, n - total + 1, error / 2)) if total > 0 else 0.0
    return low, float(betaincinv(total + 1, n - total, 1 - error / 2)) if n - total > 0 else 1.0
