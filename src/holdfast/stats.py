"""From one value per sample to a number with an interval. Every function names its method; nothing else averages."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import hypot, isfinite, isnan, nan, sqrt
from typing import Literal

import numpy as np
from jaxtyping import Float, Int

from holdfast.errors import HoldfastError
from holdfast.noise import hashed
from holdfast.result import Estimate, Number, Record, Series

MOST_RESAMPLES, ALL_DRAWS = 2000, 40_000_000
Values = Float[np.ndarray, "n"]
Better = Literal["lower", "higher", "neither"]
Summary = tuple[float, float, float, str]
"""A value, the two ends of its interval and the method."""


def resamples(n: int) -> int:
    """Return how many resamples of ``n`` samples are drawn: 2000, fewer (but 200) where each takes long."""
    return max(200, min(MOST_RESAMPLES, ALL_DRAWS // n))


def decides_nothing(n: int, confidence: float) -> bool:
    """Return whether ``n`` samples are too few for any interval free of assumptions: even if all fall on one side."""
    return 2.0 ** (1 - n) > 1 - confidence


def wilson(successes: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Return Wilson's interval for a share (Wilson 1927).

    Example:
        >>> low, high = wilson(0, 1024)
        >>> round(high, 4)
        0.0037
    """
    from scipy.special import ndtri

    z = float(ndtri((1 + confidence) / 2))
    share, weight = successes / n, z * z / n
    centre, spread = share + weight / 2, z * sqrt(share * (1 - share) / n + weight / (4 * n))
    low, high = (centre - spread) / (1 + weight), (centre + spread) / (1 + weight)
    # At 0 and n the formula gives the end itself, but for rounding.
    return (0.0 if successes == 0 else low), (1.0 if successes == n else high)


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


def bootstrap(values: Values, confidence: float = 0.95) -> tuple[float, float]:
    """Return the BCa interval of the mean over resampled images (Efron 1987), which follows skewed values.

    The draws depend on n alone, so paired series resample the same images.
    """
    from scipy.special import ndtr, ndtri

    if not np.isfinite(values).all():
        return nan, nan
    draws, mean = _resampled(tuple(values.tolist()), "mean"), values.mean()
    centred = values - mean
    spread = float((centred**2).sum())
    if spread == 0:
        return float(mean), float(mean)
    acceleration = float((centred**3).sum()) / (6 * spread**1.5)
    # Half of the ties, so that a discrete distribution is not taken for a shifted one.
    below = ((draws < mean).sum() + (draws == mean).sum() / 2) / len(draws)
    shift = float(ndtri(np.clip(below, 1 / len(draws), 1 - 1 / len(draws))))
    ends = shift + ndtri(np.array([(1 - confidence) / 2, (1 + confidence) / 2]))
    low, high = np.quantile(draws, ndtr(shift + ends / (1 - acceleration * ends)))
    return float(min(low, mean)), float(max(high, mean))


def jackknife(
    statistic: Callable[[list[int]], float], n: int, groups: int = 10, confidence: float = 0.95
) -> tuple[float, float]:
    """Return the interval of a smooth ``statistic`` of samples by deleting one group at a time (Shao and Tu 1995).

    ``statistic`` takes the rows to use. For statistics too dear to resample thousands of times.
    """
    from scipy.special import stdtrit

    if n < 2:
        return nan, nan
    everyone = list(range(n))
    groups = min(groups, n)
    left_out = np.array([statistic([row for row in everyone if row % groups != group]) for group in range(groups)])
    error = sqrt((groups - 1) / groups * float(((left_out - left_out.mean()) ** 2).sum()))
    half = float(stdtrit(groups - 1, (1 + confidence) / 2)) * error
    centre = groups * statistic(everyone) - (groups - 1) * float(left_out.mean())  # without its first-order bias
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

    A mean of values that are all equal has a bootstrap interval of length zero, which says nothing about what was not
    seen; if no value can leave [0, ``most``] (shares: 1), the Wilson interval for the share of samples with another
    value is added, and where there is no such limit there is no interval.

    Raises:
        HoldfastError: a share of values other than 0 and 1.
    """
    values = np.asarray(series.values, dtype=np.float64)
    values = values[~np.isnan(values)]
    n, missing = len(values), len(series.values) - len(values)
    reason = f"{missing} of {len(series.values)} samples undefined: {next(iter(series.reasons.values()), 'no reason')}"
    if most is None and series.unit.startswith("share"):
        most = 1.0
    if not n:
        value, low, high, method = nan, nan, nan, "undefined"
    elif statistic == "share":
        value, low, high, method = _share(values, confidence, series.quantity)
    elif statistic == "median":
        value, low, high, method = _median(values, confidence)
    else:
        value, low, high, method = _mean(values, confidence, most)
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


def _share(values: Values, confidence: float, quantity: str) -> Summary:
    """Return the share of ones among ``values``."""
    if not np.isin(values, (0, 1)).all():
        other = next(value for value in values.tolist() if value not in (0, 1))
        raise HoldfastError(f"a share of samples needs values 0 and 1, got {other:g}; summarise {quantity} as a mean")
    successes, n = int(values.sum()), len(values)
    return successes / n, *wilson(successes, n, confidence), "Wilson"


def _median(values: Values, confidence: float) -> Summary:
    """Return the median of ``values``."""
    n = len(values)
    few = decides_nothing(n, confidence)
    method = f"range of all {n}, too few for {confidence:.0%}" if few else "order statistics"
    return float(np.median(values)), *median_interval(values, confidence), method


def _mean(values: Values, confidence: float, most: float | None) -> Summary:
    """Return the mean of ``values``, none of which can leave [0, ``most``]."""
    n, lowest, highest = len(values), float(values.min()), float(values.max())
    if lowest < highest:
        method = f"BCa bootstrap over samples, {resamples(n)} resamples"
        return float(values.mean()), *bootstrap(values, confidence), method
    # The mean of equal values may round away from them.
    if most is not None and 0 <= lowest <= most:
        unseen = wilson(0, n, confidence)[1]
        return lowest, lowest * (1 - unseen), lowest + (most - lowest) * unseen, "all values equal: Wilson"
    return lowest, nan, nan, "one sample: no interval" if n == 1 else "all values equal: no interval"


@lru_cache(maxsize=2)
def _draws(n: int) -> Int[np.ndarray, "r n"]:
    """Return how often each of ``n`` samples occurs in each resample; the draws depend on n alone."""
    rng = np.random.default_rng(abs(hashed("bootstrap", n)))
    counts = np.empty((resamples(n), n), dtype=np.int8)  # a sample is drawn once on average, and never a hundred times
    for row in counts:
        row[:] = np.bincount(rng.integers(0, n, n), minlength=n)
    return counts


@lru_cache(maxsize=64)
def _resampled(values: tuple[float, ...], statistic: str) -> Float[np.ndarray, "r"]:
    """Return the mean or median of ``values`` in each resample. Kept, for each encoder meets all others."""
    counts, n = _draws(len(values)), len(values)
    order = np.argsort(np.asarray(values))
    numbers = np.asarray(values)[order]
    result = np.empty(len(counts))
    step = max(1, 2**22 // n)  # rows at a time, so that memory stays bounded
    for top in range(0, len(counts), step):
        part = counts[top : top + step, order]
        if statistic != "median":
            result[top : top + step] = part @ numbers / n
            continue
        seen = part.cumsum(1, dtype=np.int32)
        # The sample in the middle, or the two there are: the first at which enough have been seen.
        middle = [numbers[(seen >= rank).argmax(1)] for rank in ((n + 1) // 2, n // 2 + 1)]
        result[top : top + step] = (middle[0] + middle[1]) / 2
    return result


def _student(differences: Values, confidence: float) -> tuple[float, float]:
    """Return Student's interval of a mean: resampling few samples gives intervals that are too short."""
    from scipy.special import stdtrit

    n = len(differences)
    if n < 2:
        return nan, nan
    half = float(stdtrit(n - 1, (1 + confidence) / 2)) * float(differences.std(ddof=1)) / sqrt(n)
    return float(differences.mean()) - half, float(differences.mean()) + half


def _mcnemar(left: Values, right: Values) -> float:
    """Return the exact chance of so uneven a split of the samples on which two yes-or-no series differ (McNemar 1947)."""
    from scipy.stats import binomtest

    ups, downs = int((left > right).sum()), int((left < right).sum())
    return float(binomtest(ups, ups + downs).pvalue) if ups + downs else 1.0


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

    The interval is a bootstrap's, or Student's for means of fewer than 50 samples. Series of yes and no must also pass
    McNemar's exact test, and so few samples that even one sign throughout would be chance (fewer than 6) are tied.

    Raises:
        ValueError: the two run over different numbers of samples.
    """
    left, right = np.asarray(a.values, dtype=np.float64), np.asarray(b.values, dtype=np.float64)
    if len(left) != len(right):
        raise ValueError(f"paired series need the same samples, got {len(left)} and {len(right)}")
    both = ~(np.isnan(left) | np.isnan(right))
    left, right = left[both], right[both]
    if not len(left):
        return Difference(value=nan, low=nan, high=nan, n=0, outcome="tied")
    draws = _resampled(tuple(left.tolist()), statistic) - _resampled(tuple(right.tolist()), statistic)
    low, high = (float(q) for q in np.quantile(draws, [(1 - confidence) / 2, (1 + confidence) / 2]))
    take = np.median if statistic == "median" else np.mean
    value = float(take(left) - take(right))
    if statistic != "median" and len(left) < 50:
        low, high = _student(left - right, confidence)
    if np.isin(left, (0, 1)).all() and np.isin(right, (0, 1)).all():
        chance = _mcnemar(left, right)
    else:
        chance = 2.0 ** (1 - len(left))
    tied = low <= 0 <= high or isnan(value + low + high) or chance > 1 - confidence
    return Difference(value=value, low=low, high=high, n=len(left), outcome="tied" if tied else _outcome(value, better))


def unpaired(a: Estimate, b: Estimate) -> Difference:
    """Return the difference of two numbers from their intervals alone, as if they were independent.

    The distances to the ends add up in squares (Zou and Donner 2008, https://doi.org/10.1002/sim.3095). Two encoders on
    the same inputs mostly err alike, so this says *tied* more often than it must.

    Example:
        >>> from holdfast.result import Claim
        >>> number = Estimate(quantity="q", value=1.0, low=0.7, high=1.3, n=9, method="", unit="", claim=Claim.ESTIMATE,
        ...                   of="", better="lower", statistic="whole")
        >>> apart = unpaired(number, number.model_copy(update={"value": 2.0, "low": 1.6, "high": 2.4}))
        >>> round(apart.low, 3), round(apart.high, 3), apart.outcome
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
