"""How often intervals hold the truth where images have given values: every statistic of a report, with no encoder at all.

``python -m benchmarks.statistics.coverage_values --replications 2000``

Values are drawn from laws whose truth is known. In a fragile population many images carry the risk, in a robust
one an image in a hundred does. The twin of equal truth has the same value on seven images in ten, and its own on the others.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import isnan, log
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float

from holdfast.attacks.evaluations.breakaway import of_clusters
from holdfast.core.records import Claim, Estimate, Series
from holdfast.core.statistics.differences import paired, unpaired
from holdfast.core.statistics.quantiles import radius_estimates
from holdfast.core.statistics.summaries import ratio_of_means, summarise
from holdfast.core.statistics.tails import tails

SIZES = (50, 100, 300)
"""Images of the certified and of the attacked evaluations in suite ``quick``."""
AGREEING = 0.7
Uniform = Float[np.ndarray, "n"]
Values = Float[np.ndarray, "n"]


@dataclass(frozen=True)
class Law:
    """One value per image: ``values`` of uniform draws, whose ``statistic`` is ``truth``."""

    population: str
    statistic: Literal["mean", "median", "share", "first_quartile", "third_quartile", "worst_1", "worst_10"]
    unit: str
    truth: float
    values: Callable[[Uniform], Values]
    pairs: bool = False
    """Whether images two by two are kept or lost together."""

    def estimate(self, series: Series) -> Estimate:
        """Return what an evaluation would say of ``series``."""
        if self.statistic == "first_quartile" or self.statistic == "third_quartile":
            return next(each for each in radius_estimates(series) if each.quantity.endswith(self.statistic))
        if self.statistic == "worst_1" or self.statistic == "worst_10":
            return next(each for _, each in tails(series) if each.quantity.endswith(self.statistic))
        found = summarise(series, self.statistic, "lower")
        return of_clusters(found, np.full(series.values.count(0.0) // 2, 2.0)) if self.pairs else found

    def series(self, values: Values) -> Series:
        """Return ``values`` as an evaluation would."""
        return Series(quantity="value", values=tuple(values.tolist()), unit=self.unit, claim=Claim.ESTIMATE, of="value")


def within(u: Uniform, share: float) -> Values:
    """Return radii of images of which this ``share`` is ever lost, the others have an infinite one."""
    return np.where(u < share, u / share, np.inf)


def kept(part: Values, whole: Values) -> Values:
    """Return what the interval of ``mean(part) / mean(whole)`` is made of, as of harm and losses kept."""
    return ratio_of_means(torch.as_tensor(part).double(), torch.as_tensor(whole).double()).numpy()


LAWS = (
    Law("fragile", "share", "yes or no", 0.3, lambda u: (u < 0.3).astype(float)),
    Law("robust", "share", "yes or no", 0.01, lambda u: (u < 0.01).astype(float)),
    Law(
        "fragile", "share", "yes or no, in pairs", 0.9, lambda u: np.repeat(u[::2] >= 0.1, 2).astype(float), pairs=True
    ),
    Law(
        "robust", "share", "yes or no, in pairs", 0.99, lambda u: np.repeat(u[::2] >= 0.01, 2).astype(float), pairs=True
    ),
    Law("fragile", "mean", "share of images", 1 / 3, lambda u: u**2),
    Law("robust", "mean", "share of images", 0.005, lambda u: np.where(u < 0.01, 100 * u, 0.0)),
    Law("fragile", "mean", "radius", 1.0, lambda u: -np.log1p(-u)),
    Law("robust", "mean", "radius", 1.99, lambda u: np.where(u < 0.01, 100.0, 1.0) * (0.5 + (100 * u) % 1)),
    Law("fragile", "median", "radius", log(2), lambda u: -np.log1p(-u)),
    Law("robust", "median", "radius", 1 + 0.49 / 0.99, lambda u: np.where(u < 0.01, 100.0, 1.0 + (u - 0.01) / 0.99)),
    Law("fragile", "first_quartile", "radius", -log(0.75), lambda u: -np.log1p(-u)),
    Law("fragile", "third_quartile", "radius", -log(0.25), lambda u: -np.log1p(-u)),
    Law("robust", "median", "radius, some never lost", 0.5 / 0.6, lambda u: within(u, 0.6)),
    Law("robust", "first_quartile", "radius, some never lost", 0.25 / 0.6, lambda u: within(u, 0.6)),
    Law("fragile", "mean", "ratio of means", 2 / 3, lambda u: kept(u**2, u)),
    Law("fragile", "mean", "ratio of losses", 1 / 3, lambda u: kept(u < 0.2, u < 0.6)),
    Law("robust", "mean", "ratio of losses", 1 / 2, lambda u: kept(u < 0.1, u < 0.2)),
    Law("fragile", "worst_10", "fraction kept", 0.05, lambda u: u),
    Law("fragile", "worst_10", "fraction of ten kept", 0.1 / 11, lambda u: np.floor(11 * u) / 10),
    Law("fragile", "worst_10", "fraction kept, equal at the threshold", 0.5, lambda u: np.where(u < 0.1, 0.5, 1.0)),
    Law("robust", "worst_10", "fraction kept, few lost", 0.8, lambda u: np.where(u < 0.02, 0.0, 1.0)),
    Law("fragile", "worst_1", "fraction kept", 0.005, lambda u: u),
    Law("robust", "worst_1", "fraction kept, few lost", 0.5, lambda u: np.where(u < 0.005, 0.0, 1.0)),
)


@dataclass(frozen=True)
class Row:
    """How often one statistic's interval held the truth, and how often twins were told apart."""

    law: Law
    images: int
    covered: float
    width: float
    wrong: float
    method: str
    replications: int


def simulated(replications: int, sizes: Sequence[int] = SIZES) -> Iterator[Row]:
    """Yield the row of every law and size."""
    for law in LAWS:
        for size in sizes:
            yield row(law, size, replications)


def row(law: Law, size: int, replications: int) -> Row:
    """Return what ``replications`` draws of ``size`` images found."""
    rng = np.random.default_rng(size)
    covered, widths, wrong = [], [], []
    for _ in range(replications):
        own, other = rng.random(size), rng.random(size)
        twin = law.series(law.values(np.where(rng.random(size) < AGREEING, own, other)))
        series = law.series(law.values(own))
        found = law.estimate(series)
        if not isnan(found.low + found.high):
            covered.append(found.low <= law.truth <= found.high)
            widths.append(found.high - found.low)
        difference = (
            unpaired(found, law.estimate(twin))
            if found.statistic == "whole"
            else paired(series, twin, found.statistic, "lower")
        )
        wrong.append(difference.outcome != "tied")
    return Row(
        law, size, float(np.mean(covered)), float(np.mean(widths)), float(np.mean(wrong)), found.method, replications
    )


def main() -> None:
    """Print the table as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replications", type=int, default=2000)
    given = parser.parse_args()
    print(
        "| population | images | statistic of | covered | width | told apart | method |\n|---|---|---|---|---|---|---|"
    )
    for found in simulated(given.replications):
        law = found.law
        print(
            f"| {law.population} | {found.images} | {law.statistic}, {law.unit} | {found.covered:.3f} "
            f"| {found.width:.3g} | {found.wrong:.3f} | {found.method} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
