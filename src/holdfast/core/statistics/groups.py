"""Intervals for images in groups, and for mean paired differences that allow for unseen images."""

from __future__ import annotations

from functools import lru_cache
from math import exp, inf, isfinite, nan, sqrt

import numpy as np
from jaxtyping import Float, Int, Shaped

from holdfast.core.files import hashed
from holdfast.core.records import Estimate, Findings, Series
from holdfast.core.statistics.intervals import (
    Limits,
    Values,
    draws_for,
    quantiles,
    random_weights,
    share_interval,
    skewed_interval,
    weighted_ends,
)
from holdfast.core.statistics.quantiles import QUARTILES
from holdfast.core.statistics.summaries import is_share, limits_of

# Intervals for images that come in groups (slides, patients, videos, mutual neighbours): groups are drawn, not
# images.
#
# A mean is a ratio of two sums over groups, of values and of images. So each of ``G`` groups, of size ``n_g`` and sum
# ``S_g``, counts by its linearised value ``mean + (S_g - mean n_g) G / n`` (Taylor linearisation of a ratio: Cochran
# 1977, chapter 6).

Groups = Int[np.ndarray, "n"]
"""The number of each sample's group, from 0."""
GROUPED = "over groups of images"
"""How the method of an interval ends that allows for groups already."""
LINKED = 1.25
"""Least that the design effect is above 1 if the nearest image of every image is measured. 60 radii show half of it, because
images near the centre move the radii of many: with .75, .900 was covered (``benchmarks.statistics.coverage_radii``)."""


def numbered(names: Shaped[np.ndarray, "n"]) -> Groups:
    """Return a number for the group of each sample, equal where the names are."""
    return np.unique(names, return_inverse=True)[1].astype(np.int64)


def group_mean_interval(
    values: Values, groups: Groups, limits: Limits | None, confidence: float = 0.95
) -> tuple[float, float]:
    """Interval of a mean of samples that come in groups.

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
    """Interval of a mean over groups under random weights, with one more group at a limit.

    Args:
        weights: Random weights, shape (r, g); the rest to 1 goes to one more group of the mean size.
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
    """Interval of a median of samples that come in groups (Woodruff 1952).

    That share counts for as many samples as its variance between groups says (Korn and Graubard 1998), with Student's
    quantile for that number of groups.
    """
    if groups.max() < 1:
        return nan, nan
    middle = np.median(values)
    sides = (values > middle).astype(float) - (values < middle)  # not their difference: both may be infinite
    effective = len(values) / widening(sides, groups, confidence) ** 2
    return quantiles(values, share_interval(effective / 2, effective, confidence))


def group_quantile_interval(
    values: Values, groups: Groups, share: float, confidence: float = 0.95
) -> tuple[float, float]:
    """Interval of a quantile of samples that come in groups, widened to values that occur.

    Example:
        >>> values, alone = np.arange(1.0, 101.0), np.arange(100)
        >>> group_quantile_interval(values, alone, 0.25), group_quantile_interval(values, alone // 2, 0.25)
        ((18.0, 35.0), (15.0, 40.0))
    """
    if groups.max() < 1:
        return nan, nan
    below = (values <= np.quantile(values, share, method="inverted_cdf")).astype(float)
    return _around(values, share, len(values) / widening(below, groups, confidence) ** 2, confidence)


def _around(values: Values, share: float, effective: float, confidence: float) -> tuple[float, float]:
    """Return the interval of a quantile of values that count for ``effective`` independent ones."""
    low, high = share_interval(share * effective, effective, confidence)
    return float(np.quantile(values, low, method="lower")), float(np.quantile(values, high, method="higher"))


def linked_quantile_interval(
    values: Values, own: Int[np.ndarray, "n"], nearest: Int[np.ndarray, "n"], share: float, confidence: float = 0.95
) -> tuple[float, float]:
    """Interval of a quantile of radii that allows for images that are each other's nearest.

    Two images depend on each other if each is the other's nearest, since they share the point halfway, or if both have the
    same nearest image. The fraction of images below the quantile counts for as many as its variance over such pairs says.

    Args:
        own, nearest: Row of each image, and row of its nearest other image.

    Example:
        >>> values, images = np.arange(1.0, 101.0), np.arange(100)
        >>> [linked_quantile_interval(values, images, nearest, 0.25) for nearest in (images + 100, images ^ 1)]
        [(18.0, 35.0), (14.0, 40.0)]
    """
    below = (values <= np.quantile(values, share, method="inverted_cdf")).astype(float)
    below -= below.mean()
    alone = float((below**2).sum())
    same = np.unique(nearest, return_inverse=True)[1]
    hubs = float((np.bincount(same, below) ** 2).sum())
    place = {image: index for index, image in enumerate(own.tolist())}
    partner = [place.get(image, -1) for image in nearest.tolist()]
    mutual = sum(
        float(below[index] * below[other])
        for index, other in enumerate(partner)
        if other >= 0 and nearest[other] == own[index]
    )
    measured = float(np.mean([other >= 0 for other in partner]))
    least = 1 + LINKED * measured
    effect = max(least, (alone + mutual) / alone, (hubs + mutual) / alone) if alone > 0 else least
    return _around(values, share, len(values) / effect, confidence)


def widening(values: Values, groups: Groups, confidence: float = 0.95) -> float:
    """Factor by which groups lengthen the interval of a mean: root of the design effect.

    Kish 1965, with Student's quantile for the number of groups. About 1 at least; infinite for a single group.

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
    """Replace intervals by ones for images in groups, if ``findings.groups`` names any.

    An interval that adds more to that of a value per image is lengthened by the design effect of these values. One that
    comes from elsewhere cannot allow for groups, and says so.
    """
    if not findings.groups:
        return findings
    groups = numbered(np.array(findings.groups))
    series = {(part.quantity, tuple(sorted(part.conditions.items()))): part for part in findings.series}
    estimates = list[Estimate]()
    for estimate in findings.estimates:
        quantity, conditions = estimate.quantity, tuple(sorted(estimate.conditions.items()))
        # One without a named series: quartiles are named after it.
        cut = (quantity.removesuffix(f"_{suffix}") for suffix in QUARTILES if quantity.endswith(f"_{suffix}"))
        named = estimate.series or next(cut, quantity)
        estimates.append(_regrouped(estimate, series.get((named, conditions)), groups))
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
    for name, share in QUARTILES.items():
        if estimate.quantity == f"{series.quantity}_{name}":
            low, high = group_quantile_interval(values, groups, share, estimate.confidence)
            method = f"fraction below the quartile over {int(groups.max()) + 1} groups of images"
            return estimate.model_copy(update={"low": low, "high": high, "method": method})
    if estimate.series is None or estimate.statistic not in ("mean", "median"):
        return _lengthened(estimate, values, groups, limits_of(series))
    count = int(groups.max()) + 1
    if estimate.statistic == "median":
        low, high = group_median_interval(values, groups, estimate.confidence)
        method = f"share below the median over {count} groups of images"
    else:
        limits = (0.0, 1.0) if estimate.unit in ("fraction of samples", "share of samples") else limits_of(series)
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


# The mean of paired differences, allowing for an image that was not seen and no farther than what was seen suggests.
#
# Each end is taken over the samples ``d`` and one more at ``r`` beyond zero on that side, under random weights. The
# weights of samples are those of the Bayesian bootstrap (Rubin 1981, https://doi.org/10.1214/aos/1176345338). One
# more counts half, as what was seen does in mid-P. Of values that are all zero or ``r`` the upper end is that of
# Jeffreys' interval, except for half a zero.
#
#     r = (1 - e) max |d| + e L,   e = exp(-sum |d| / 2 L)
#
# ``L`` is the farthest that any image can move the mean. Where nothing moved, one more image may go all the way. The
# more has moved, the less do rare images count that are unlike all that were seen. How fast was chosen by simulation,
# among encoders of equal risk of which one fails rarely and badly and the other often and a little
# (``benchmarks.statistics.paired``). So this does not hold for every law: where one image in a thousand outweighs all
# small differences, 300 images will mostly not show it. With ``r = L`` throughout (Gaffke 2005) intervals do, and are
# up to nine times as long.


@lru_cache(maxsize=1)
def weights_beside_half(n: int) -> Float[np.ndarray, "r n"]:
    """Random weights of ``n`` samples and one more that counts half: Dirichlet(1, ..., 1, 1/2)."""
    rng = np.random.default_rng(abs(hashed("unseen", n)))
    weights = rng.standard_exponential((draws_for(n), n), dtype=np.float32)
    half = rng.standard_gamma(0.5, (len(weights), 1)).astype(np.float32)
    return weights / (weights.sum(1, keepdims=True) + half)


def reach(moves: Values, limits: Limits) -> Limits:
    """How far one more image may move the mean of ``moves``, to either side.

    Example:
        >>> reach(np.zeros(300), (-1.0, 1.0))
        (-1.0, 1.0)
        >>> low, high = reach(np.full(300, 0.1), (-1.0, 1.0))
        >>> low == -high, round(high, 4)
        (True, 0.1)
    """
    distances = np.abs(moves)
    farthest, total = float(distances.max()), float(np.sort(distances).sum())

    def beyond(most: float) -> float:
        rare = exp(-total / (2 * most)) if most > 0 else 0.0
        return (1 - rare) * farthest + rare * most

    return -beyond(-limits[0]), beyond(limits[1])


def difference_interval(differences: Values, limits: Limits, confidence: float = 0.95) -> tuple[float, float]:
    """Interval of the mean of paired differences with known limits.

    Example:
        >>> low, high = difference_interval(np.zeros(300), (-1.0, 1.0))
        >>> low == -high, round(high, 3)
        (True, 0.008)
    """
    weights = weights_beside_half(len(differences))
    return weighted_ends(differences, reach(differences, limits), weights, confidence)


def group_difference_interval(
    differences: Values, groups: Groups, limits: Limits, confidence: float = 0.95
) -> tuple[float, float]:
    """Interval of the mean of paired differences of samples that come in groups.

    What moves the mean are whole groups: one more, of the mean size, goes as far as those that were seen suggest.
    """
    sizes = np.bincount(groups).astype(float)
    if len(sizes) < 2:
        return nan, nan
    sums = np.bincount(groups, weights=differences)
    if sums.sum() < 0:  # one way round, so that swapping the two swaps the ends
        low, high = group_difference_interval(-differences, groups, (-limits[1], -limits[0]), confidence)
        return -high, -low
    weights = weights_beside_half(len(sizes))
    return weighted_interval(sums, sizes, reach(sums / sizes.mean(), limits), weights, confidence)
