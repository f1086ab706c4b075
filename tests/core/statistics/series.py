"""Series of the tests of statistics."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import stats as scipy_stats

from holdfast.core.records import Claim, Series

RARE_AND_LARGE, COMMON_AND_SMALL = (0.01, scipy_stats.uniform()), (0.5, scipy_stats.beta(0.5, 49.5))


def series(values, reasons: dict[int, str] | None = None, unit: str = "share") -> Series:
    return Series(
        quantity="risk",
        conditions={"ball": "linf:0.1"},
        values=tuple(map(float, values)),
        unit=unit,
        claim=Claim.LOWER,
        of="worst-case risk",
        reasons=reasons or {},
    )


def law_of_shares(nonzero: float, size: Any, n: int, rng: np.random.Generator) -> np.ndarray:
    """The law of breakaway shares: most images are never passed, a few by many others."""
    return size.rvs(size=n, random_state=rng) * (rng.random(n) < nonzero)
