"""A median of shares of pairs as each image moves it, so that two encoders are compared image by image.

With ``F`` the share of pairs of images within a distance, ``D`` displacements and ``m`` their median, ``F(m)`` moves with
each image ``i`` by its influence (Hoeffding 1948 for pairs, Hampel 1974 for medians),

    sign(s_i - F(m)) / (2 h) + 2 (F_i(m) - F(m)),

where ``s_i = F(D_i)``, ``h`` is the density of the ``s_i`` at their median, and ``F_i`` the share of the others near ``i``.
The density is read off order statistics two standard deviations of a rank away (McKean and Schrader 1984), on the side on
which they are sparser: at a gap in the middle both sides together make intervals that cover .84.
"""

from __future__ import annotations

from math import nan, sqrt

import numpy as np

from holdfast.core.records import Series
from holdfast.core.statistics.intervals import Values


def quantile_influence(quantiles: Series, near: Values, references: int) -> Series:
    """Return values of the images whose mean is the median of ``quantiles``: the median itself and each image's influence.

    Args:
        quantiles: each attacked image's share of pairs within its displacement.
        near: of the same images, the share of the others within the median displacement; nan of those that are not among
            the references.
        references: how many images the pairs are of. Where few of them are attacked, chance in who the others are weighs
            less, by ``sqrt(attacked / references)``.
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
