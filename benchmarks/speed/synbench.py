"""SynBench against its floors: one eigendecomposition, the encoder's own forwards, and memory that samples do not move."""

from __future__ import annotations

import resource
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any

import torch
from torch import nn

from benchmarks.measure import arguments, ratio
from benchmarks.speed.attack_steps import encoders
from holdfast.core.encoder import Domain, Encoder
from holdfast.core.images import Images
from holdfast.core.run_settings import RunSettings
from holdfast.measure.population import Population
from holdfast.synthetic.evaluations.synbench import SynBench
from holdfast.synthetic.mixture import Mixture, secular

BUDGETS = (0.0, 0.2, 0.4, 0.6, 0.8)
FEATURES = 768


def rules(covariance: torch.Tensor, mean: torch.Tensor) -> None:
    """Solve for every budget, eigendecomposition included."""
    lam, axes = torch.linalg.eigh(covariance)
    _, w = secular(axes.T @ mean, lam, BUDGETS)
    w @ axes.T


def clocked(work: Callable[..., Any], spent: list[float], device: str) -> Callable[..., Any]:
    """Return ``work`` with the time it takes written down."""

    def timed(*args: Any, **kwargs: Any) -> Any:
        wait(device)
        start = perf_counter()
        result = work(*args, **kwargs)
        wait(device)
        spent.append(perf_counter() - start)
        return result

    return timed


def wait(device: str) -> None:
    """Let a device finish what it was given."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def share_beside_the_encoder(encoder: Encoder, device: str) -> tuple[float, float]:
    """Return the share of a run spent neither in forwards nor in sampling, and the seconds of the run."""
    population = Population(encoder, Images(torch.zeros(2, *encoder.domain.shape)), RunSettings(device=device))
    probe = SynBench(scales=(1.0, 2.0, 3.0)).observation()
    probe.observe(population, [0])
    spent: list[float] = []
    forward, sample = Population.encode, Mixture.sample
    setattr(Population, "encode", clocked(forward, spent, device))  # noqa: B010  (a method is not assignable by name)
    setattr(Mixture, "sample", clocked(sample, spent, device))  # noqa: B010
    try:
        start = perf_counter()
        probe.observe(population, [1, 2])
        wait(device)
        whole = perf_counter() - start
    finally:
        setattr(Population, "encode", forward)  # noqa: B010
        setattr(Mixture, "sample", sample)  # noqa: B010
    return 1 - sum(spent) / whole, whole


def resident(samples: int, size: int) -> float:
    """Return the largest resident memory so far, in MB, once two scales of ``samples`` inputs were probed."""
    encoder = Encoder(nn.Sequential(nn.AdaptiveAvgPool2d(8), nn.Flatten()), "pooled", Domain((3, size, size)))
    population = Population(encoder, Images(torch.zeros(2, *encoder.domain.shape)), RunSettings(batch_size=16))
    SynBench(scales=(1.0, 2.0), samples=samples).observation().observe(population, [0])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def main() -> None:
    """Print the three ratios."""
    given = arguments(__doc__ or "")
    few, many = resident(512, 64), resident(4096, 64)  # first, for what follows needs more
    print(f"largest resident memory {few:.0f} MB with 512 samples per set, {many / few:.3f} x that with 4096")
    generator = torch.Generator().manual_seed(0)
    codes = torch.randn(4 * FEATURES, FEATURES, generator=generator, dtype=torch.float64).to(given.device)
    covariance, mean = codes.T @ codes / len(codes), codes[0]
    relative, ours, theirs = ratio(
        partial(rules, covariance, mean), partial(torch.linalg.eigh, covariance), given.device, given.repeats
    )
    print(f"5 budgets at d = {FEATURES}: {relative:.3f} x one eigendecomposition ({ours:.3f} s, {theirs:.3f} s)")
    encoder, _ = encoders()["small ResNet, 3 x 32 x 32"]
    share, whole = share_beside_the_encoder(encoder, given.device)
    print(
        f"small ResNet, 3 x 32 x 32: {share:.1%} of a run is neither forwards nor sampling ({whole / 2:.1f} s per scale)"
    )


if __name__ == "__main__":
    main()
