"""How often intervals of the attack radius hold the truth, for ``f(x) = x``: half the distance to the nearest image.

``python -m benchmarks.statistics.coverage_radii --replications 400``

Images that are each other's nearest have the same radius, so these values are not independent. Images are drawn anew for
each replication. The twin of equal truth looks at other pixels, drawn from the same law. The truth is the quantile of the
radii of all replications together.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from holdfast.attacks.attacked_radii import neighbours, of_neighbours
from holdfast.core.divergences import L2Distance
from holdfast.core.encoder import Domain, Encoder
from holdfast.core.images import Images
from holdfast.core.records import Claim, Estimate, Findings, Series
from holdfast.core.run_settings import RunSettings
from holdfast.core.statistics.differences import unpaired
from holdfast.core.statistics.quantiles import QUARTILES, radius_findings
from holdfast.measure.population import Population

SIZES = (60, 300)
"""Images of suites ``quick`` and ``standard``."""
FEATURES = 32
"""Pixels of an image; those that a law leaves alone are 0."""


def _normal(dimensions: int) -> Callable[[int, torch.Generator], Tensor]:
    return lambda count, generator: 0.5 + 0.1 * torch.randn(count, dimensions, generator=generator).clamp(-5, 5)


def _square(count: int, generator: torch.Generator) -> Tensor:
    return torch.rand(count, 2, generator=generator)


def _scaled(count: int, generator: torch.Generator) -> Tensor:
    """Return images of which some are far from all others."""
    scale = torch.randn(count, 1, generator=generator).exp() / 40
    return (0.5 + scale * torch.randn(count, 8, generator=generator)).clamp(0, 1)


LAWS: Mapping[str, Callable[[int, torch.Generator], Tensor]] = {
    "uniform, 2 dimensions": _square,
    "normal, 16 dimensions": _normal(16),
    "normal of random scale, 8 dimensions": _scaled,
}


@dataclass(frozen=True)
class Row:
    """How often an interval held the truth, also taken as if radii were independent, and how often twins were told apart."""

    law: str
    images: int
    statistic: str
    covered: float
    independent: float
    width: float
    wrong: float | None


def findings_of(points: Tensor) -> tuple[Findings, Findings]:
    """Return what is found of these images by ``f(x) = x``, as evaluations have it and as if radii were independent."""
    pixels = torch.zeros(len(points), FEATURES)
    pixels[:, : points.shape[1]] = points
    radii = torch.cdist(points, points).fill_diagonal_(torch.inf).amin(1) / 2
    ids = tuple(map(str, range(len(points))))
    encoder = Encoder(nn.Flatten(), "pixels", Domain((FEATURES,)))
    population = Population(encoder, Images(pixels, ids), RunSettings())
    series = Series(quantity="radius", values=tuple(radii.tolist()), unit="l2 distance", claim=Claim.UPPER, of="radius")
    alone = radius_findings(ids, [series], "l2", ())
    return of_neighbours(alone, "radius", *neighbours(population, range(len(points)), L2Distance())), alone


def rows(law: str, size: int, replications: int) -> Iterator[Row]:
    """Yield the rows of the median and the quartiles for images of a law."""
    generator, draw = torch.Generator().manual_seed(size), LAWS[law]
    found = [(findings_of(draw(size, generator)), findings_of(draw(size, generator))) for _ in range(replications)]
    together = np.concatenate([one[0].series[0].values for pair in found for one in pair])
    wrong = [_told_apart(first[0], second[0]) for first, second in found]
    for name, share in {"median": 0.5, **QUARTILES}.items():
        truth = float(np.quantile(together, share))
        of: dict[str, list[Estimate]] = {"linked": [], "alone": []}
        for pair in found:
            for linked, alone in pair:
                of["linked"].append(_estimate(linked, name))
                of["alone"].append(_estimate(alone, name))
        covered = {
            kind: float(np.mean([each.low <= truth <= each.high for each in these])) for kind, these in of.items()
        }
        width = float(np.mean([each.high - each.low for each in of["linked"]])) / truth
        told = float(np.mean(wrong)) if name == "median" else None
        yield Row(law, size, name, covered["linked"], covered["alone"], width, told)


def _estimate(findings: Findings, name: str) -> Estimate:
    wanted = "radius" if name == "median" else f"radius_{name}"
    return next(each for each in findings.estimates if each.quantity == wanted)


def _told_apart(a: Findings, b: Findings) -> bool:
    return unpaired(_estimate(a, "median"), _estimate(b, "median")).outcome != "tied"


def main() -> None:
    """Print the table as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replications", type=int, default=200)
    given = parser.parse_args()
    print("| images drawn from | images | radius | covered | as if independent | width / truth | told apart |")
    print("|---|---|---|---|---|---|---|")
    for law in LAWS:
        for size in SIZES:
            for row in rows(law, size, given.replications):
                told = "" if row.wrong is None else f"{row.wrong:.3f}"
                print(
                    f"| {law} | {size} | {row.statistic.replace('_', ' ')} | {row.covered:.3f} | {row.independent:.3f} "
                    f"| {row.width:.2f} | {told} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
