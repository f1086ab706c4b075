"""How often the intervals of parity hold the truth where few embeddings are broken, and where all have moved a little.

``python -m benchmarks.statistics.coverage_parity --replications 300``

Embeddings are normal in 4 or 24 dimensions and drawn anew for each replication. Those of the candidate are the same but for
what a law does to them. The truth is the mean over all replications. The interval also says whether the verdict on
neighbours, which asks for ``NEIGHBOURS``, is decided the wrong way.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from holdfast.service.parity import NEIGHBOURS, Pair, findings
from holdfast.service.parity_maps import Gallery

SIZES = (100, 300)
K = 10
QUANTITIES = ("neighbours_kept", "neighbours_kept_mixed", "nearest_kept")
LOW_ENDS = ("at_50", "at_80", "at_100")
"""Ends of the names of numbers about the queries that keep fewest neighbours."""


@dataclass(frozen=True)
class Law:
    """What becomes of embeddings, whose number is ``dimensions``."""

    population: str
    dimensions: int
    changed: Callable[[Tensor, torch.Generator], Tensor]

    def pair(self, count: int, replication: int) -> Pair:
        """Return ``count`` fresh embeddings and what became of them."""
        generator = torch.Generator().manual_seed(replication)
        a = torch.randn(count, self.dimensions, generator=generator, dtype=torch.float64)
        b, ids = self.changed(a, generator), tuple(map(str, range(count)))
        return Pair(ids, a, b, Gallery(a, b, False), torch.arange(count), "the other images")


def broken(share: float, scale: float, away: float) -> Callable[[Tensor, torch.Generator], Tensor]:
    """Return what replaces a ``share`` of embeddings by noise of this ``scale``, at a point ``away``."""

    def change(a: Tensor, generator: torch.Generator) -> Tensor:
        lost = torch.rand(len(a), 1, generator=generator) < share
        return torch.where(lost, away + scale * torch.randn(a.shape, generator=generator, dtype=a.dtype), a)

    return change


def moved(scale: float) -> Callable[[Tensor, torch.Generator], Tensor]:
    """Return what moves every embedding by noise of this ``scale``."""
    return lambda a, generator: a + scale * torch.randn(a.shape, generator=generator, dtype=a.dtype)


LAWS = (
    Law("2% broken, noise", 4, broken(0.02, 1.0, 0.0)),
    Law("2% broken, noise", 24, broken(0.02, 1.0, 0.0)),
    Law("2% broken, far away", 24, broken(0.02, 0.1, 50.0)),
    Law("0.5% broken, noise", 24, broken(0.005, 1.0, 0.0)),
    Law("all moved by .1", 24, moved(0.1)),
    Law("all moved by .5", 24, moved(0.5)),
)


@dataclass(frozen=True)
class Row:
    """How often one number's interval held the truth, and how often it lay on the wrong side of the verdict's threshold."""

    law: Law
    images: int
    quantity: str
    truth: float
    covered: float
    width: float
    wrong: float
    replications: int


def simulated(
    replications: int,
    laws: Sequence[Law] = LAWS,
    sizes: Sequence[int] = SIZES,
    quantities: Sequence[str] = QUANTITIES,
) -> Iterator[Row]:
    """Yield a row for every law, size and number."""
    for law in laws:
        for size in sizes:
            found = [findings(law.pair(size, replication), K)[0].estimates for replication in range(replications)]
            for quantity in quantities:
                ends = np.array([
                    (each.value, each.low, each.high)
                    for estimates in found
                    for each in estimates
                    if each.quantity == quantity
                ])  # fmt: skip
                value, low, high = ends.T
                truth = float(value.mean())
                wrong = (low >= NEIGHBOURS) if truth < NEIGHBOURS else (high < NEIGHBOURS)
                covered, width = float(((low <= truth) & (truth <= high)).mean()), float((high - low).mean())
                yield Row(law, size, quantity, truth, covered, width, float(wrong.mean()), replications)


def main() -> None:
    """Print the table as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replications", type=int, default=300)
    parser.add_argument("--low-ends", action="store_true", help="Simulate what the means hide instead.")
    given = parser.parse_args()
    quantities = [f"neighbours_kept_{end}" for end in LOW_ENDS] if given.low_ends else QUANTITIES
    print("| population | dimensions | images | quantity | truth | covered | width | wrong side |")
    print("|---|---|---|---|---|---|---|---|")
    for row in simulated(given.replications, quantities=quantities):
        print(
            f"| {row.law.population} | {row.law.dimensions} | {row.images} | `{row.quantity}` | {row.truth:.3f} "
            f"| {row.covered:.3f} | {row.width:.3f} | {row.wrong:.3f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
