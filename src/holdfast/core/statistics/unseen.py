"""The mean of paired differences, allowing for an image that was not seen and no farther than what was seen suggests.

Each end is taken over the samples ``d`` and one more at ``r`` beyond zero on that side, under random weights. The weights
of samples are those of the Bayesian bootstrap (Rubin 1981, https://doi.org/10.1214/aos/1176345338). One more counts half,
as what was seen does in mid-P. Of values that are all zero or ``r`` the upper end is that of Jeffreys' interval, but for
half a zero.

    r = (1 - e) max |d| + e L,   e = exp(-sum |d| / 2 L)

``L`` is the farthest that any image can move the mean. Where nothing moved, one more image may go all the way. The more
has moved, the less do rare images count that are unlike all that were seen. How fast was chosen by simulation, among
encoders of equal risk of which one fails rarely and badly and the other often and a little
(``benchmarks.statistics.paired``). So this does not hold for every law: where one image in a thousand outweighs all small
differences, 300 images will mostly not show it. With ``r = L`` throughout (Gaffke 2005) intervals do, and are up to nine
times as long.
"""

from __future__ import annotations

from functools import lru_cache
from math import exp, nan

import numpy as np
from jaxtyping import Float

from holdfast.core.noise import hashed
from holdfast.core.statistics.clusters import Groups, weighted_interval
from holdfast.core.statistics.intervals import Limits, Values, draws_for, upper_end


@lru_cache(maxsize=1)
def weights_beside_half(n: int) -> Float[np.ndarray, "r n"]:
    """Return random weights of ``n`` samples that leave some to one more, which counts half: Dirichlet(1, ..., 1, 1/2)."""
    rng = np.random.default_rng(abs(hashed("unseen", n)))
    weights = rng.standard_exponential((draws_for(n), n), dtype=np.float32)
    half = rng.standard_gamma(0.5, (len(weights), 1)).astype(np.float32)
    return weights / (weights.sum(1, keepdims=True) + half)


def reach(moves: Values, limits: Limits) -> Limits:
    """Return how far one more image may move the mean of ``moves``, to either side, where none can leave ``limits``.

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
    """Return the interval of the mean of paired ``differences``, none of which can leave ``limits``.

    Example:
        >>> low, high = difference_interval(np.zeros(300), (-1.0, 1.0))
        >>> low == -high, round(high, 3)
        (True, 0.008)
    """
    low, high = reach(differences, limits)
    weights = weights_beside_half(len(differences))
    return -upper_end(-differences, -low, weights, confidence), upper_end(differences, high, weights, confidence)


def group_difference_interval(
    differences: Values, groups: Groups, limits: Limits, confidence: float = 0.95
) -> tuple[float, float]:
    """Return the interval of the mean of paired ``differences`` of samples that come in ``groups``.

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
