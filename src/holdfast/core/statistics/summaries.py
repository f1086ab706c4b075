"""From one value per sample to a typed series and to a number with its interval.

All averages of the library are taken here.
"""

from __future__ import annotations

from collections.abc import Callable
from math import hypot, inf, isfinite, isnan, nan
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float, Shaped

from holdfast.core.errors import HoldfastError
from holdfast.core.records import Claim, Conditions, Estimate, Series
from holdfast.core.statistics.intervals import (
    Limits,
    Values,
    bounded_interval,
    decides_nothing,
    draws_for,
    median_interval,
    share_interval,
    skewed_interval,
)

Better = Literal["lower", "higher", "neither"]
UNLIMITED = (
    "Student's interval, widened by skewness; too short where few samples, perhaps none seen, hold most of the mean"
)
"""The method of means of values without limits: what the sample does not show, no interval can allow for."""
AS_A_WHOLE = {"series": None, "statistic": "whole"}
"""Fields of what is not compared image by image: another encoder's scale would be taken as given."""
Summary = tuple[float, float, float, str]
"""A value, the two ends of its interval and the method."""


def summarise(
    series: Series,
    statistic: Literal["mean", "median", "share"],
    better: Better,
    quantity: str | None = None,
    most: float | None = None,
) -> Estimate:
    """Mean, median or share of a series with its interval, without undefined values.

    The share is a mean of zeros and ones. The interval of a mean uses limits if there are any.

    Args:
        series: One value per sample.
        statistic: ``mean``, ``median`` or ``share``.
        better: Whether ``lower`` or ``higher`` values are better, or ``neither``.
        quantity: Name of the number; by default that of the series.
        most: Largest possible value, for limits [0, ``most``]; None uses the limits of the series.

    Raises:
        HoldfastError: ``statistic`` is ``share`` and a value is neither 0 nor 1.
    """
    values = np.asarray(series.values, dtype=np.float64)
    values = values[~np.isnan(values)]
    n, missing = len(values), len(series.values) - len(values)
    reason = f"{missing} of {len(series.values)} samples undefined: {next(iter(series.reasons.values()), 'no reason')}"
    limits = limits_of(series) if most is None else (0.0, most)
    if not n:
        value, low, high, method = nan, nan, nan, "undefined"
    elif statistic == "share":
        value, low, high, method = _share(values, series.quantity)
    elif statistic == "median":
        value, (low, high) = float(np.median(values)), median_interval(values)
        method = f"range of all {n}, too few for 95%" if decides_nothing(n, 0.95) else "order statistics"
    else:
        value, low, high, method = _mean(values, limits)
    return Estimate(
        quantity=quantity or series.quantity,
        conditions=series.conditions,
        value=value,
        low=low,
        high=high,
        n=n,
        method=method,
        unit="fraction of samples" if statistic == "share" else series.unit,
        claim=series.claim,
        of=series.of,
        better=better,
        series=series.quantity,
        statistic="median" if statistic == "median" else "mean",
        reason=reason if missing else None if n else "no samples",
    )


def over_references(median: Estimate, near: Values) -> Estimate:
    """Widen the interval of ``median`` for variation in the reference images.

    ``near`` is the share of the others that lie within the median displacement of each reference image. Its mean is a mean
    over pairs, in which an image not drawn takes part twice (Hoeffding 1948): hence twice its deviations. Both ways in
    which chance enters add up in squares (Zou and Donner 2008, https://doi.org/10.1002/sim.3095).
    """
    if not len(near) or not median.n:
        return median
    share = float(near.mean())
    low, high = bounded_interval(2 * near - share, (-share, 2 - share), median.confidence)
    low = max(0.0, median.value - hypot(median.value - median.low, share - low))
    high = min(1.0, median.value + hypot(median.high - median.value, high - share))
    method = f"{median.method} and, for the {len(near)} reference images, Gaffke's bounds; added in squares"
    return median.model_copy(update={"low": low, "high": high, "method": method, **AS_A_WHOLE})


class Scale(NamedTuple):
    """The median of what numbers are shares of, with its interval."""

    value: float
    """Median that numbers are relative to."""
    low: float
    high: float
    n: int
    """Distances that it is the median of."""


def chained_median(distances: Values) -> Scale:
    """Median of distances between images that form a ring; nan if it is not positive.

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
    low, high = np.quantile(distances[known], share_interval(count / 2, count))
    return Scale(value, float(low), float(high), n)


def over_scale(share: Estimate, scale: Scale) -> Estimate:
    """Widen the interval of a ratio for variation in the scale it is relative to.

    Both ways in which chance enters add up in squares (Zou and Donner 2008, https://doi.org/10.1002/sim.3095).
    """
    value, low, high = share.value, share.low, share.high
    if isfinite(value):
        # The smallest scale gives the largest share, and one that may be zero any.
        least, most = value * scale.value / scale.high, value * scale.value / scale.low if scale.low > 0 else inf
        low, high = max(0.0, value - hypot(value - low, value - least)), value + hypot(high - value, most - value)
    method = f"{share.method} and those of the median of {scale.n} clean distances; added in squares"
    return share.model_copy(update={"low": low, "high": high, "method": method, **AS_A_WHOLE})


def _share(values: Values, quantity: str) -> Summary:
    if not np.isin(values, (0, 1)).all():
        other = next(value for value in values.tolist() if value not in (0, 1))
        raise HoldfastError(
            f"a fraction of samples needs values 0 and 1, got {other:g}; summarise {quantity} as a mean"
        )
    successes, n = int(values.sum()), len(values)
    return successes / n, *share_interval(successes, n), "mid-P"


def is_share(unit: str) -> bool:
    """True if numbers of this unit lie between 0 and 1: counts over counts, or yes or no.

    Example:
        >>> is_share("fraction of pairs"), is_share("yes or no"), is_share("fraction of clean distance")
        (True, True, False)
    """
    return unit == "yes or no" or (unit.startswith(("fraction", "share")) and "distance" not in unit)


def limits_of(series: Series) -> Limits | None:
    """Range of every value of ``series``: its own limits, or 0 and 1 for fractions."""
    return series.limits or ((0.0, 1.0) if is_share(series.unit) else None)


def _mean(values: Values, limits: Limits | None) -> Summary:
    values = np.sort(values)
    n = len(values)
    # The mean of equal values may round away from them.
    mean = float(values.mean() if values[0] < values[-1] else values[0])
    if limits is not None:
        method = f"Gaffke's bounds for values in [{0.0 + limits[0]:.3g}, {limits[1]:.3g}], {draws_for(n)} draws"
        return mean, *bounded_interval(values, limits), method
    if isfinite(mean) and values[0] < values[-1]:
        return mean, *skewed_interval(values), UNLIMITED
    reason = "one sample" if n == 1 else "all values equal" if isfinite(mean) else "infinite values"
    return mean, nan, nan, f"{reason}: no interval"


def series_of(
    quantity: str,
    conditions: Conditions,
    values: Shaped[Any, "n"],
    unit: str,
    claim: Claim,
    of: str,
    reason: str | Callable[[int], str],
) -> Series:
    """Turn one value per sample into a series; nan values are missing for ``reason``.

    Args:
        quantity: Name of the metric.
        conditions: Conditions of the measurement, by name.
        values: One value per sample, tensor or array of shape (n,).
        unit: Unit of the values.
        claim: Bound type of the values.
        of: Quantity that the values bound or estimate.
        reason: Why a value may be missing, or a function from its position to that.

    Example:
        >>> import torch
        >>> series_of("risk", {}, torch.tensor([0.5, torch.nan]), "share", Claim.ESTIMATE, "risk", "a zero code").reasons
        {1: 'a zero code'}
    """
    numbers = [float(value) for value in values.tolist()]
    return Series(
        quantity=quantity,
        conditions=conditions,
        values=tuple(numbers),
        unit=unit,
        claim=claim,
        of=of,
        reasons={k: reason(k) if callable(reason) else reason for k, value in enumerate(numbers) if isnan(value)},
    )


def without_interval(
    quantity: str,
    conditions: Conditions,
    value: float,
    n: int,
    method: str,
    unit: str,
    of: str,
    better: Better = "neither",
    reason: str | None = None,
) -> Estimate:
    """Number that has no interval; ``method`` says why."""
    return Estimate(**locals(), low=nan, high=nan, claim=Claim.ESTIMATE)


def ratio_of_means(top: Float[Any, "n"], bottom: Float[Any, "n"]) -> Float[Any, "n"]:
    """Values whose mean is ``mean(top) / mean(bottom)``: the ratio plus each influence.

    So its interval and its paired comparisons are those of a mean, and allow for the chance in both means (the delta
    method). All nan where the lower mean is zero.

    Example:
        >>> import torch
        >>> ratio_of_means(torch.tensor([1.0, 0.0, 1.0, 0.0]), torch.tensor([1.0, 1.0, 1.0, 0.0])).mean()
        tensor(0.6667)
    """
    if (mean := bottom.mean()) == 0:
        return top * nan
    ratio = top.mean() / mean
    return ratio + (top - ratio * bottom) / mean
