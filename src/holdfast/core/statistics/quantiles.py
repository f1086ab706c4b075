"""Medians over pairs with the influence of each image, and quantiles of radii that may lie beyond the search."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan, nan, sqrt

import numpy as np

from holdfast.core.records import Curve, Estimate, Findings, Series
from holdfast.core.statistics.intervals import Values, quantile_interval, share_interval
from holdfast.core.statistics.summaries import summarise

# A median of shares of pairs as each image moves it, so that two encoders are compared image by image.
#
# With ``F`` the share of pairs of images within a distance, ``D`` displacements and ``m`` their median, ``F(m)``
# moves with each image ``i`` by its influence (Hoeffding 1948 for pairs, Hampel 1974 for medians),
#
#     sign(s_i - F(m)) / (2 h) + 2 (F_i(m) - F(m)),
#
# where ``s_i = F(D_i)``, ``h`` is the density of the ``s_i`` at their median, and ``F_i`` the share of the others
# near ``i``. The density is read off order statistics two standard deviations of a rank away (McKean and Schrader
# 1984), on the side on which they are sparser: at a gap in the middle both sides together make intervals that cover
# .84.


def quantile_influence(quantiles: Series, near: Values, references: int) -> Series:
    """Values of the images whose mean is the median: the median plus each image's influence.

    Args:
        near: Fraction of other images within the median displacement, per image; nan if no reference image.
        references: Images that make up the pairs. If few of them are attacked, variation in the others weighs less, by
            ``sqrt(attacked / references)``.
    """
    values = np.asarray(quantiles.values, dtype=np.float64)
    defined = ~np.isnan(values)
    influence = np.full(len(values), nan)
    limits = None
    if defined.any():
        shares, count = values[defined], int(defined.sum())
        median, step = float(np.median(shares)), min(0.5, 1 / sqrt(count))
        below, above = np.quantile(shares, [0.5 - step, 0.5 + step])
        spread = max(above - median, median - below) / step  # one over the density
        sides = np.sign(shares - median) / 2 * spread
        others = near[defined]
        others = np.zeros(count) if np.isnan(others).all() else np.nan_to_num(others - np.nanmean(others))
        weight = 2 * sqrt(min(1.0, count / max(1, references)))
        influence[defined] = median + sides - sides.mean() + weight * others
        # One more image may be carried to the other side, or be near as many as any that was seen and one pair more.
        pair = weight / max(1, references - 1)
        reach = max(spread / 2, weight * float(np.abs(others).max()) + pair)
        limits = (float(median - reach), float(median + reach))
    update = {"quantity": f"{quantiles.quantity}_influence", "values": tuple(influence.tolist()), "limits": limits}
    return quantiles.model_copy(update=update)


# The radius of a sample that is not lost within the widest searched is infinite: it lies beyond. Order statistics need no
# more, so quantiles and their intervals are exact, and an end that falls among such samples is infinite, too.

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
    """Findings about radii in one norm: series, quartiles and curves."""
    return Findings(
        ids=tuple(ids),
        series=tuple(series),
        estimates=tuple(estimate for radii in series for estimate in radius_estimates(radii)),
        curves=tuple(curve for radii in series for curve in lost_curve(radii, norm)),
        warnings=tuple(warnings),
    )


def _quantile(median: Estimate, values: Values, name: str, share: float) -> Estimate:
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
    """Curve of the fraction of samples lost within each radius; none if none is lost.

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
