"""Spectral scores against their floor, one blocked n x n x d product of the same inputs, in one thread of this process.

Memory is what the process holds beyond its inputs. Above 10,000 samples the floor is scaled from a share of its rows.
``--published`` takes MNIST's test images and the codes of encoders with published weights from HOLDFAST_REFERENCE instead.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable
from math import log
from pathlib import Path

import torch
from torch import Tensor

from benchmarks import published
from holdfast.core.points.neighbours import ROWS, nearest_neighbours
from holdfast.core.points.points import points
from holdfast.spectral.eigen import spectrum
from holdfast.spectral.graph_pair import KNN, GraphPair, checked, draw
from holdfast.spectral.resistance import hops, one_thread, resistances

FEATURES, CODES, LATENT, K = 784, 100, 12, 10
ENCODERS = ("mnist_base", "mnist_cnn_4layer_a")


def samples(n: int) -> tuple[Tensor, Tensor]:
    """Return inputs near a manifold of ``LATENT`` dimensions, in ten clusters, and codes that fold it."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(10, LATENT, generator=generator)
    latent = centres[torch.randint(0, 10, (n,), generator=generator)] + torch.randn(n, LATENT, generator=generator)
    wide = torch.randn(LATENT, FEATURES, generator=generator)
    inputs = torch.tanh(latent @ wide / 2) + 0.1 * torch.randn(n, FEATURES, generator=generator)
    folded = torch.cat([latent, 2 * torch.sin(1.5 * latent)], 1)
    codes = folded @ torch.randn(2 * LATENT, CODES, generator=generator)
    return inputs, codes + 0.1 * torch.randn(n, CODES, generator=generator)


def real(root: Path, weights: str) -> tuple[Tensor, Tensor]:
    """Return MNIST's test images and their codes."""
    images, encoder = published.images(root, 1), published.encoder(root, weights)
    return images.flatten(1), torch.cat([encoder(part) for part in images.split(1000)])


def seconds(work: Callable[[], object]) -> float:
    """Return the processor seconds of ``work``."""
    began = time.process_time()
    work()
    return time.process_time() - began


def product(inputs: Tensor) -> float:
    """Return the seconds of the floor, from at most 10,000 rows."""
    rows = min(len(inputs), 10_000)

    def work() -> None:
        for start in range(0, rows, ROWS):
            for block in inputs.split(10_000):
                inputs[start : min(start + ROWS, rows)] @ block.T

    return seconds(work) * len(inputs) / rows


def graphs(inputs: Tensor, codes: Tensor) -> tuple[GraphPair, float, float]:
    """Return the graphs of samples, the seconds they took and those of the floor."""
    drawn: list[GraphPair] = []

    def work() -> None:
        drawn.append(draw(*checked(inputs, codes), K, KNN()))

    took = seconds(work)
    return drawn[0], took, product(inputs)


def solver(drawing: GraphPair, r: int, tolerance: float) -> float:
    """Return the seconds of the ``r`` largest eigenvalues; the smaller of two runs, for the first loads libraries."""
    return min(seconds(lambda: spectrum(drawing.inputs, drawing.outputs, r, tolerance)) for _ in range(2))


def small(inputs: Tensor, codes: Tensor) -> float:
    """Print every part as a ratio to the floor, and return the seconds of the largest eigenvalue."""
    drawing, took, floor = graphs(inputs, codes)
    exact = seconds(lambda: nearest_neighbours(points(inputs), K))
    score = solver(drawing, 1, 1e-3)
    parts = {
        "neighbours of the inputs": exact,
        "both graphs": took,
        "lambda_max to 1e-3": score,
        "ten eigenvectors": solver(drawing, 10, 1e-5),
        "hops of all input edges": seconds(lambda: hops(drawing.outputs, drawing.inputs.edges)),
        "resistances of all input edges": seconds(lambda: resistances(drawing.outputs, drawing.inputs.edges)),
    }
    print(f"n = {len(inputs):,}, one product {floor:.2f} s ({len(codes[0])} codes, k = {K})")
    for name, spent in parts.items():
        print(f"  {name:32s} {spent / floor:7.3f} x product {spent / exact:7.3f} x neighbours ({spent:.3f} s)")
    return score


def main() -> None:
    """Print the ratios at 10,000 samples, and how the largest eigenvalue scales."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--large", type=int, nargs="*", default=[50_000, 100_000, 200_000], help="larger sizes")
    parser.add_argument("--published", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    with one_thread():
        if given.published:
            root = published.folder()
            assert root, "HOLDFAST_REFERENCE is not set"
            for weights in ENCODERS:
                print(weights)
                small(*real(root, weights))
            return
        first = small(*samples(10_000))
        for n in given.large:
            drawing, took, floor = graphs(*samples(n))
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            spent, ten = solver(drawing, 1, 1e-3), solver(drawing, 10, 1e-5)
            grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
            exponent = log(spent / first) / log(n / 10_000)
            recall = min(drawing.recall)
            print(f"n = {n:,}: graphs {took:.1f} s ({took / floor:.2f} x product), recall {recall:.5f}")
            print(f"  lambda_max {spent:.2f} s, exponent {exponent:.2f}; ten vectors {ten:.1f} s; +{grown:.0f} MB")


if __name__ == "__main__":
    main()
