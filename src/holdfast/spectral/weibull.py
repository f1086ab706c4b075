"""The right end of a distribution of maxima, by a reverse Weibull fit (Weng et al. 2018, section 3).

Maxima of many independent bounded values follow, in the limit, ``F(y) = exp(-((a - y) / s)^c)`` for ``y < a``: their
largest possible value is the location ``a``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

ACCEPTED = 0.05
SAME = 1e-6
"""Relative spread of maxima below which the function is linear for all one can see, and the largest is the end."""


@dataclass(frozen=True)
class End:
    """The estimated right end and how well the fit describes the maxima."""

    location: float
    p_value: float
    """Of the Kolmogorov-Smirnov test of the maxima against the fit; large means no contradiction."""

    @property
    def accepted(self) -> bool:
        """Return whether the fit is not contradicted."""
        return self.p_value > ACCEPTED


def right_end(maxima: Float[np.ndarray, "s"]) -> End:
    """Return the right end of the distribution of ``maxima``: at least the largest of them.

    Example:
        >>> right_end(np.full(20, 3.0)).location
        3.0
    """
    from scipy.stats import kstest, weibull_max

    top, spread = float(maxima.max()), float(maxima.std())
    if not spread > SAME * abs(top):
        return End(top, 1.0)
    # Standardised, so that one start suits every function.
    shape, location, scale = weibull_max.fit((maxima - top) / spread, 2.0, loc=0.1, scale=1.0)
    if not np.isfinite(location) or location < 0:
        return End(top, 0.0)
    fitted = kstest((maxima - top) / spread, weibull_max(shape, location, scale).cdf)
    return End(top + float(location) * spread, float(fitted.pvalue))
