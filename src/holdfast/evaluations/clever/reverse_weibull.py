"""The right end of a distribution of maxima, by a reverse Weibull fit (Weng et al. 2018, section 3).

Maxima of many independent bounded values follow, in the limit, ``F(y) = exp(-((a - y) / s)^c)`` for ``y < a``: their
largest possible value is the location ``a``. Without limits the likelihood has no maximum: it grows forever as ``a`` nears
the largest value with ``c < 1``, and often as ``a`` goes to infinity, where the law turns into Gumbel's, which has no end.
So for each ``a`` on a line the other two are fitted with ``c >= 1``, and the best of a bounded range of ``a`` is taken; if
that is the far end of the range, the values give no end. The published program leaves this to an optimiser, which ends
anywhere between.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import nan

import numpy as np
from jaxtyping import Float

from holdfast.core.statistics.weibull import fit, log_likelihood, misfit

ACCEPTED = 0.05
SAME = 1e-6
"""Relative spread of maxima below which the function is linear for all one can see, and the largest is the end."""
NEAREST, FARTHEST = 1e-4, 10.0
"""How far beyond the largest value the end is looked for, in standard deviations of the values."""
STEPS, ROUNDS = 12, 4
"""Ends tried in each round; the next round looks between the neighbours of the best one."""


@dataclass(frozen=True)
class End:
    """The estimated right end, nan where the values give none, and how well the fit describes the maxima."""

    location: float
    p_value: float
    """Of the Kolmogorov-Smirnov test of the maxima against the fit; large means no contradiction."""

    @property
    def accepted(self) -> bool:
        """Return whether there is a fit that is not contradicted."""
        return self.p_value > ACCEPTED


def right_end(maxima: Float[np.ndarray, "s"]) -> End:
    """Return the right end of the distribution of ``maxima``: at least the largest of them, nan if they show none.

    Example:
        >>> right_end(np.full(20, 3.0)).location
        3.0
    """
    top, spread = float(maxima.max()), float(maxima.std())
    if not spread > SAME * abs(top):
        return End(top, 1.0)
    below = (top - maxima) / spread
    line = np.linspace(np.log(NEAREST), np.log(FARTHEST), STEPS)
    for _ in range(ROUNDS):
        values = below + np.exp(line)[:, None]
        shape, scale = fit(values, flattest=1.0)
        best = int(log_likelihood(values, shape, scale).argmax())
        beyond = float(np.exp(line[best]))
        line = np.linspace(line[max(best - 1, 0)], line[min(best + 1, STEPS - 1)], STEPS)
    if beyond > 0.99 * FARTHEST:
        return End(nan, 0.0)
    return End(top + beyond * spread, misfit(values[best], float(shape[best]), float(scale[best]))[1])
