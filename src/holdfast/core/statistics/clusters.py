"""Intervals for images that come in groups (slides, patients, videos): groups are drawn, not images.

A mean is a ratio of two sums over groups, of values and of images. So each of ``G`` groups, of size ``n_g`` and sum ``S_g``,
counts by its linearised value ``mean + (S_g - mean n_g) G / n`` (Taylor linearisation of a ratio: Cochran 1977, chapter 6).
"""

from __future__ import annotations

from math import inf, isfinite, nan, sqrt

import numpy as np
from jaxtyping import Float, Int, Shaped

from holdfast.core.records import Estimate, Findings, Series
from holdfast.core.statistics import is_share, limits_of
from holdfast.core.statistics.intervals import (
    Limits,
    Values,
    draws_for,
    quantiles,
    random_weights,
    share_interval,
    skewed_interval,
)

Groups = Int[np.ndarray, "n"]
"""The number of each sample's group, from 0."""
GROUPED = "over groups of images"
"""How the method of an interval ends that allows for groups already."""


def numbered(names: Shaped[np.ndarray, "n"]) -> Groups:
    """Return a number for the group of each sample, equal where the names are."""
    return np.unique(names, return_inverse=True)[1].astype(np.int64)


def group_mean_interval(
    values: Values, groups: Groups, limits: Limits | None, confidence: float = 0.95
) -> tuple[float, float]:
    """Return the interval of the mean of ``values``, which cannot leave ``limits`` if there are any.

    Values with limits: Gaffke's bounds (``bounded_interval``) over groups, each weighted by its size, with one more group of
    the mean size at the limit.

    Example:
        >>> values, alone = np.array([0.0, 0.0, 1.0, 1.0]), np.arange(4)
        >>> low, high = group_mean_interval(values, alone, None)
        >>> wide = group_mean_interval(values, alone // 2, None)
        >>> wide[0] < low < high < wide[1]
        True
    """
    sizes = np.bincount(groups).astype(float)
    if len(sizes) < 2:
        return nan, nan
    sums = np.bincount(groups, weights=values)
    if limits is None:
        mean = float(values.mean())
        return skewed_interval(mean + (sums - mean * sizes) * len(sizes) / len(values), confidence)
    return weighted_interval(sums, sizes, limits, random_weights(len(sizes)), confidence)


def weighted_interval(
    sums: Values, sizes: Values, limits: Limits, weights: Float[np.ndarray, "r g"], confidence: float = 0.95
) -> tuple[float, float]:
    """Return the interval of a mean over groups under random ``weights``, which leave some to one more of the mean size.

    Each value of that group lies at the limit on the side of the end.
    """
    # In an order of their own, so that weights meet groups alike however the images are ordered.
    order = np.lexsort((sizes, sums))
    spare = (1 - weights.sum(1)) * sizes.mean()
    weighted_sums, weighted_sizes = weights @ sums[order], weights @ sizes[order] + spare
    ends = [
        np.quantile((weighted_sums + spare * limit) / weighted_sizes, share)
        for limit, share in zip(limits, ((1 - confidence) / 2, (1 + confidence) / 2), strict=True)
    ]
    mean = float(sums.sum() / sizes.sum())
    return min(float(ends[0]), mean), max(float(ends[1]), mean)


def group_median_interval(values: Values, groups: Groups, confidence: float = 0.95) -> tuple[float, float]:
    """Return the quantiles at the ends of the interval of the share below the median (Woodruff 1952).

    That share counts for as many samples as its variance between groups says (Korn and Graubard 1998), with Student's
    quantile of so many groups.
    """
    if groups.max() < 1:
        return nan, nan
    middle = np.median(values)
    sides = (values > middle).astype(float) - (values < middle)  # not their difference: both may be infinite
    effective = len(values) / widening(sides, groups, confidence) ** 2
    return quantiles(values, share_interval(effective / 2, effective, confidence))


def widening(values: Values, groups: Groups, confidence: float = 0.95) -> float:
    """Return how many times as long the interval of a mean is for groups: the root of the design effect (Kish 1965).

    With Student's quantile of so many groups. About 1 at least; infinite for a single group.

    Example:
        >>> round(widening(np.repeat([1.0, 2.0, 3.0, 4.0], 9), np.repeat(np.arange(4), 9)), 1)
        5.4
    """
    from scipy.special import stdtrit

    count, n = int(groups.max()) + 1, len(values)
    if count < 2:
        return inf
    deviations = values - values.mean()
    alone = float((deviations**2).sum())
    together = float((np.bincount(groups, weights=deviations) ** 2).sum()) * count / (count - 1)
    effect = max(1.0, together / alone) if alone > 0 else n / count
    tail = (1 + confidence) / 2
    return sqrt(effect) * float(stdtrit(count - 1, tail) / stdtrit(n - 1, tail))


def with_groups(findings: Findings) -> Findings:
    """Return ``findings`` with the intervals of images that come in ``findings.groups``; as they are if there are none.

    An interval that adds more to that of a value per image is lengthened by the design effect of these values. One that
    comes from elsewhere cannot allow for groups, and says so.
    """
    if not findings.groups:
        return findings
    groups = numbered(np.array(findings.groups))
    series = {(part.quantity, tuple(sorted(part.conditions.items()))): part for part in findings.series}
    estimates = [
        _regrouped(
            estimate,
            series.get((estimate.series or estimate.quantity, tuple(sorted(estimate.conditions.items())))),
            groups,
        )
        for estimate in findings.estimates
    ]
    return findings.model_copy(update={"estimates": tuple(estimates)})


def _regrouped(estimate: Estimate, series: Series | None, groups: Groups) -> Estimate:
    if not (isfinite(estimate.low) or isfinite(estimate.high)) or estimate.method.endswith(GROUPED):
        return estimate
    values = np.array([] if series is None else series.values, dtype=np.float64)
    defined = ~np.isnan(values)
    if series is None or not defined.any():
        return estimate.model_copy(
            update={"method": f"{estimate.method}; as if images were independent, not in groups"}
        )
    values, groups = values[defined], numbered(groups[defined])
    if estimate.series is None or estimate.statistic not in ("mean", "median"):
        return _lengthened(estimate, values, groups, limits_of(series))
    count = int(groups.max()) + 1
    if estimate.statistic == "median":
        low, high = group_median_interval(values, groups, estimate.confidence)
        method = f"share below the median over {count} groups of images"
    else:
        limits = (0.0, 1.0) if estimate.unit == "share of samples" else limits_of(series)
        low, high = group_mean_interval(values, groups, limits, estimate.confidence)
        drawn = f"Gaffke's bounds, {draws_for(count)} draws" if limits else "Student's, widened by skewness"
        method = f"{drawn}, over {count} groups of images"
    if is_share(estimate.unit) or "[0, 1]" in estimate.unit:
        # The number lies in [0, 1], though the images' influences on it may not. Ends that are nan stay so.
        low, high = max(low, 0.0), min(high, 1.0)
    if not isfinite(low + high):
        method = f"no interval: {count} {'group' if count == 1 else 'groups'} of images"
    return estimate.model_copy(update={"low": low, "high": high, "method": method})


def _lengthened(estimate: Estimate, values: Values, groups: Groups, limits: Limits | None) -> Estimate:
    """Return ``estimate`` with both parts of its interval longer by the design effect of a mean or median of ``values``."""
    sides = np.sign(values - np.median(values))
    factor = max(widening(part, groups, estimate.confidence) for part in (values, sides))
    if not isfinite(factor):
        return estimate.model_copy(update={"low": nan, "high": nan, "method": "no interval: 1 group of images"})
    least, most = limits or (-inf, inf)
    low = max(least, estimate.value - factor * (estimate.value - estimate.low))
    high = min(most, estimate.value + factor * (estimate.high - estimate.value))
    method = (
        f"{estimate.method}; lengthened {factor:.2g} times for {int(groups.max()) + 1} groups of images (design effect)"
    )
    return estimate.model_copy(update={"low": low, "high": high, "method": method})
