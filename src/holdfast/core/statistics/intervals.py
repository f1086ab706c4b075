"""Intervals of fractions, medians and means, and Weibull fits of small positive values.

Every function names its method.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import inf, nan, sqrt
from typing import Literal

import numpy as np
from jaxtyping import Float

from holdfast.core.files import hashed

MOST_DRAWS, ALL_DRAWS = 2000, 40_000_000
Values = Float[np.ndarray, "n"]
Limits = tuple[float, float]
"""Two numbers between which every value of the population lies, sampled or not."""


def draws_for(n: int) -> int:
    """Number of random weightings of ``n`` samples: 2000, or fewer (at least 200) if slow."""
    return max(200, min(MOST_DRAWS, ALL_DRAWS // n))


def decides_nothing(n: int, confidence: float) -> bool:
    """True if ``n`` samples are too few for any interval free of assumptions."""
    return 2.0 ** (1 - n) > 1 - confidence


def share_interval(successes: int | float, n: int | float, confidence: float = 0.95) -> tuple[float, float]:
    """Mid-P interval of a fraction (Lancaster 1961).

    Samples that depend on each other count for fewer, in fractions (Korn and Graubard 1998).

    Where few fail, Wilson's covers as little as 84%, and that of Clopper and Pearson nearly always 98% and more.

    Args:
        successes: Samples that count; may be fractional.

    Example:
        >>> low, high = share_interval(0, 1024)
        >>> low, round(high, 4)
        (0.0, 0.0029)
    """
    tail = (1 - confidence) / 2
    return _lowest_share(successes, n, tail), 1 - _lowest_share(n - successes, n, tail)


@lru_cache(4096)
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
    """Order statistics that cover the median, whatever the distribution.

    Too few samples (fewer than 6 for 95%) give their whole range.
    """
    from scipy.stats import binom

    n = len(values)
    below = int(binom.ppf((1 - confidence) / 2, n, 0.5))
    rank = max(1, below)  # the largest with P(B < rank) <= (1 - confidence) / 2
    ordered = np.sort(values)
    return float(ordered[rank - 1]), float(ordered[n - rank])


def quantile_interval(values: Values, share: float, confidence: float = 0.95) -> tuple[float, float]:
    """Order statistics that cover a quantile, whatever the distribution.

    An end for which there are too few samples is infinite. Samples may be infinite: known to lie beyond a limit.

    Example:
        >>> quantile_interval(np.arange(1.0, 101.0), 0.25)
        (17.0, 35.0)
        >>> quantile_interval(np.arange(1.0, 10.0), 0.25)
        (-inf, 6.0)
    """
    from scipy.stats import binom

    n, tail = len(values), (1 - confidence) / 2
    ordered = np.sort(values)
    # The largest rank with P(B < rank) <= tail, and the smallest with P(B >= rank) <= tail; B counts samples below it.
    below, above = int(binom.ppf(tail, n, share)), int(binom.ppf(1 - tail, n, share)) + 1
    low = float(ordered[below - 1]) if below else -inf
    return low, float(ordered[above - 1]) if above <= n else inf


def quantiles(values: Values, shares: tuple[float, float]) -> tuple[float, float]:
    """Two quantiles, interpolated if all values are finite, else values that occur."""
    method: Literal["linear", "inverted_cdf"] = "linear" if np.isfinite(values).all() else "inverted_cdf"
    low, high = np.quantile(values, shares, method=method)
    return float(low), float(high)


def bounded_interval(values: Values, limits: Limits, confidence: float = 0.95) -> tuple[float, float]:
    """Interval of the mean of values with known limits (Gaffke 2005).

    An image that was not sampled may have any value within the limits. So each end is taken over the samples and one more
    at the limit on that side, under random weights: the share of the population that each image stands for (Learned-Miller
    and Thomas 2019, https://arxiv.org/abs/1905.06208). For yes or no this is the interval of Clopper and Pearson; for their
    paired differences, McNemar's exact test.

    Example:
        >>> low, high = bounded_interval(np.zeros(1000), (0.0, 1.0))
        >>> low, round(high, 3)
        (0.0, 0.004)
    """
    return weighted_ends(values, limits, random_weights(len(values)), confidence)


def weighted_ends(
    values: Values, limits: Limits, weights: Float[np.ndarray, "r n"], confidence: float
) -> tuple[float, float]:
    """Ends of a mean under random weights, each with one more sample at the limit on its side.

    Args:
        weights: Random weights, shape (r, n); the rest to 1 goes to the added sample.
    """
    least, most = limits
    # Sorted, so that the weights meet the values in the same order however the images are ordered.
    ordered, mean = np.sort(values), float(values.mean())
    sums = [weights @ room.astype(np.float32) for room in ((ordered - least)[::-1], most - ordered)]
    above, below = np.quantile(sums, (1 - confidence) / 2, axis=1).tolist()
    return min(least + above, mean), max(most - below, mean)


@lru_cache(maxsize=2)
def random_weights(n: int) -> Float[np.ndarray, "r n"]:
    """Random weights of ``n`` samples and one more, uniform among weights that sum to 1."""
    rng = np.random.default_rng(abs(hashed("weights", n)))
    weights = rng.standard_exponential((draws_for(n), n + 1), dtype=np.float32)
    return weights[:, :n] / weights.sum(1, keepdims=True)


def skewed_interval(values: Values, confidence: float = 0.95) -> tuple[float, float]:
    """Interval of the mean of values without limits: Student's, widened for skewness.

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


def jackknife(statistic: Callable[[list[int]], float], n: int, groups: int = 10) -> tuple[float, float]:
    """95% interval of a smooth statistic by leaving out one group of samples at a time.

    Shao and Tu 1995; for statistics too slow to resample thousands of times.

    Args:
        statistic: Function from the rows to use to the statistic.
    """
    if n < 2:
        return nan, nan
    everyone = list(range(n))
    groups = min(groups, n)
    left_out = [statistic([row for row in everyone if row % groups != group]) for group in range(groups)]
    return jackknife_interval(statistic(everyone), np.array(left_out))


def jackknife_interval(whole: float, left_out: Float[np.ndarray, "g"]) -> tuple[float, float]:
    """95% interval of a statistic from its values without one group of samples at a time.

    Example:
        >>> low, high = jackknife_interval(2.0, np.array([1.9, 2.0, 2.1]))
        >>> round((low + high) / 2, 6), low < 2 < high
        (2.0, True)
    """
    from scipy.special import stdtrit

    groups = len(left_out)
    error = sqrt((groups - 1) / groups * float(((left_out - left_out.mean()) ** 2).sum()))
    half = float(stdtrit(groups - 1, 0.975)) * error
    centre = groups * whole - (groups - 1) * float(left_out.mean())  # without its first-order bias
    return centre - half, centre + half


FLATTEST, STEEPEST = 1e-3, 1e4
"""Range of shapes; the values of a row that is steeper still are one, for all one can see."""
HALVINGS = 50
Rows = Float[np.ndarray, "r k"]
Each = Float[np.ndarray, "r"]


def fit(values: Rows, flattest: float = FLATTEST) -> tuple[Each, Each]:
    """Fit a Weibull distribution to each row by maximum likelihood.

    The shape ``a`` solves ``sum x^a ln x / sum x^a - 1/a = mean ln x``. Its left side grows with ``a``, so there is one
    solution; of values that are all the same it is infinite.

    Args:
        flattest: Smallest shape parameter to consider, above 0.

    Returns:
        Shape and scale of each row; the shape is infinite if all values are the same.

    Example:
        >>> shape, scale = fit(np.array([[0.1, 0.2, 0.3, 0.4]]))
        >>> shape.round(2).tolist(), scale.round(2).tolist()
        ([2.45], [0.28])
    """
    top = values.max(axis=-1)
    logs = np.log(values / top[..., None])
    mean = logs.mean(axis=-1)
    low, high = np.full(top.shape, np.log(flattest)), np.full(top.shape, np.log(STEEPEST))
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        weights = np.exp(np.exp(middle)[..., None] * logs)
        flat = (weights * logs).sum(axis=-1) / weights.sum(axis=-1) - np.exp(-middle) < mean
        low, high = np.where(flat, middle, low), np.where(flat, high, middle)
    shape = np.exp((low + high) / 2)
    scale = top * np.exp(shape[..., None] * logs).mean(axis=-1) ** (1 / shape)
    return np.where(shape < STEEPEST * (1 - 1e-9), shape, np.inf), scale


def log_likelihood(values: Rows, shape: Each, scale: Each) -> Each:
    """Log-likelihood of each row under a Weibull distribution."""
    from scipy.stats import weibull_min

    return np.sum(weibull_min.logpdf(values, shape[..., None], scale=scale[..., None]), axis=-1)


def misfit(values: Float[np.ndarray, "k"], shape: float, scale: float) -> tuple[float, float]:
    """Kolmogorov-Smirnov distance between values and a Weibull distribution, and p-value."""
    from scipy.stats import kstest, weibull_min

    # Its parameters are given as such: a frozen law takes longer to make than to use.
    test = kstest(values, weibull_min.cdf, (shape, 0.0, scale))
    return float(test.statistic), float(test.pvalue)
