"""Breakaway counts against their floor: the plain matrix product of the same size."""

from __future__ import annotations

import resource
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import Tensor

from benchmarks.measure import arguments, busy, ratio
from holdfast.core.divergences import Cosine, Divergence, L2Distance
from holdfast.core.points.counting import closer_counts, share_of_pairs_within

STREAMED = 1000, 1_000_000, 512
SIZES = ((1000, 100_000, 512), (1000, 10_000, 512), (1000, 10_000, 2048))


def products(moved: Tensor, clean: Tensor) -> None:
    """The floor: the product in blocks of a size that favours it, results thrown away."""
    for block in clean.split(10_000):
        moved @ block.T


def streamed(folder: Path, generator: torch.Generator) -> None:
    """Print the same for codes that stay on disk, in a memory-mapped array of 2 GB, once each and in processor seconds."""
    m, n, d = STREAMED
    with TemporaryDirectory(dir=folder) as scratch:
        array = np.lib.format.open_memmap(Path(scratch) / "codes.npy", "w+", np.float32, (n, d))
        for start in range(0, n, 10_000):
            array[start : start + 10_000] = torch.randn(10_000, d, generator=generator) + 3
        clean = torch.from_numpy(array)
        moved = clean[:m] + torch.randn(m, d, generator=generator)
        work = partial(closer_counts, L2Distance(), moved, torch.arange(m), clean)
        theirs, ours = busy(partial(products, moved, clean)), busy(work)
        print(
            f"{m} x {n} x {d} l2, mapped: {theirs / ours:.0%} of the product's rate ({ours:.1f} s, {theirs:.1f} s busy)"
        )


def main() -> None:
    """Print the share of the plain product's rate that counting reaches."""
    given = arguments(
        __doc__ or "", {"--scratch": "stream codes from an array of 2 GB, which is made here and removed"}
    )
    generator = torch.Generator().manual_seed(0)
    if given.scratch:
        streamed(Path(given.scratch), generator)
        return
    divergences: tuple[Divergence, ...] = (L2Distance(), Cosine())
    for m, n, d in SIZES:
        clean = (torch.randn(n, d, generator=generator) + 3).to(given.device)
        moved = clean[:m] + torch.randn(m, d, generator=generator).to(given.device)
        own = torch.arange(m, device=given.device)
        for divergence in divergences:
            work = partial(closer_counts, divergence, moved, own, clean)
            relative, ours, theirs = ratio(work, partial(products, moved, clean), given.device, given.repeats)
            print(
                f"{m} x {n} x {d} {divergence!s:8s} {1 / relative:.0%} of the product's rate ({ours:.2f} s, {theirs:.2f} s)"
            )
    clean = torch.randn(10_000, 128, generator=generator).to(given.device)
    thresholds = torch.rand(2000, generator=generator).to(given.device) * 30
    floor = partial(torch.matmul, clean.double(), clean.double().T)
    relative, ours, theirs = ratio(
        partial(share_of_pairs_within, L2Distance(), thresholds, clean), floor, given.device, max(1, given.repeats // 3)
    )
    print(
        f"all pairs of 10000 x 128, 2000 thresholds: {relative:.1f} x one float64 product ({ours:.2f} s, {theirs:.2f} s)"
    )
    print(f"largest resident memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10:.0f} MB")


if __name__ == "__main__":
    main()
