"""The Weibull law of small positive values, ``F(x) = 1 - exp(-(x / scale)^shape)``, fitted by likelihood row by row."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

FLATTEST, STEEPEST = 1e-3, 1e4
"""Range of shapes; the values of a row that is steeper still are one, for all one can see."""
HALVINGS = 50
Rows = Float[np.ndarray, "r k"]
Each = Float[np.ndarray, "r"]


def fit(values: Rows, flattest: float = FLATTEST) -> tuple[Each, Each]:
    """Return shape, at least ``flattest``, and scale of the law of largest likelihood of each row of positive ``values``.

    The shape ``a`` solves ``sum x^a ln x / sum x^a - 1/a = mean ln x``. Its left side grows with ``a``, so there is one
    solution; of values that are all the same it is infinite.

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
    """Return the logarithm of the density of each row of ``values``."""
    from scipy.stats import weibull_min

    return np.sum(weibull_min.logpdf(values, shape[..., None], scale=scale[..., None]), axis=-1)


def misfit(values: Float[np.ndarray, "k"], shape: float, scale: float) -> tuple[float, float]:
    """Return the largest gap between a law and the distribution of ``values``, and its p-value (Kolmogorov-Smirnov)."""
    from scipy.stats import kstest, weibull_min

    # Its parameters are given as such: a frozen law takes longer to make than to use.
    test = kstest(values, weibull_min.cdf, (shape, 0.0, scale))
    return float(test.statistic), float(test.pvalue)
