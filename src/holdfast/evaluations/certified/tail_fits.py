"""The Weibull law of small values: the limit distribution of the nearest of many distances."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

import numpy as np
from jaxtyping import Float

from holdfast.core.statistics import weibull


@dataclass(frozen=True)
class WeibullTail:
    """A Weibull law of small values; ``misfit`` is the Kolmogorov-Smirnov distance to the values it was fitted to."""

    shape: float
    scale: float
    misfit: float

    def inclusion(self, distance: float) -> float:
        """Return ``Psi`` at ``1 - rho = distance``."""
        return float(np.exp(-((distance / self.scale) ** self.shape)))


def fit(values: Float[np.ndarray, "k"]) -> WeibullTail | None:
    """Return the law of largest likelihood of positive ``values``; None if they are all the same.

    Example:
        >>> law = fit(np.array([0.1, 0.2, 0.3, 0.4]))
        >>> round(law.shape, 2), round(law.scale, 2)
        (2.45, 0.28)
    """
    shape, scale = (float(part[0]) for part in weibull.fit(values[None]))
    return WeibullTail(shape, scale, weibull.misfit(values, shape, scale)[0]) if isfinite(shape) else None
