"""How often intervals of ``threshold`` hold the truth: of the similarity chosen, and of its rate of false matches.

    python -m benchmarks.statistics.coverage_pairs --draws 400

Embeddings are drawn from laws whose pairs depend on each other little or much. Half of the images chooses the threshold of a
rate, the other half says how many of its pairs match. The truth is that of many images with each part of the law in its due
share.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from jaxtyping import Float
from scipy.special import ndtri

from holdfast.service.false_matches import Pairs, chosen_cuts, false_match_rate

WIDE = 16
MANY = 12_000
SETTINGS = ((100, 0.01), (300, 0.001), (300, 0.01), (1000, 0.001))
"""Images, half of which choose, and the rate."""
Drawn = Float[np.ndarray, "n d"]
CENTRES = np.random.default_rng(5).normal(size=(30, WIDE))
OFTEN = (1 / np.arange(1, 31) ** 0.7).cumsum() / (1 / np.arange(1, 31) ** 0.7).sum()


def hubs(u: Float[np.ndarray, "n"], noise: Drawn) -> Drawn:
    """Return noise, one image in twenty of which looks like the others of its kind."""
    alike = 0.25 * noise
    alike[:, 0] += 2
    return np.where(u[:, None] < 0.05, alike, noise)


LAWS: dict[str, Callable[[Float[np.ndarray, "n"], Drawn], Drawn]] = {
    "even": lambda u, noise: noise,
    "flat": lambda u, noise: noise[:, :4],
    "clusters": lambda u, noise: CENTRES[np.searchsorted(OFTEN, u)] + 0.5 * noise,
    "hubs": hubs,
    "offset": lambda u, noise: noise + 0.4 * np.exp(ndtri(u))[:, None],
    "heavy": lambda u, noise: 0.5 + noise * np.exp(0.7 * ndtri(u))[:, None],
    "crops": lambda u, noise: np.repeat(noise[::3], 3, axis=0)[: len(noise)] + 0.3 * noise,
}


def drawn(law: str, count: int, rng: np.random.Generator, even: bool = False) -> Pairs:
    """Return the pairs of ``count`` images; with each part of the law in its due share if ``even``."""
    u = rng.permutation((np.arange(count) + 0.5) / count) if even else rng.random(count)
    codes = LAWS[law](u, rng.normal(size=(count, WIDE)))
    return Pairs.of(torch.from_numpy(codes), [str(k // 3 if law == "crops" else k) for k in range(count)])


@cache
def truth(law: str) -> Float[np.ndarray, "q"]:
    """Return the distances of the nearest pairs among many: place ``k`` of them is the quantile at ``k`` of all pairs."""
    rng, parts = np.random.default_rng(1), []
    for _ in range(MANY // 1500):
        parts.append(drawn(law, 1500, rng, even=True).distances)
    return np.sort(np.concatenate(parts))


@dataclass(frozen=True)
class Row:
    """What ``draws`` samples of one law found."""

    law: str
    images: int
    rate: float
    threshold: float
    """Share of the draws whose interval of the threshold holds the truth."""
    width: float
    """Median width of it."""
    matches: float
    """Share of the draws whose interval of the rate of false matches holds the truth."""
    ratio: float
    """Median width of it over the rate asked for."""
    kept: float
    """Share of the draws that say *no violation found*."""
    refuted: float
    wrong: float
    """Share of the draws that say either, and are wrong."""


def row(law: str, images: int, rate: float, draws: int) -> Row:
    """Return what ``draws`` samples of ``images`` found."""
    rng, distances = np.random.default_rng(images), truth(law)
    found = []
    for _ in range(draws):
        (cut,) = chosen_cuts(drawn(law, images // 2, rng), [rate])
        measured = false_match_rate(cut, drawn(law, images // 2, rng))
        similarity = 1 - distances[int(rate * len(distances))]
        matching = np.searchsorted(distances, cut.distance, side="right") / len(distances)
        kept, refuted = measured.high <= rate, measured.low > rate
        found.append(
            (
                cut.estimate.low <= similarity <= cut.estimate.high,
                cut.estimate.high - cut.estimate.low,
                measured.low <= matching <= measured.high,
                (measured.high - measured.low) / rate,
                kept,
                refuted,
                (kept and matching > rate) or (refuted and matching <= rate),
            )
        )
    values = np.array(found, dtype=float)
    means, medians = values.mean(0), np.median(values, axis=0)
    return Row(law, images, rate, means[0], medians[1], means[2], medians[3], *means[4:])


def simulated(draws: int) -> Iterator[Row]:
    """Yield the row of every law and setting."""
    for images, rate in SETTINGS:
        for law in LAWS:
            yield row(law, images, rate, draws)


def main() -> None:
    """Print the table as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=400)
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(
        "| law | images | rate | threshold: covered | width | false match rate: covered | width / rate "
        "| no violation found | refuted | wrong |\n|---|---|---|---|---|---|---|---|---|---|"
    )
    for found in simulated(given.draws):
        print(
            f"| {found.law} | {found.images} | {found.rate:g} | {found.threshold:.3f} | {found.width:.3f} "
            f"| {found.matches:.3f} | {found.ratio:.2f} | {found.kept:.3f} | {found.refuted:.3f} | {found.wrong:.3f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
