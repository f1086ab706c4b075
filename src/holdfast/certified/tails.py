"""The Weibull law of small values: what the nearest of many distances follow in the limit, fitted by likelihood."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

STEEPEST = 1e4
"""Shape of a law of which all values are one, for all one can see."""


@dataclass(frozen=True)
class Tail:
    """A Weibull law of small values: its shape, its scale, and the largest gap between its and their distribution."""

    shape: float
    scale: float
    gap: float

    def inclusion(self, distance: float) -> float:
        """Return ``Psi`` at ``1 - rho = distance``."""
        return float(np.exp(-((distance / self.scale) ** self.shape)))


def fit(values: Float[np.ndarray, "k"]) -> Tail | None:
    """Return the law of largest likelihood of positive ``values``; None if they are all the same.

    The shape ``a`` solves ``sum x^a ln x / sum x^a - 1/a = mean ln x``; its left side grows with ``a``.

    Example:
        >>> law = fit(np.array([0.1, 0.2, 0.3, 0.4]))
        >>> round(law.shape, 2), round(law.scale, 2)
        (2.45, 0.28)
    """
    from scipy.optimize import brentq
    from scipy.stats import kstest, weibull_min

    top = values.max()
    logs = np.log(values / top)

    def slope(a: float) -> float:
        weights = np.exp(a * logs)
        return float(weights @ logs / weights.sum() - 1 / a - logs.mean())

    if len(values) < 2 or slope(STEEPEST) <= 0:
        return None
    shape = float(brentq(slope, 1e-3, STEEPEST, xtol=1e-12))
    scale = float(top * np.mean(np.exp(shape * logs)) ** (1 / shape))
    return Tail(shape, scale, float(kstest(values, weibull_min(shape, scale=scale).cdf).statistic))
