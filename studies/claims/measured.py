"""Numbers with their intervals, and the stored values from which both can be computed again.

``columns`` holds, for each of up to four variables, a row for each seed and in it a value for each unit (an image, an
encoder, a random subset). The interval has two parts that add up in squares (Zou and Donner 2008,
https://doi.org/10.1002/sim.3095): a bootstrap over units, which all seeds share, and Student's interval over seeds, where
the number is one of trainings rather than of images. Of one seed the latter is unknown, and so is the interval.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import hypot, inf, isnan, log, nan
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy.stats import kendalltau, norm, spearmanr
from scipy.stats import t as student

from holdfast.core.statistics.intervals import share_interval
from studies.common import interval

CONFIDENCE = 0.95
DRAWS, DIGITS = 1000, 5
"""Resamples of the bootstrap; significant digits of stored values, from which everything is computed."""
GROUPED = 10
CONTRAST = "difference at equal accuracy"
FEW, GROUP = 30, 3
"""Below which means and least squares have Student's interval, and differences of groups none."""
NONE_SEEN = 3.7
"""What n units without any difference leave room for is this over n, of differences of at most 1: ``0.025 = exp(-3.7)``."""
Column = Float[np.ndarray, "n"]
Columns = Sequence[Sequence[Sequence[float]]]


def slope(x: Column, y: Column) -> float:
    """Return the slope of the least-squares line."""
    return float(np.polyfit(x, y, 1)[0]) if np.ptp(x) > 0 else nan


def contrast(group: Column, x: Column, y: Column, *others: Column) -> float:
    """Return by how much ``y`` is larger in the group marked 1 at equal ``x`` and ``others``, by least squares."""
    if np.ptp(group) == 0 or np.ptp(x) == 0:
        return nan
    terms = np.stack([group, x, *others, np.ones_like(x)], 1)
    return float(np.linalg.lstsq(terms, y, rcond=None)[0][0])


def contrast_interval(group: Column, x: Column, y: Column, *others: Column) -> tuple[float, float]:
    """Return Student's interval of ``contrast``, for units that vary alike.

    Example:
        >>> low, high = contrast_interval(np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1]), np.array([0, 1, 2, 3.1]))
        >>> low < 2.05 < high
        True
    """
    terms = np.stack([group, x, *others, np.ones_like(x)], 1)
    found = np.linalg.lstsq(terms, y, rcond=None)[0]
    freedom = len(y) - terms.shape[1]
    if freedom < 1 or np.linalg.matrix_rank(terms) < terms.shape[1]:
        return nan, nan
    variance = float(np.square(y - terms @ found).sum()) / freedom * np.linalg.inv(terms.T @ terms)[0, 0]
    half = float(student.ppf((1 + CONFIDENCE) / 2, freedom) * np.sqrt(variance))
    return float(found[0]) - half, float(found[0]) + half


STATISTICS: Mapping[str, Callable[..., float]] = {
    "mean": lambda x: float(x.mean()),
    "median": lambda x: float(np.median(x)),
    "ratio of means": lambda x, y: float(x.mean() / y.mean()) if y.mean() else nan,
    "relative difference": lambda x, y: float(x.mean() / y.mean() - 1) if y.mean() else nan,
    "Spearman": lambda x, y: float(spearmanr(x, y).statistic) if np.ptp(x) and np.ptp(y) else nan,
    "Kendall": lambda x, y: float(kendalltau(x, y).statistic) if np.ptp(x) and np.ptp(y) else nan,
    "slope": slope,
    CONTRAST: contrast,
}


@dataclass(frozen=True)
class Measured:
    """One number of a claim, under one condition."""

    quantity: str
    where: str
    """The data set and the encoders."""
    statistic: str
    """``share`` (of counts, with a mid-P interval), ``exact`` (no chance in it) or one of ``STATISTICS``."""
    columns: Columns
    units: str
    """What was drawn: images, pairs, encoders."""
    n: int
    seeds: int
    trainings: bool
    """Whether the number is about a way of training, so that its interval is one over seeds as well."""
    value: float
    low: float
    high: float

    def record(self) -> dict[str, Any]:
        """Return this as JSON takes it: unknown numbers are null."""
        found = asdict(self)
        found["columns"] = [[[_brief(value) for value in row] for row in column] for column in self.columns]
        return found | {name: None if isnan(found[name]) else found[name] for name in ("value", "low", "high")}

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> Measured:
        """Return what ``record`` holds."""
        known = {name: nan if record[name] is None else record[name] for name in ("value", "low", "high")}
        return cls(**{**record, **known})

    def at(self, confidence: float) -> Measured:
        """Return the same with an interval of another confidence.

        Of a share it is computed anew. Others are lengthened as quantiles are: Student's, where the interval is one over few
        trainings or units, else the normal ones.
        """
        if confidence == CONFIDENCE or self.statistic == "exact":
            return self
        if self.statistic == "share":
            low, high = share_interval(round(self.value * self.n), self.n, confidence)
            return replace(self, low=low, high=high)
        if self.nothing_seen:
            half = -log((1 - confidence) / 2) / self.n
            return replace(self, low=self.value - half, high=self.value + half)
        units = self.seeds if self.trainings else self.n
        fitted = len(self.columns) if self.statistic == CONTRAST else 1
        few = self.statistic in ("mean", CONTRAST) and units < FEW
        freedom = max(1, units - fitted) if self.trainings or few else inf
        tails = np.array([(1 + confidence) / 2, (1 + CONFIDENCE) / 2])
        factor = float(np.divide(*(norm.ppf(tails) if freedom == inf else student.ppf(tails, freedom))))
        low, high = self.value - factor * (self.value - self.low), self.value + factor * (self.high - self.value)
        if self.statistic in ("Kendall", "Spearman"):
            low, high = max(low, -1.0), min(high, 1.0)
        return replace(self, low=low, high=high)

    @property
    def nothing_seen(self) -> bool:
        """Return whether all units have the same value, so that the interval is about units that were not seen."""
        return self.statistic == "mean" and not self.trainings and self.n > 1 and np.ptp(np.array(self.columns[0])) == 0

    def again(self) -> Measured:
        """Return the same, with number and interval computed once more from the stored values."""
        return measured(
            self.quantity, self.where, self.statistic, *self.columns, units=self.units, trainings=self.trainings
        )


def measured(
    quantity: str, where: str, statistic: str, *columns: ArrayLike, units: str = "images", trainings: bool = False
) -> Measured:
    """Return the number that ``statistic`` makes of columns (seeds, units) or (units,), with its interval.

    Units with a value that is not finite in some column are left out.

    Example:
        >>> found = measured("gain", "two arms", "mean", [[0.1, 0.3, 0.2, 0.4]])
        >>> found.value, found.low < 0.25 < found.high, found.n
        (0.25, True, 4)
    """
    arrays = [np.atleast_2d(np.asarray(column, dtype=np.float64)) for column in columns]
    if statistic in ("share", "exact"):
        return counted(quantity, where, statistic, arrays, units)
    known = np.logical_and.reduce([np.isfinite(array).all(0) for array in arrays])
    arrays = [rounded(array[:, known]) for array in arrays]
    seeds, n = arrays[0].shape
    by_seed = [evaluated(statistic, [array[seed] for array in arrays]) for seed in range(seeds)]
    value = float(np.mean(by_seed)) if n else nan
    # Of one number for each training, all chance is that of trainings.
    low, high = (value, value) if trainings and n == 1 else over_units(statistic, arrays)
    if statistic == "mean" and low == high and n > 1:
        low, high = value - NONE_SEEN / n, value + NONE_SEEN / n
    if trainings:
        half = interval(by_seed)[1]
        low, high = value - hypot(value - low, half), value + hypot(high - value, half)
    kept = [array.tolist() for array in arrays]
    return Measured(quantity, where, statistic, kept, units, n, seeds, trainings, value, low, high)


def counted(quantity: str, where: str, statistic: str, arrays: list[np.ndarray], units: str) -> Measured:
    """Return a share from a count and of how many, or a number without chance from itself and of how many."""
    value, n = float(arrays[0][0, 0]), int(arrays[1][0, 0])
    low = high = value
    if statistic == "share":
        low, high = share_interval(int(value), n)
        value = value / n
    kept = [array.tolist() for array in arrays]
    return Measured(quantity, where, statistic, kept, units, n, 1, False, value, low, high)


def of_images(
    quantity: str,
    where: str,
    *values: Float[np.ndarray, "s n"],
    statistic: str = "mean",
    group: int = GROUPED,
    units: str = "images",
) -> Measured:
    """Return a statistic with the chance of trainings and images in its interval; images by groups, to keep few."""
    groups = [one[:, : one.shape[1] // group * group].reshape(len(one), -1, group).mean(2) for one in values]
    return measured(quantity, where, statistic, *groups, units=f"groups of {group} {units}", trainings=True)


def of_seeds(quantity: str, where: str, values: ArrayLike) -> Measured:
    """Return the mean of one value for each training, with Student's interval over seeds."""
    by_seed = np.asarray(values)[:, None]
    return measured(quantity, where, "mean", by_seed, units="value a training", trainings=True)


def share(quantity: str, where: str, count: int, n: int, units: str = "pairs") -> Measured:
    """Return ``count`` of ``n`` as a share."""
    return measured(quantity, where, "share", [count], [n], units=units)


def exact(quantity: str, where: str, value: float, n: int, units: str) -> Measured:
    """Return a number in which there is no chance, such as a count in a table of a paper."""
    return measured(quantity, where, "exact", [value], [n], units=units)


def _brief(value: float) -> float:
    """Return a whole number as such, which is shorter to write."""
    return int(value) if value == int(value) else value


def rounded(values: np.ndarray) -> np.ndarray:
    """Return values with as many digits as are stored."""
    return np.array([[float(f"{value:.{DIGITS}g}") for value in row] for row in values]).reshape(values.shape)


def evaluated(statistic: str, columns: Sequence[Column]) -> float:
    """Return the statistic of one seed; nan without units."""
    return STATISTICS[statistic](*columns) if len(columns[0]) else nan


def over_units(statistic: str, arrays: Sequence[np.ndarray]) -> tuple[float, float]:
    """Return the interval over units: Student's for few, of which a bootstrap's is too short, else a bootstrap's.

    With fewer than ``GROUP`` units in a group nothing is known of how much that group varies, and so there is none.
    """
    n = arrays[0].shape[1]
    if statistic == "mean" and 1 < n < FEW:
        mean, half = interval([float(one) for one in arrays[0].mean(0)])
        return mean - half, mean + half
    if statistic == CONTRAST and min((arrays[0][0] == kind).sum() for kind in (0, 1)) < GROUP:
        return nan, nan
    if statistic == CONTRAST and n < FEW:
        return contrast_interval(*(array.mean(0) for array in arrays))
    return bootstrap(statistic, arrays)


def bootstrap(statistic: str, arrays: Sequence[np.ndarray]) -> tuple[float, float]:
    """Return the percentiles of the statistic, a mean over seeds, when units are drawn anew, the same in all seeds."""
    seeds, n = arrays[0].shape
    if n < 2:
        return nan, nan
    drawn = np.random.default_rng(0).integers(n, size=(DRAWS, n))
    means = [
        np.mean([evaluated(statistic, [array[seed, rows] for array in arrays]) for seed in range(seeds)])
        for rows in drawn
    ]
    low, high = np.nanpercentile(means, (2.5, 97.5))
    return float(low), float(high)
