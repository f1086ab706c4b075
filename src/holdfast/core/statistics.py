"""From one value per sample to a number with an interval. Every function names its method; nothing else averages."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from math import hypot, inf, isfinite, isnan, nan, sqrt
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from holdfast.core.errors import HoldfastError
from holdfast.core.noise import hashed
from holdfast.core.records import Estimate, Number, Record, Series

MOST_DRAWS, ALL_DRAWS = 2000, 40_000_000
ROUNDING = 1e-6
"""Relative difference of two encoders' values up to which they are equal: codes are computed in float32."""
Values = Float[np.ndarray, "n"]
Better = Literal["lower", "higher", "neither"]
Limits = tuple[float, float]
"""Two numbers between which every value of the population lies, sampled or not."""
UNLIMITED = (
    "Student's interval, widened by skewness; too short where few samples, perhaps none seen, hold most of the mean"
)
"""The method of means of values without limits: what the sample does not show, no interval can allow for."""
Summary = tuple[float, float, float, str]
"""A value, the two ends of its interval and the method."""


def draws_for(n: int) -> int:
    """Return how many random weightings of ``n`` samples are drawn: 2000, fewer (but 200) where each takes long."""
    return max(200, min(MOST_DRAWS, ALL_DRAWS // n))


def decides_nothing(n: int, confidence: float) -> bool:
    """Return whether ``n`` samples are too few for any interval free of assumptions: even if all fall on one side."""
    return 2.0 ** (1 - n) > 1 - confidence


def share_interval(successes: int | float, n: int | float, confidence: float = 0.95) -> tuple[float, float]:
    """Return the mid-P interval of a share (Lancaster 1961): exact tails in which what was seen counts half.

    Samples that depend on each other count for fewer, in fractions (Korn and Graubard 1998).

    Where few fail, Wilson's covers as little as 84%, and that of Clopper and Pearson nearly always 98% and more.

    Example:
        >>> low, high = share_interval(0, 1024)
        >>> low, round(high, 4)
        (0.0, 0.0029)
    """
    tail = (1 - confidence) / 2
    return _lowest_share(successes, n, tail), 1 - _lowest_share(n - successes, n, tail)


def _lowest_share(successes: int | float, n: int | float, tail: float) -> float:
    """Return the share at which more successes, and half of the chance of as many, have chance ``tail``."""
    from scipy.optimize import brentq
    from scipy.special import betainc

    def at_least(count: int | float, share: float) -> float:
        # The binomial tail, which has a meaning between whole numbers as well.
        return float(betainc(count, n - count + 1, share)) if count <= n else 0.0

    def excess(share: float) -> float:
        return (at_least(successes + 1, share) + at_least(successes, share)) / 2 - tail

    return float(brentq(excess, 0, successes / n, xtol=1e-15)) if successes else 0.0


def median_interval(values: Values, confidence: float = 0.95) -> tuple[float, float]:
    """Return the order statistics that cover the median with ``confidence``, whatever the distribution.

    Too few samples (fewer than 6 for 95%) have none that do; they give their whole range.
    """
    from scipy.stats import binom

    n = len(values)
    below = int(binom.ppf((1 - confidence) / 2, n, 0.5))
    rank = max(1, below)  # the largest with P(B < rank) <= (1 - confidence) / 2
    ordered = np.sort(values)
    return float(ordered[rank - 1]), float(ordered[n - rank])


def bounded_interval(values: Values, limits: Limits, confidence: float = 0.95) -> tuple[float, float]:
    """Return the interval of the mean of values that cannot leave ``limits`` (Gaffke 2005).

    An image that was not sampled may have any value within the limits. So each end is taken over the samples and one more
    at the limit on that side, under random weights: the share of the population that each image stands for (Learned-Miller
    and Thomas 2019, https://arxiv.org/abs/1905.06208). For yes or no this is the interval of Clopper and Pearson; for their
    paired differences, McNemar's exact test.

    Example:
        >>> low, high = bounded_interval(np.zeros(1000), (0.0, 1.0))
        >>> low, round(high, 3)
        (0.0, 0.004)
    """
    least, most = limits
    return -_upper_end(-values, -least, confidence), _upper_end(values, most, confidence)


def _upper_end(values: Values, most: float, confidence: float) -> float:
    # Sorted, so that the weights meet the values in the same order however the images are ordered.
    below = _weights(len(values)) @ np.sort(most - values)[::-1].astype(np.float32)
    return max(most - float(np.quantile(below, (1 - confidence) / 2)), float(values.mean()))


@lru_cache(maxsize=2)
def _weights(n: int) -> Float[np.ndarray, "r n"]:
    """Return random weights of ``n`` samples that leave some to one more: uniform among those that add up to 1."""
    rng = np.random.default_rng(abs(hashed("weights", n)))
    weights = rng.standard_exponential((draws_for(n), n + 1), dtype=np.float32)
    return weights[:, :n] / weights.sum(1, keepdims=True)


def skewed_interval(values: Values, confidence: float = 0.95) -> tuple[float, float]:
    """Return the interval of the mean of values without limits: Student's, wider where their skewness asks for it.

    Its ends are also taken with the skewness removed, by the cubic transformation of the studentised mean (Hall 1992,
    https://doi.org/10.1111/j.2517-6161.1992.tb01876.x). The outer ends hold: alone, Student's covers too little where values
    are skewed, and the other tells alike encoders apart in up to 17 of 100 cases where few images differ, and far.
    """
    from scipy.special import stdtrit

    n = len(values)
    if n < 2 or not np.isfinite(values).all():
        return nan, nan
    values = np.sort(values)  # so that sums round alike however the images are ordered
    mean, spread = float(values.mean()), float(values.std())
    if spread <= abs(mean) * n * np.finfo(np.float64).eps:
        return mean, mean
    skewness = float((((values - mean) / spread) ** 3).mean()) / sqrt(n)
    quantile = float(stdtrit(n - 1, (1 + confidence) / 2))

    def untransformed(t: float) -> float:
        if abs(skewness) < 1e-6:
            return t
        return float(3 / skewness * (np.cbrt(1 + skewness * (t - skewness / 6)) - 1))

    error = spread / sqrt(n - 1)
    below, above = max(quantile, untransformed(quantile)), max(quantile, -untransformed(-quantile))
    return mean - error * below, mean + error * above


def jackknife(
    statistic: Callable[[list[int]], float], n: int, groups: int = 10, confidence: float = 0.95
) -> tuple[float, float]:
    """Return the interval of a smooth ``statistic`` of samples by deleting one group at a time (Shao and Tu 1995).

    ``statistic`` takes the rows to use. For statistics too slow to resample thousands of times.
    """
    if n < 2:
        return nan, nan
    everyone = list(range(n))
    groups = min(groups, n)
    left_out = [statistic([row for row in everyone if row % groups != group]) for group in range(groups)]
    return jackknife_interval(statistic(everyone), np.array(left_out), confidence)


def jackknife_interval(whole: float, left_out: Float[np.ndarray, "g"], confidence: float = 0.95) -> tuple[float, float]:
    """Return the interval of a statistic from its value and from those with one group of samples left out at a time.

    Example:
        >>> low, high = jackknife_interval(2.0, np.array([1.9, 2.0, 2.1]))
        >>> round((low + high) / 2, 6), low < 2 < high
        (2.0, True)
    """
    from scipy.special import stdtrit

    groups = len(left_out)
    error = sqrt((groups - 1) / groups * float(((left_out - left_out.mean()) ** 2).sum()))
    half = float(stdtrit(groups - 1, (1 + confidence) / 2)) * error
    centre = groups * whole - (groups - 1) * float(left_out.mean())  # without its first-order bias
    return centre - half, centre + half


def summarise(
    series: Series,
    statistic: Literal["mean", "median", "share"],
    better: Better,
    quantity: str | None = None,
    confidence: float = 0.95,
    most: float | None = None,
) -> Estimate:
    """Return the mean, median or share (a mean of zeros and ones) of ``series``, leaving out its undefined values.

    The mean's interval depends on whether its values have limits: [0, ``most``] if given, else the series' own.

    Raises:
        HoldfastError: a share of values other than 0 and 1.
    """
    values = np.asarray(series.values, dtype=np.float64)
    values = values[~np.isnan(values)]
    n, missing = len(values), len(series.values) - len(values)
    reason = f"{missing} of {len(series.values)} samples undefined: {next(iter(series.reasons.values()), 'no reason')}"
    limits = limits_of(series) if most is None else (0.0, most)
    if not n:
        value, low, high, method = nan, nan, nan, "undefined"
    elif statistic == "share":
        value, low, high, method = _share(values, confidence, series.quantity)
    elif statistic == "median":
        value, low, high, method = _median(values, confidence)
    else:
        value, low, high, method = _mean(values, confidence, limits)
    return Estimate(
        quantity=quantity or series.quantity,
        conditions=series.conditions,
        value=value,
        low=low,
        high=high,
        n=n,
        method=method,
        confidence=confidence,
        unit="share of samples" if statistic == "share" else series.unit,
        claim=series.claim,
        of=series.of,
        better=better,
        series=series.quantity,
        statistic="median" if statistic == "median" else "mean",
        reason=reason if missing else None,
    )


def over_references(median: Estimate, near: Values) -> Estimate:
    """Return ``median``, whose interval takes the reference images as given, with one that does not.

    ``near`` is the share of the others that lie within the median displacement of each reference image. Its mean is a mean
    over pairs, in which an image not drawn takes part twice (Hoeffding 1948): hence twice its deviations. Both ways in
    which chance enters add up in squares (Zou and Donner 2008, https://doi.org/10.1002/sim.3095).
    """
    if not len(near) or not median.n:
        return median
    share = float(near.mean())
    low, high = bounded_interval(2 * near - share, (-share, 2 - share), median.confidence)
    return median.model_copy(
        update={
            "low": max(0.0, median.value - hypot(median.value - median.low, share - low)),
            "high": min(1.0, median.value + hypot(median.high - median.value, high - share)),
            "method": f"{median.method} and, for the {len(near)} reference images, Gaffke's bounds; added in squares",
            "series": None,  # image by image, another encoder's scale would be taken as given
            "statistic": "whole",
        }
    )


class Scale(NamedTuple):
    """The median of what numbers are shares of, with its interval."""

    value: float
    low: float
    high: float
    n: int


def chained_median(distances: Values, confidence: float = 0.95) -> Scale:
    """Return the median of the distances between images that form a ring, each of its neighbours; nan if it is not positive.

    Every image is in two distances, so these count for fewer than there are, by the correlation of neighbours on one side of
    the median (at most 1/2: Hoeffding 1948). The ends are the quantiles at the ends of the interval of a share of one half
    (Woodruff 1952).
    """
    known = ~np.isnan(distances)
    n = int(known.sum())
    value = float(np.median(distances[known])) if n else nan
    if not value > 0:
        return Scale(nan, nan, nan, n)
    sides = np.where(known, np.sign(distances - value), 0.0)
    shared = float(np.clip((sides * np.roll(sides, 1)).sum() / max(1.0, (sides**2).sum()), 0.0, 0.5))
    count = n / (1 + 2 * shared)
    low, high = np.quantile(distances[known], share_interval(count / 2, count, confidence))
    return Scale(value, float(low), float(high), n)


def over_scale(share: Estimate, scale: Scale) -> Estimate:
    """Return ``share``, whose interval takes the ``scale`` that it is a share of as given, with one that does not.

    Both ways in which chance enters add up in squares (Zou and Donner 2008, https://doi.org/10.1002/sim.3095).
    """
    value, low, high = share.value, share.low, share.high
    if isfinite(value):
        # The smallest scale gives the largest share, and one that may be zero any.
        least, most = value * scale.value / scale.high, value * scale.value / scale.low if scale.low > 0 else inf
        low, high = max(0.0, value - hypot(value - low, value - least)), value + hypot(high - value, most - value)
    return share.model_copy(
        update={
            "low": low,
            "high": high,
            "method": f"{share.method} and those of the median of {scale.n} clean distances; added in squares",
            "series": None,  # image by image, another encoder's scale would be taken as given
            "statistic": "whole",
        }
    )


def _share(values: Values, confidence: float, quantity: str) -> Summary:
    """Return the share of ones among ``values``."""
    if not np.isin(values, (0, 1)).all():
        other = next(value for value in values.tolist() if value not in (0, 1))
        raise HoldfastError(f"a share of samples needs values 0 and 1, got {other:g}; summarise {quantity} as a mean")
    successes, n = int(values.sum()), len(values)
    return successes / n, *share_interval(successes, n, confidence), "mid-P"


def _median(values: Values, confidence: float) -> Summary:
    """Return the median of ``values``."""
    n = len(values)
    few = decides_nothing(n, confidence)
    method = f"range of all {n}, too few for {confidence:.0%}" if few else "order statistics"
    return float(np.median(values)), *median_interval(values, confidence), method


def limits_of(series: Series) -> Limits | None:
    """Return between which numbers every value of ``series`` must lie: what it says itself; 0 and 1 for shares."""
    share = series.unit == "yes or no" or (series.unit.startswith("share") and "distance" not in series.unit)
    return series.limits or ((0.0, 1.0) if share else None)


def _mean(values: Values, confidence: float, limits: Limits | None) -> Summary:
    """Return the mean of ``values``, none of which can leave ``limits``, if there are any."""
    values = np.sort(values)
    n = len(values)
    mean = float(
        values.mean() if values[0] < values[-1] else values[0]
    )  # that of equal values may round away from them
    if limits is not None:
        method = f"Gaffke's bounds for values in [{limits[0]:.3g}, {limits[1]:.3g}], {draws_for(n)} draws"
        return mean, *bounded_interval(values, limits, confidence), method
    if isfinite(mean) and values[0] < values[-1]:
        return mean, *skewed_interval(values, confidence), UNLIMITED
    reason = "one sample" if n == 1 else "all values equal" if isfinite(mean) else "infinite values"
    return mean, nan, nan, f"{reason}: no interval"


@lru_cache(maxsize=2)
def _draws(n: int) -> Int[np.ndarray, "r n"]:
    """Return how often each of ``n`` samples occurs in each resample; the draws depend on n alone."""
    rng = np.random.default_rng(abs(hashed("bootstrap", n)))
    counts = np.empty((draws_for(n), n), dtype=np.int8)  # a sample is drawn once on average, and never a hundred times
    for row in counts:
        row[:] = np.bincount(rng.integers(0, n, n), minlength=n)
    return counts


def _resampled_medians(values: Values) -> Float[np.ndarray, "r"]:
    """Return the median of ``values`` in each resample."""
    counts, n = _draws(len(values)), len(values)
    order = np.argsort(values, kind="stable")
    result = np.empty(len(counts))
    step = max(1, 2**22 // n)  # rows at a time, so that memory stays bounded
    for top in range(0, len(counts), step):
        cumulative = counts[top : top + step, order].cumsum(1, dtype=np.int32)
        # The sample in the middle, or the two there are: the first whose cumulative count reaches its rank.
        middle = [values[order[(cumulative >= rank).argmax(1)]] for rank in ((n + 1) // 2, n // 2 + 1)]
        result[top : top + step] = (middle[0] + middle[1]) / 2
    return result


def _median_difference(left: Values, right: Values, confidence: float) -> tuple[float, float]:
    """Return the percentile interval of the difference of two medians over resampled samples (Efron 1979)."""
    if np.median(left) < np.median(right):  # one way round, so that swapping the two swaps the ends
        low, high = _median_difference(right, left, confidence)
        return -high, -low
    order = np.lexsort((right, left))  # so that draws meet the samples in the same order however these are ordered
    draws = _resampled_medians(left[order]) - _resampled_medians(right[order])
    low, high = np.quantile(draws, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


Outcome = Literal["a is better", "b is better", "tied", "a is lower", "a is higher"]


class Difference(Record):
    """The difference ``a - b`` of the same statistic on the same samples, and what may be said of it."""

    value: Number
    low: Number
    high: Number
    n: int
    outcome: Outcome
    paired: bool = True
    """Sample by sample, or from the intervals of the two numbers, which tells less."""


@np.errstate(invalid="ignore")  # infinite values have no difference: it is nan, which says so
def paired(a: Series, b: Series, statistic: str, better: Better, confidence: float = 0.95) -> Difference:
    """Return the difference of two encoders' statistics on the samples where both are defined; *tied* if it may be 0.

    Values that differ by no more than rounding count as equal.

    The interval is that of a mean, of the samples' differences, or a bootstrap's for medians. So few samples that even one
    sign throughout would be chance (fewer than 6) are tied.

    Raises:
        ValueError: the two run over different numbers of samples.
    """
    left, right = np.asarray(a.values, dtype=np.float64), np.asarray(b.values, dtype=np.float64)
    if len(left) != len(right):
        raise ValueError(f"paired series need the same samples, got {len(left)} and {len(right)}")
    both = ~(np.isnan(left) | np.isnan(right))
    left, right = left[both], right[both]
    # What rounding makes of equal values is no difference: where it is the same for all images, it would decide.
    right = np.where(np.isclose(left, right, rtol=ROUNDING, atol=0), left, right)
    n = len(left)
    if not n:
        return Difference(value=nan, low=nan, high=nan, n=0, outcome="tied")
    if statistic == "median":
        value = float(np.median(left) - np.median(right))
        low, high = _median_difference(left, right, confidence)
    else:
        ours, theirs = limits_of(a), limits_of(b)
        limits = (ours[0] - theirs[1], ours[1] - theirs[0]) if ours and theirs else None
        differences = np.sort(left - right)
        value = float(differences.mean())
        interval = skewed_interval if limits is None else partial(bounded_interval, limits=limits)
        low, high = interval(differences, confidence=confidence)
    tied = low <= 0 <= high or isnan(value + low + high) or decides_nothing(n, confidence)
    return Difference(value=value, low=low, high=high, n=n, outcome="tied" if tied else _outcome(value, better))


def unpaired(a: Estimate, b: Estimate) -> Difference:
    """Return the difference of two numbers from their intervals alone, as if they were independent.

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
