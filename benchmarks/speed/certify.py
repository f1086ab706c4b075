"""Certified radii against one CROWN pass of the same anchor's intermediate bounds; and their time and memory.

With HOLDFAST_REFERENCE set, MNIST CNN-A, CIFAR-10 Base and CNN-B have published weights and real images; Deep, and
everything without it, has random ones.
"""

from __future__ import annotations

import resource
from functools import partial
from pathlib import Path
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks import published
from benchmarks.measure import arguments, ratio, seconds
from holdfast.bounds import Crown, certified_radius
from holdfast.bounds.methods.crown import relax
from holdfast.bounds.network.network_graph import Graph
from holdfast.bounds.network.tracing import trace
from holdfast.bounds.regions import Region, region
from holdfast.core.balls import Linf
from holdfast.core.encoder import Encoder
from holdfast.encoders import rvcl

NETWORKS = {
    "CNN-A": (rvcl.mnist_cnn_a, "mnist_cnn_4layer_a"),
    "Base": (rvcl.cifar_base, "cifar10_base_adv4"),
    "Deep": (rvcl.cifar_deep, None),
    "CNN-B": (rvcl.cifar_cnn_b, "cifar10_cnn_4layer_b"),
}
"""Architecture and published weights."""
THEIRS = {"CNN-A": 3.0, "Base": 3.4, "Deep": 17.8, "CNN-B": 41.0}
"""Seconds that the authors' program takes for an anchor with 10 negatives, to 1e-3, on another machine."""
MOST = Linf(0.5)
IMAGES = 101
PASSES = 20
"""Passes that the floor takes in one go: a single one after long work is slowed by what else the machine does."""


def subject(name: str, folder: Path | None) -> tuple[Encoder, Tensor]:
    """Return a network of the paper and images: published weights and real images from ``folder`` where there are any."""
    make, weights = NETWORKS[name]
    torch.manual_seed(0)
    encoder = published.encoder(folder, weights) if folder and weights else make()
    if folder:
        return encoder, published.images(folder, encoder.domain.shape[0], IMAGES)
    return encoder, torch.rand(IMAGES, *encoder.domain.shape)


class Case:
    """One anchor of an encoder, with up to 100 negatives."""

    def __init__(self, encoder: Encoder, x: Tensor, dtype: torch.dtype, device: str) -> None:
        self.encoder = encoder.to(device, dtype)
        self.x, self.graph = x[:1].to(device, dtype), trace(self.encoder, dtype, device)
        codes = functional.normalize(self.graph(x.to(device, dtype)), dim=1)
        self.specifications = (codes[:1] - codes[1:])[None]

    def radii(self, count: int, tolerance: float) -> Tensor:
        """Return the radii against the first ``count`` negatives."""
        return certified_radius(self.encoder, self.x, self.specifications[:, :count], MOST, Crown(), tolerance)

    def regions(self, count: int) -> int:
        """Return how many regions those radii take, to 1e-4."""
        seen: list[int] = []
        true = Crown.__call__

        def counted(method: Crown, graph: Graph, around: Region, specifications: Tensor) -> Tensor:
            seen.append(around.distinct)
            return true(method, graph, around, specifications)

        with patch.object(Crown, "__call__", counted):
            self.radii(count, 1e-4)
        return sum(seen)

    def inner(self, eps: float) -> None:
        """The floor: intermediate bounds at one radius, ``PASSES`` times."""
        around = region(self.x, Linf, torch.full_like(self.x[:, 0, 0, 0], eps), self.encoder.domain)
        for _ in range(PASSES):
            intermediate_bounds(self.graph, around)


@torch.no_grad()
def intermediate_bounds(graph: Graph, around: Region) -> None:
    """Bound every layer but the last."""
    relax(graph, around)


def main() -> None:
    """Print ratios of radii to one pass of inner bounds, seconds at the other program's tolerance, and peak memory."""
    given = arguments((__doc__ or "").partition("\n")[0], {"--only": "one network, so that its memory is its own"})
    for name in [given.only] if given.only else NETWORKS:
        case = Case(*subject(name, published.folder()), torch.float64, given.device)
        floor = partial(case.inner, float(case.radii(10, 1e-3).mean()))
        ten, ours, _ = ratio(partial(case.radii, 10, 1e-4), floor, given.device, given.repeats)
        more, hundred, _ = ratio(partial(case.radii, 100, 1e-4), floor, given.device, given.repeats)
        rough = sorted(seconds(partial(case.radii, 10, 1e-3), given.device) for _ in range(given.repeats))
        time = rough[len(rough) // 2]
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(
            f"{name:6s} K = 10: {PASSES * ten:5.1f} passes, K = 100: {PASSES * more:5.1f} passes, "
            f"{hundred / ours:.2f} x K = 10; {case.regions(10)} and {case.regions(100)} regions; to 1e-3: {time:.3f} s, "
            f"{THEIRS[name] / time:.0f} x the authors' program; peak so far {peak:.2f} GB"
        )


if __name__ == "__main__":
    main()
