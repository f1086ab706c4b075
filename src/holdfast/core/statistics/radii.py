"""From the radius at which each sample is lost to quantiles and a curve, where some are not lost within the widest searched.

Such a radius is infinite: all that is known is that it lies beyond. Order statistics need no more, so quantiles and their
intervals are exact whatever the distribution, and an end that falls among samples that were not lost is infinite, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan, nan

import numpy as np

from holdfast.core.records import Curve, Estimate, Findings, Series
from holdfast.core.statistics import summarise
from holdfast.core.statistics.intervals import Values, quantile_interval, share_interval

QUARTILES = {"first_quartile": 0.25, "third_quartile": 0.75}
LEVELS = 255
"""Of a pixel: radii are drawn in steps of an 8-bit image."""
POINTS = 81
BEYOND = 1.1
"""How much farther than the largest finite radius the curve goes."""


def radius_estimates(series: Series) -> tuple[Estimate, ...]:
    """Return the median radius and the quartiles, with intervals.

    Example:
        >>> from math import inf
        >>> from holdfast.core.records import Claim
        >>> radii = Series(quantity="r", values=(1.0, 2.0, 3.0, inf, inf, inf, inf), unit="", claim=Claim.UPPER, of="r")
        >>> [(estimate.quantity, estimate.value, estimate.low, estimate.high) for estimate in radius_estimates(radii)]
        [('r', inf, 1.0, inf), ('r_first_quartile', 2.0, 0.0, inf), ('r_third_quartile', inf, 3.0, inf)]
    """
    median = summarise(series, "median", "higher")
    known = np.array([value for value in series.values if not isnan(value)])
    return (median, *(_quantile(median, known, name, share) for name, share in QUARTILES.items()))


def radius_findings(ids: Sequence[str], series: Sequence[Series], norm: str, warnings: Sequence[str]) -> Findings:
    """Return series of radii in one norm with their quartiles and curves."""
    return Findings(
        ids=tuple(ids),
        series=tuple(series),
        estimates=tuple(estimate for radii in series for estimate in radius_estimates(radii)),
        curves=tuple(curve for radii in series for curve in lost_curve(radii, norm)),
        warnings=tuple(warnings),
    )


def _quantile(median: Estimate, values: Values, name: str, share: float) -> Estimate:
    """Return another quantile than the ``median`` of the same values."""
    value, low, high, method = nan, nan, nan, "undefined"
    if len(values):
        value = float(np.quantile(values, share, method="inverted_cdf"))
        low, high = quantile_interval(values, share, median.confidence)
        method = "order statistics"
    update = {"quantity": f"{median.quantity}_{name}", "value": value, "low": max(0.0, low) if low == low else low}
    # No part of it belongs to one sample: two encoders' quartiles are compared by their intervals.
    update |= {"high": high, "method": method, "series": None, "statistic": "whole"}
    return median.model_copy(update=update)


def lost_curve(series: Series, norm: str) -> tuple[Curve, ...]:
    """Return the share of samples that are lost at or below each radius, in steps of an 8-bit image; none if none is lost.

    Its band holds each share by itself, with mid-P intervals.
    """
    radii = np.sort([value for value in series.values if not isnan(value)])
    finite = radii[np.isfinite(radii)]
    if not len(finite) or not finite[-1] > 0:
        return ()
    grid = np.linspace(0, BEYOND * finite[-1], POINTS)
    counts = np.searchsorted(radii, grid, side="right").tolist()
    ends = {count: share_interval(count, len(radii)) for count in set(counts)}
    return (
        Curve(
            quantity=f"{series.quantity}_lost",
            conditions={**series.conditions, "ball": norm},
            x_label=f"{norm} radius in 1/{LEVELS}",
            y_label="share lost",
            x=tuple((LEVELS * grid).tolist()),
            y=tuple(count / len(radii) for count in counts),
            low=tuple(ends[count][0] for count in counts),
            high=tuple(ends[count][1] for count in counts),
        ),
    )
