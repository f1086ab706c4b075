"""How often intervals of paired differences hold the truth, how wide they are, and how often equal encoders are told apart.

``python -m benchmarks.statistics.paired --draws 400 --images 300``

Two encoders see the same images, drawn anew each time. Populations of *values* have one share per image and encoder, with a
known law. Populations of *codes* have normal codes in four dimensions that attacks carry so far in random directions; their
risks are means over pairs of images, in which each image takes part as attacked and as passed. *Groups* are of one to eight
images that mostly fall together.

Widths are in units of the ideal interval's, 3.92 standard deviations of the differences of all draws, which no sample
knows. Beside them stand those of intervals that assume nothing: Gaffke's bounds for any values within the limits, and for
universal quantiles the intervals of both numbers. Equal encoders are also compared in scorecards, one row for each
population of equal truth, of which Holm's method allows one of twenty a false winner.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import isnan, nan

import numpy as np
import torch
from jaxtyping import Float

from holdfast.attacks.attacked_codes import Case
from holdfast.attacks.evaluations.breakaway import influence
from holdfast.attacks.gradient import GradientAttack
from holdfast.core.balls import Linf
from holdfast.core.divergences import L2Distance
from holdfast.core.records import Claim, Series
from holdfast.core.statistics.differences import Difference, paired, unpaired
from holdfast.core.statistics.groups import group_mean_interval, numbered
from holdfast.core.statistics.intervals import bounded_interval
from holdfast.core.statistics.quantiles import quantile_influence
from holdfast.core.statistics.summaries import limits_of, over_references, summarise
from holdfast.report.comparison.compare import LEVEL, p_value

Rng = np.random.Generator
Values = Float[np.ndarray, "n"]
Two = tuple[Values, Values]
DIMENSIONS, MANY = 4, 300_000
NORMAL = 1.96
CASE = Case(Linf(0.1), GradientAttack(steps=1), L2Distance())


@dataclass(frozen=True)
class Compared:
    """What two encoders say of one draw of images: series to compare, and the interval that assumes nothing."""

    a: Series
    b: Series
    groups: tuple[str, ...] = ()
    bounds: Callable[[], tuple[float, float]] | None = None
    """Returns the ends of the interval without assumptions, where it is not Gaffke's of the two series."""

    def difference(self) -> Difference:
        """Return the paired difference that reports show."""
        return paired(self.a, self.b, "mean", "lower", groups=self.groups)

    def without_assumptions(self) -> tuple[float, float]:
        """Return the interval that holds for all values within the limits."""
        if self.bounds is not None:
            return self.bounds()
        ours, theirs = limits_of(self.a), limits_of(self.b)
        assert ours is not None
        assert theirs is not None
        values = np.subtract(self.a.values, self.b.values)
        limits = (ours[0] - theirs[1], ours[1] - theirs[0])
        if self.groups:
            return group_mean_interval(values, numbered(np.array(self.groups)), limits)
        return bounded_interval(values, limits)


@dataclass(frozen=True)
class Law:
    """A population: how two encoders' images are drawn, and the true difference of their risks (None: simulated)."""

    name: str
    draw: Callable[[Rng, int], Compared]
    truth: float | None = 0.0


def as_series(values: Values, unit: str = "share of images") -> Series:
    """Return ``values`` as an evaluation would."""
    return Series(quantity="value", values=tuple(values.tolist()), unit=unit, claim=Claim.ESTIMATE, of="value")


def shares(name: str, two: Callable[[Rng, int], Two], truth: float | None = 0.0) -> Law:
    """Return the law of encoders with these shares per image."""

    def draw(rng: Rng, n: int) -> Compared:
        a, b = two(rng, n)
        return Compared(as_series(a), as_series(b))

    return Law(f"values: {name}", draw, truth)


def rare(rng: Rng, n: int, share: float) -> Values:
    """Return shares of which few are positive, and then anything up to 1."""
    return (rng.random(n) < share) * rng.random(n)


def mostly(rng: Rng, own: Values, other: Values) -> Values:
    """Return the values of a twin, which agrees on seven images of ten."""
    return np.where(rng.random(len(own)) < 0.7, own, other)


def yes(rng: Rng, n: int, both: float, first: float, second: float) -> Two:
    """Return zeros and ones: lost by both encoders, by the first alone, by the second alone."""
    u = rng.random(n)
    lost = u < both
    return (
        (lost | ((u >= both) & (u < both + first))).astype(float),
        (lost | (u >= 1 - second)).astype(float),
    )


def together(rng: Rng, n: int) -> Compared:
    """Return shares of images in groups of one to eight, which mostly have the value of their group; a twin's, too."""
    groups = np.repeat(np.arange(n), rng.integers(1, 9, n))[:n]

    def values() -> Values:
        return np.where(rng.random(n) < 0.8, rng.random(n)[groups], rng.random(n)) ** 2

    return Compared(as_series(values()), as_series(values()), tuple(map(str, groups)))


def lognormal(rng: Rng, n: int, spread: float) -> Values:
    """Return how far images are carried by an attack: by one unit in the middle."""
    return np.exp(spread * rng.standard_normal(n))


def rarely(rng: Rng, n: int, share: float) -> Values:
    """Return how far images are carried if few are, and then far."""
    return np.where(rng.random(n) < share, 3.0, 0.05)


CARRIED: dict[str, tuple[Callable[[Rng, int], Two], float | None]] = {
    "equal, fragile": (lambda rng, n: (own := lognormal(rng, n, 0.5), mostly(rng, own, lognormal(rng, n, 0.5))), 0.0),
    "equal, a quarter as far": (lambda rng, n: (lognormal(rng, n, 0.5) / 4, lognormal(rng, n, 0.5) / 4), 0.0),
    "half as far": (lambda rng, n: ((own := lognormal(rng, n, 0.5)), own / 2), None),
    "small risks": (lambda rng, n: ((own := lognormal(rng, n, 0.3)) * 0.75, own / 3), None),
    "equal, one in 100 fails": (lambda rng, n: (rarely(rng, n, 0.01), rarely(rng, n, 0.01)), 0.0),
    "one and three in 100 fail": (lambda rng, n: (rarely(rng, n, 0.01), rarely(rng, n, 0.03)), None),
    "equal, half far and half near": (
        lambda rng, n: (
            np.where(rng.random(n) < 0.5, 0.5, 1.5) * lognormal(rng, n, 0.2),
            np.where(rng.random(n) < 0.5, 0.5, 1.5) * lognormal(rng, n, 0.2),
        ),
        0.0,
    ),
}


def codes(rng: Rng, n: int) -> Float[np.ndarray, "n d"]:
    """Return one draw of codes."""
    return rng.standard_normal((n, DIMENSIONS))


def carried(rng: Rng, n: int, far: Sequence[Values]) -> tuple[Float[np.ndarray, "n n"], list[Float[np.ndarray, "n n"]]]:
    """Return the distances of codes, and for each encoder whom (columns) each attacked image (rows) passes."""
    clean, ways = codes(rng, n), codes(rng, n)
    ways /= np.linalg.norm(ways, axis=1, keepdims=True)

    def apart(moved: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n n"]:
        return np.sqrt(np.maximum(0, ((moved**2).sum(1)[:, None] + (clean**2).sum(1) - 2 * moved @ clean.T)))

    passed = [apart(clean + r[:, None] * ways) < r[:, None] * (1 - 1e-9) for r in far]
    for each in passed:
        np.fill_diagonal(each, False)
    return apart(clean), passed


def breakaway(name: str) -> Law:
    """Return the law of two breakaway risks, means over pairs of images."""
    two, truth = CARRIED[name]

    def draw(rng: Rng, n: int) -> Compared:
        _, passed = carried(rng, n, two(rng, n))
        a, b = (
            influence(CASE, torch.tensor(each.mean(1) * n / (n - 1)), torch.tensor(each.sum(0)).double(), n - 1)
            for each in passed
        )
        # One image may be attacked and be passed: without assumptions both count.
        wide = 2.0 + float(abs(np.mean(a.values) - np.mean(b.values)))
        return Compared(a, b, bounds=lambda: bounded_interval(np.subtract(a.values, b.values), (-wide, wide)))

    return Law(f"breakaway: {name}", draw, truth)


def nearest(name: str) -> Law:
    """Return the law of two accuracies of retrieval, of encoders whose codes have nothing in common."""
    two, truth = CARRIED[name]

    def draw(rng: Rng, n: int) -> Compared:
        a, b = (~carried(rng, n, [far])[1][0].any(1) for far in two(rng, n))
        return Compared(as_series(a.astype(float), "yes or no"), as_series(b.astype(float), "yes or no"))

    return Law(f"nearest neighbour: {name}", draw, truth)


def universal_quantile(name: str) -> Law:
    """Return the law of two universal quantiles, medians on the scale of pairs of images."""
    two, truth = CARRIED[name]

    def draw(rng: Rng, n: int) -> Compared:
        clean = codes(rng, n)
        apart = np.sqrt(((clean[:, None] - clean) ** 2).sum(2))
        pairs, series, estimates = np.sort(apart[np.triu_indices(n, 1)]), [], []
        for far in two(rng, n):
            quantiles = as_series(np.searchsorted(pairs, far, side="right") / len(pairs), "share of pairs")
            near = ((apart <= np.median(far)).sum(1) - 1) / (n - 1)
            series.append(quantile_influence(quantiles, near, n))
            estimates.append(over_references(summarise(quantiles, "median", "lower"), near))

        def apiece() -> tuple[float, float]:
            found = unpaired(estimates[0], estimates[1])
            return found.low, found.high

        return Compared(series[0], series[1], bounds=apiece)

    return Law(f"universal quantile: {name}", draw, truth)


LAWS = (
    shares("equal and always zero", lambda rng, n: (np.zeros(n), np.zeros(n))),
    shares("equal, fragile", lambda rng, n: (own := rng.random(n) ** 2, mostly(rng, own, rng.random(n) ** 2))),
    shares("fragile, a little worse", lambda rng, n: ((u := rng.random(n)) ** 2, u**2.5), 1 / 3 - 1 / 3.5),
    shares("equal, one in 100 fails", lambda rng, n: (rare(rng, n, 0.01), rare(rng, n, 0.01))),
    shares("one and two in 100 fail", lambda rng, n: (rare(rng, n, 0.01), rare(rng, n, 0.02)), -0.005),
    shares(
        "equal, rarely and badly against often and a little",
        lambda rng, n: (rare(rng, n, 0.01), (rng.random(n) < 0.5) * rng.beta(0.5, 49.5, n)),
    ),
    shares(
        "equal, twice as rarely and badly against nearly always and a little",
        lambda rng, n: (rare(rng, n, 0.02), (rng.random(n) < 0.9) * rng.beta(0.5, 44.5, n)),
    ),
    shares(
        "small risks of most images",
        lambda rng, n: (np.minimum(1, 0.0155 * rng.standard_exponential(n)), np.minimum(1, 0.00045 * rng.random(n))),
        0.0155 - 0.000225,
    ),
    shares("heavy tail", lambda rng, n: (np.minimum(1, 0.01 * lognormal(rng, n, 1.5)), np.zeros(n)), None),
    shares("equal, yes or no", lambda rng, n: yes(rng, n, 0.2, 0.1, 0.1)),
    shares("equal, yes or no, few differ", lambda rng, n: yes(rng, n, 0.0, 0.01, 0.01)),
    shares("yes or no, three and one in 100", lambda rng, n: yes(rng, n, 0.0, 0.03, 0.01), 0.02),
    Law("groups: equal, fragile", together),
    *(breakaway(name) for name in CARRIED if "quarter" not in name),
    nearest("equal, a quarter as far"),
    nearest("equal, one in 100 fails"),
    *(universal_quantile(name) for name in CARRIED if "100" not in name and "quarter" not in name),
)


def true_difference(law: Law) -> float:
    """Return the difference of the risks of ``law``: as known, or from many images."""
    if law.truth is not None:
        return law.truth
    rng = np.random.default_rng(1)
    if law.name.startswith("values"):
        drawn = law.draw(rng, MANY)
        return float(np.mean(drawn.a.values) - np.mean(drawn.b.values))
    two = CARRIED[law.name.split(": ")[1]][0]
    pairs = np.linalg.norm(codes(rng, MANY) - codes(rng, MANY), axis=1)
    if law.name.startswith("breakaway"):
        first, second = (passing(pairs, far).mean() for far in two(rng, MANY))
    else:  # the median of all displacements, on the scale of as many independent pairs
        first, second = ((pairs <= np.median(far)).mean() for far in two(rng, MANY))
    return float(first - second)


def passing(apart: Values, far: Values) -> Values:
    """Return the probability that an image carried so ``far`` in a random direction passes another so far ``apart``.

    It does in directions whose angle to the other has a cosine above ``apart / (2 far)``: a cap of the sphere, here in four
    dimensions.
    """
    cosine = np.minimum(1, apart / (2 * far))
    return (np.arccos(cosine) - cosine * np.sqrt(1 - cosine**2)) / np.pi


@dataclass(frozen=True)
class Row:
    """What all draws of one law found."""

    law: Law
    covered: float
    width: float
    """In units of the ideal interval's; nan where all draws say the same."""
    told_apart: float
    p_values: tuple[float, ...]
    drawn: Sequence[Compared] = field(repr=False)
    ideal: float
    """Width of the ideal interval; nan where all draws say the same."""

    @property
    def assuming_nothing(self) -> float:
        """Return the width without assumptions, in units of the ideal interval's: computed only if asked for."""
        return float(np.mean([np.diff(each.without_assumptions())[0] for each in self.drawn])) / self.ideal


def row(law: Law, images: int, draws: int) -> Row:
    """Return how intervals of ``law`` fared."""
    rng = np.random.default_rng(images)
    drawn = [law.draw(rng, images) for _ in range(draws)]
    truth, found = true_difference(law), [each.difference() for each in drawn]
    slack = 1e-12
    ideal = 2 * NORMAL * float(np.std([gap.value for gap in found]))
    ideal = ideal if ideal > slack else nan
    return Row(
        law,
        covered=float(np.mean([gap.low - slack <= truth <= gap.high + slack for gap in found])),
        width=float(np.mean([gap.high - gap.low for gap in found])) / ideal,
        told_apart=float(np.mean([gap.outcome != "tied" for gap in found])),
        p_values=tuple(p_value(gap) for gap in found),
        drawn=drawn,
        ideal=ideal,
    )


def false_scorecards(rows: Sequence[Row]) -> float:
    """Return the share of scorecards of equal encoders, one row for each law of equal truth, with a false winner (Holm)."""
    equal = np.array([found.p_values for found in rows if found.law.truth == 0.0])
    return float((equal.min(0) <= LEVEL / len(equal)).mean())


HEAD = """| population | images | covered | width | assuming nothing | told apart |
|---|---|---|---|---|---|"""


def line(found: Row, images: int) -> str:
    """Return ``found`` as a line of the table."""
    widths = ["all alike" if isnan(width) else f"{width:.2f}" for width in (found.width, found.assuming_nothing)]
    return f"| {found.law.name} | {images} | {found.covered:.3f} | {' | '.join(widths)} | {found.told_apart:.3f} |"


def simulated(images: int, draws: int, laws: Sequence[Law] = LAWS) -> Iterator[Row]:
    """Yield the row of each law."""
    for law in laws:
        yield row(law, images, draws)


def main() -> None:
    """Print the table as Markdown, and how many scorecards of equal encoders had a winner."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=400)
    parser.add_argument("--images", type=int, nargs="+", default=[300])
    options = parser.parse_args()
    print(HEAD)
    for images in options.images:
        rows = []
        for found in simulated(images, options.draws):
            rows.append(found)
            print(line(found, images), flush=True)
        print(f"| false winners in scorecards | {images} | | | | {false_scorecards(rows):.3f} |", flush=True)


if __name__ == "__main__":
    main()
