"""How often intervals of the difference of two RankMes hold the truth, and how wide they are, image by image and not.

``python -m benchmarks.statistics.paired_spectra --draws 400``

Two encoders of 48 features see the same images, drawn anew each time. Widths are in units of the ideal interval's, 3.92
standard deviations of the differences of all draws, which no sample knows. Beside the intervals that reports show stand
those of both numbers, as if the encoders were independent. Where codes lie far out, or images are fewer than five for each
feature, reports show the latter.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float

from benchmarks.statistics.paired import NORMAL
from holdfast.core.records import Estimate, Series
from holdfast.core.statistics.differences import Difference, paired, unpaired
from holdfast.geometry.evaluations.geometry import moves_of_rank, rank_and_spectrum

Rng = np.random.Generator
Codes = Float[np.ndarray, "n d"]
FEATURES, MANY = 48, 400_000


def spectrum(power: float, seed: int) -> Float[np.ndarray, "d d"]:
    """Return a map whose codes have singular values that fall as a power of their place, in directions of its own."""
    directions, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((FEATURES, FEATURES)))
    return directions * np.arange(1, FEATURES + 1.0) ** -power


def normal(rng: Rng, n: int) -> Codes:
    """Return independent normal features."""
    return rng.standard_normal((n, FEATURES))


def grouped(rng: Rng, n: int) -> Codes:
    """Return codes around ten centres."""
    centres = np.random.default_rng(5).standard_normal((10, FEATURES))
    return centres[rng.integers(0, 10, n)] + 0.7 * normal(rng, n)


def alike(rng: Rng, own: Codes) -> Codes:
    """Return the codes of a twin that sees mostly the same in an image."""
    return 0.9 * own + np.sqrt(1 - 0.81) * normal(rng, len(own))


def far(rng: Rng, n: int) -> Float[np.ndarray, "n 1"]:
    """Return lengths of which one in a hundred is 20 times the others."""
    return np.where(rng.random(n) < 0.01, 20.0, 1.0)[:, None]


FIRST, SECOND, STEEP = spectrum(0.5, 1), spectrum(0.5, 2), spectrum(0.8, 3)


@dataclass(frozen=True)
class Law:
    """How the codes of two encoders are drawn; those of ``equal`` ones have the same RankMe."""

    name: str
    draw: Callable[[Rng, int], tuple[Codes, Codes]]
    equal: bool = False

    def truth(self) -> float:
        """Return the true difference."""
        if self.equal:
            return 0.0
        a, b = (torch.tensor(codes) for codes in self.draw(np.random.default_rng(99), MANY))
        return rank_and_spectrum(a)[0].value - rank_and_spectrum(b)[0].value


def centred_law(rng: Rng, n: int, noise: float, other: Float[np.ndarray, "d d"]) -> tuple[Codes, Codes]:
    """Return codes around ten centres, and with ``noise`` under the map ``other``."""
    own = grouped(rng, n)
    return own @ FIRST, (own + noise * normal(rng, n)) @ other


def twins(rng: Rng, n: int, other: Float[np.ndarray, "d d"]) -> tuple[Codes, Codes]:
    """Return normal codes, and those of a twin under the map ``other``."""
    own = normal(rng, n)
    return own @ FIRST, alike(rng, own) @ other


def lengthened(rng: Rng, lengths: Float[np.ndarray, "n 1"], others: Float[np.ndarray, "n 1"]) -> tuple[Codes, Codes]:
    """Return independent normal codes of two encoders, lengthened."""
    return lengths * normal(rng, len(lengths)) @ FIRST, others * normal(rng, len(others)) @ SECOND


def heavy(rng: Rng, n: int) -> Codes:
    """Return independent features with heavy tails."""
    return rng.standard_t(4, (n, FEATURES))


LAWS = (
    Law("equal, unlike images", lambda rng, n: (normal(rng, n) @ FIRST, normal(rng, n) @ SECOND), equal=True),
    Law("equal, twins", lambda rng, n: twins(rng, n, SECOND), equal=True),
    Law("one of fewer dimensions", lambda rng, n: twins(rng, n, STEEP)),
    Law("ten centres, a copy with noise", lambda rng, n: centred_law(rng, n, 0.1, FIRST)),
    Law("ten centres, other features", lambda rng, n: centred_law(rng, n, 0.3, SECOND)),
    Law("equal, heavy tails", lambda rng, n: (heavy(rng, n) @ FIRST, heavy(rng, n) @ SECOND), equal=True),
    Law("equal, the same codes far out", lambda rng, n: lengthened(rng, lengths := far(rng, n), lengths), equal=True),
    Law("equal, other codes far out", lambda rng, n: lengthened(rng, far(rng, n), far(rng, n)), equal=True),
)


def compared(a: Codes, b: Codes) -> tuple[Difference, Difference]:
    """Return the difference as reports show it, and that from the intervals of both numbers."""
    numbers, moves = list[Estimate](), list[Series]()
    for codes in map(torch.tensor, (a, b)):
        numbers.append(rank_and_spectrum(codes)[0])
        moves += [each.series(range(len(codes)), len(codes)) for each in moves_of_rank(codes, numbers[-1])]
    apiece = unpaired(*numbers)
    return paired(moves[0], moves[1], "mean", "higher") if len(moves) == 2 else apiece, apiece


def line(law: Law, images: int, draws: int) -> str:
    """Return how intervals of ``law`` fared as a line of the table."""
    rng, truth, slack = np.random.default_rng(images), law.truth(), 1e-9
    pairs = [compared(*law.draw(rng, images)) for _ in range(draws)]
    ideal = 2 * NORMAL * float(np.std([shown.value for shown, _ in pairs]))
    cells = []
    for gaps in zip(*pairs, strict=True):
        cells += [f"{np.mean([gap.low - slack <= truth <= gap.high + slack for gap in gaps]):.3f}"]
        cells += [f"{np.mean([gap.high - gap.low for gap in gaps]) / ideal:.2f}"]
    told = np.mean([shown.outcome != "tied" for shown, _ in pairs])
    by = f"{np.mean([shown.paired for shown, _ in pairs]):.0%}"
    return f"| {law.name} | {images} | {by} | {cells[0]} | {cells[1]} | {told:.3f} | {cells[2]} | {cells[3]} |"


def main() -> None:
    """Print the table as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=400)
    parser.add_argument("--images", type=int, nargs="+", default=[300, 1000])
    options = parser.parse_args()
    print("| population | images | image by image | covered | width | told apart | covered by both | width of both |")
    print("|---|---|---|---|---|---|---|---|")
    for images in options.images:
        for law in LAWS:
            print(line(law, images, options.draws), flush=True)


if __name__ == "__main__":
    main()
