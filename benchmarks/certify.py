"""Certified radii against their floor, one CROWN pass of the same anchor's inner bounds; and their time and memory.

With HOLDFAST_REFERENCE set, MNIST CNN-A, CIFAR-10 Base and CNN-B have published weights and real images; Deep, and
everything without it, has random ones.
"""

from __future__ import annotations

import os
import resource
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.measure import arguments, ratio, seconds
from holdfast.balls import Linf
from holdfast.bounds import Crown, certified_radius
from holdfast.bounds.crown import relax
from holdfast.bounds.graph import Graph
from holdfast.bounds.regions import Region, region
from holdfast.bounds.tracing import trace
from holdfast.encoder import Domain, Encoder

MNIST, CIFAR = Domain((1, 28, 28)), Domain((3, 32, 32))
PUBLISHED = {"CNN-A": "mnist_cnn_4layer_a", "Base": "cifar10_base_adv4", "CNN-B": "cifar10_cnn_4layer_b"}
THEIRS = {"CNN-A": 3.0, "Base": 3.4, "Deep": 17.8, "CNN-B": 41.0}
"""Seconds that the authors' program takes for an anchor with 10 negatives, to 1e-3, on another machine."""
MOST = Linf(0.5)
PASSES = 20
"""Passes that the floor takes in one go: a single one after long work is slowed by what else the machine does."""


class Standardised(nn.Module):
    """CIFAR-10 encoders expect the pixels' mean taken off and divided by 0.225."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers
        self.mean = nn.Buffer(torch.tensor([0.485, 0.456, 0.406]).reshape(3, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers((x - self.mean) / 0.225)


def layers() -> dict[str, list[nn.Module]]:
    """Return the networks of the paper."""
    relu, flat = nn.ReLU, nn.Flatten
    conv = nn.Conv2d
    deep = [conv(3, 8, 4, 2, 1), relu(), conv(8, 8, 3, 1, 1), relu(), conv(8, 8, 3, 1, 1), relu(), conv(8, 8, 4, 2, 1)]
    return {
        "CNN-A": [conv(1, 16, 4, 2, 1), relu(), conv(16, 32, 4, 2, 1), relu(), flat(), nn.Linear(1568, 100)],
        "Base": [conv(3, 8, 4, 2, 1), relu(), conv(8, 16, 4, 2, 1), relu(), flat(), nn.Linear(1024, 100)],
        "Deep": [*deep, relu(), flat(), nn.Linear(512, 100)],
        "CNN-B": [
            nn.ZeroPad2d((1, 2, 1, 2)),
            conv(3, 32, 5, 2),
            relu(),
            conv(32, 128, 4, 2, 1),
            relu(),
            flat(),
            nn.Linear(8192, 100),
        ],
    }


def encoders(folder: Path | None) -> dict[str, Encoder]:
    """Return them as encoders of pixels, with published weights from ``folder`` where there are any."""
    found = {}
    for name, parts in layers().items():
        torch.manual_seed(0)
        module = nn.Sequential(*parts)
        if folder and name in PUBLISHED:
            module.load_state_dict(torch.load(folder / "encoders" / f"{PUBLISHED[name]}.pt", weights_only=True))
        whole, domain = (module, MNIST) if name == "CNN-A" else (Standardised(module), CIFAR)
        found[name] = Encoder(whole.eval(), name, domain)
    return found


def images(domain: Domain, folder: Path | None, count: int = 101) -> Tensor:
    """Return real images if there are any, or noise."""
    if folder is None:
        return torch.rand(count, *domain.shape, generator=torch.Generator().manual_seed(0))
    file = folder / "images" / ("mnist_test.npz" if domain is MNIST else "cifar10_raw200.npz")
    return torch.tensor(np.load(file)["images"][:count]).float() / 255


class Case:
    """One anchor of an encoder, with up to 100 negatives."""

    def __init__(self, encoder: Encoder, x: Tensor, dtype: torch.dtype) -> None:
        self.encoder, self.x, self.graph = encoder, x[:1].to(dtype), trace(encoder, dtype)
        codes = nn.functional.normalize(self.graph(x.to(dtype)), dim=1)
        self.rows = (codes[:1] - codes[1:])[None]

    def radii(self, count: int, tolerance: float) -> Tensor:
        """Return the radii against the first ``count`` negatives."""
        return certified_radius(self.encoder, self.x, self.rows[:, :count], MOST, Crown(), tolerance)

    def inner(self, eps: float) -> None:
        """The floor: boxes of all inner layers at one radius, ``PASSES`` times."""
        around = region(self.x, Linf, torch.full_like(self.x[:, 0, 0, 0], eps), self.encoder.domain)
        for _ in range(PASSES):
            inner_bounds(self.graph, around)


@torch.no_grad()
def inner_bounds(graph: Graph, around: Region) -> None:
    """Bound every layer but the last."""
    relax(graph, around)


def main() -> None:
    """Print ratios of radii to one pass of inner bounds, seconds at the other program's tolerance, and peak memory."""
    given = arguments((__doc__ or "").partition("\n")[0])
    root = os.environ.get("HOLDFAST_REFERENCE")
    folder = Path(root) if root else None
    for name, encoder in encoders(folder).items():
        case = Case(encoder, images(encoder.domain, folder), torch.float64)
        floor = partial(case.inner, float(case.radii(10, 1e-3).mean()))
        ten, ours, _ = ratio(partial(case.radii, 10, 1e-4), floor, given.device, given.repeats)
        more, hundred, _ = ratio(partial(case.radii, 100, 1e-4), floor, given.device, given.repeats)
        rough = sorted(seconds(partial(case.radii, 10, 1e-3), given.device) for _ in range(given.repeats))
        time = rough[len(rough) // 2]
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(
            f"{name:6s} K = 10: {PASSES * ten:5.1f} passes, K = 100: {PASSES * more:5.1f} passes, "
            f"{hundred / ours:.2f} x K = 10; to 1e-3: {time:.3f} s, "
            f"{THEIRS[name] / time:.0f} x the authors' program; peak so far {peak:.2f} GB"
        )


if __name__ == "__main__":
    main()
