"""The difference of two encoders: paired by sample, or from the intervals of two numbers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import hypot, isfinite, isnan, nan
from typing import Literal

import numpy as np
from jaxtyping import Float, Int

from holdfast.core.files import hashed
from holdfast.core.records import Estimate, Number, Record, Series
from holdfast.core.statistics.groups import (
    Groups,
    difference_interval,
    group_difference_interval,
    group_mean_interval,
    numbered,
)
from holdfast.core.statistics.intervals import Limits, Values, decides_nothing, draws_for, quantiles, skewed_interval
from holdfast.core.statistics.summaries import Better, limits_of

ROUNDING = 1e-6
"""Relative difference of two encoders' values up to which they are equal: codes are computed in float32."""


@lru_cache(maxsize=2)
def _draws(n: int) -> Int[np.ndarray, "r n"]:
    """Return how often each of ``n`` samples occurs in each resample; the draws depend on n alone."""
    rng = np.random.default_rng(abs(hashed("bootstrap", n)))
    counts = np.empty((draws_for(n), n), dtype=np.int8)  # a sample is drawn once on average, and never a hundred times
    for row in counts:
        row[:] = np.bincount(rng.integers(0, n, n), minlength=n)
    return counts


def _resampled_medians(values: Values, groups: Groups | None) -> Float[np.ndarray, "r"]:
    """Return the median of ``values`` in each resample, of samples or of whole groups of them."""
    n = len(values)
    counts = _draws(n) if groups is None else _draws(int(groups.max()) + 1)[:, groups]
    order = np.argsort(values, kind="stable")
    result = np.empty(len(counts))
    step = max(1, 2**22 // n)  # rows at a time, so that memory stays bounded
    for top in range(0, len(counts), step):
        cumulative = counts[top : top + step, order].cumsum(1, dtype=np.int32)
        drawn = cumulative[:, -1:]  # as many as there are samples, unless groups differ in size
        # The sample in the middle, or the two there are: the first whose cumulative count reaches its rank.
        middle = [values[order[(cumulative >= rank).argmax(1)]] for rank in ((drawn + 1) // 2, drawn // 2 + 1)]
        result[top : top + step] = (middle[0] + middle[1]) / 2
    return result


def _median_difference(left: Values, right: Values, groups: Groups | None, confidence: float) -> tuple[float, float]:
    """Return the percentile interval of the difference of two medians over resampled samples or groups (Efron 1979)."""
    if np.median(left) < np.median(right):  # one way round, so that swapping the two swaps the ends
        low, high = _median_difference(right, left, groups, confidence)
        return -high, -low
    order = np.lexsort((right, left))  # so that draws meet the samples in the same order however these are ordered
    groups = None if groups is None else groups[order]
    draws = _resampled_medians(left[order], groups) - _resampled_medians(right[order], groups)
    # Of two medians beyond all that was looked at, neither is known to be larger.
    draws[np.isnan(draws)] = 0.0
    return quantiles(draws, ((1 - confidence) / 2, (1 + confidence) / 2))


Outcome = Literal["a is better", "b is better", "tied", "a is lower", "a is higher"]


class Difference(Record):
    """Difference ``a - b`` of one statistic of two encoders on the same samples."""

    value: Number
    """Difference."""
    low: Number
    """Lower end of the interval."""
    high: Number
    """Upper end of the interval."""
    n: int
    """Samples where both are defined."""
    outcome: Outcome
    """Which encoder is better, or *tied*."""
    paired: bool = True
    """True if computed sample by sample; false if from two intervals, which tells less."""
    differing: int | None = None
    """Samples, or groups, whose values differ; None if unknown."""


@np.errstate(invalid="ignore")  # infinite values have no difference: it is nan, which says so
def paired(
    a: Series, b: Series, statistic: str, better: Better, confidence: float = 0.95, groups: Sequence[str] = ()
) -> Difference:
    """Difference of two encoders on the samples where both are defined; *tied* if it may be 0.

    Values that differ by no more than rounding count as equal.

    The interval is that of a mean, of the samples' differences, or a bootstrap's for medians. Where so few samples differ
    that even one sign throughout would be chance (fewer than 6), the encoders are tied: if either value of a sample might as
    well be the other's, all ``k`` signs agree with chance ``2^(1 - k)`` (Fisher 1935). Where samples come in ``groups``, one
    name for each sample, these are drawn, and counted, instead.

    Args:
        statistic: ``mean``, ``median`` or another statistic of the series.

    Raises:
        ValueError: The two series have different numbers of samples.
    """
    left, right = np.asarray(a.values, dtype=np.float64), np.asarray(b.values, dtype=np.float64)
    if len(left) != len(right):
        raise ValueError(f"paired series need the same samples, got {len(left)} and {len(right)}")
    both = ~(np.isnan(left) | np.isnan(right))
    left, right = left[both], right[both]
    # What rounding makes of equal values is no difference: where it is the same for all images, it would decide.
    close = (np.abs(left - right) <= ROUNDING * np.abs(right)) & np.isfinite(right)
    right = np.where(close, left, right)
    n = len(left)
    if not n:
        return Difference(value=nan, low=nan, high=nan, n=0, outcome="tied")
    index = numbered(np.array(groups)[both]) if len(groups) else None
    differing = int((left != right).sum() if index is None else np.bincount(index, left != right).astype(bool).sum())
    if statistic == "median":
        value = float(np.median(left) - np.median(right))
        low, high = _median_difference(left, right, index, confidence)
    else:
        value = float(np.sort(left - right).mean())
        ours, theirs = limits_of(a), limits_of(b)
        limits = (ours[0] - theirs[1], ours[1] - theirs[0]) if ours and theirs else None
        low, high = _mean_difference(left - right, index, limits, confidence)
    tied = low <= 0 <= high or isnan(value + low + high) or decides_nothing(differing, confidence)
    outcome: Outcome = "tied" if tied else _outcome(value, better)
    return Difference(value=value, low=low, high=high, n=n, outcome=outcome, differing=differing)


def _mean_difference(
    differences: Values, groups: Groups | None, limits: Limits | None, confidence: float
) -> tuple[float, float]:
    """Return the interval of the mean of ``differences``, of samples or of whole groups of them."""
    if groups is None:
        differences = np.sort(differences)
        if limits is None:
            return skewed_interval(differences, confidence)
        return difference_interval(differences, limits, confidence)
    if limits is None:
        return group_mean_interval(differences, groups, None, confidence)
    return group_difference_interval(differences, groups, limits, confidence)


def unpaired(a: Estimate, b: Estimate) -> Difference:
    """Difference of two numbers from their intervals alone, as if independent.

    The distances to the ends add up in squares (Zou and Donner 2008, https://doi.org/10.1002/sim.3095). Two encoders on
    the same inputs mostly err alike, so this says *tied* more often than it must.

    Example:
        >>> from holdfast.core.records import Claim
        >>> number = Estimate(quantity="q", value=1.0, low=0.7, high=1.3, n=9, method="", unit="", claim=Claim.ESTIMATE,
        ...                   of="", better="lower", statistic="whole")
        >>> found = unpaired(number, number.model_copy(update={"value": 2.0, "low": 1.6, "high": 2.4}))
        >>> round(found.low, 3), round(found.high, 3), found.outcome
        (-1.5, -0.5, 'a is better')
    """
    value = a.value - b.value
    low = value - hypot(a.value - a.low, b.high - b.value)
    high = value + hypot(a.high - a.value, b.value - b.low)
    tied = low <= 0 <= high or not isfinite(low + high)
    outcome: Outcome = "tied" if tied else _outcome(value, a.better)
    return Difference(value=value, low=low, high=high, n=min(a.n, b.n), outcome=outcome, paired=False)


def _outcome(value: float, better: Better) -> Outcome:
    if better == "neither":
        return "a is lower" if value < 0 else "a is higher"
    return "a is better" if (value < 0) == (better == "lower") else "b is better"
