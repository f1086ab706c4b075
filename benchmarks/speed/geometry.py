"""The geometry of a space against its floors: the plain matrix product of all pairs, and one Gram matrix."""

from __future__ import annotations

import resource
from functools import partial

import torch
from torch import Tensor

from benchmarks.measure import arguments, ratio
from holdfast.core.points.neighbours import nearest_neighbours
from holdfast.core.points.points import Points, points
from holdfast.geometry.spectrum import gram_of, rankme
from holdfast.geometry.sphere import potentials

FEATURES = 512


def products(codes: Tensor) -> None:
    """The floor: all pairs in blocks of a size that favours the product, results thrown away."""
    for left in codes.split(4096):
        for right in codes.split(4096):
            left @ right.T


def uniformity(codes: Points) -> float:
    """Return the uniformity of ``codes``."""
    return float(-potentials(codes).mean().log())


def main() -> None:
    """Print the rates of uniformity and neighbours as shares of the product's, and of RankMe against its Gram matrix."""
    given = arguments(
        __doc__ or "", {"--codes": "how many codes, 20000 by default; 100000 take minutes on a processor"}
    )
    n = int(given.codes or 20_000)
    codes = torch.randn(n, FEATURES, generator=torch.Generator().manual_seed(0)).to(given.device)
    codes /= codes.norm(dim=1, keepdim=True)
    place, floor = points(codes), partial(products, codes)
    for name, work in (
        ("uniformity", partial(uniformity, place)),
        ("10 neighbours", partial(nearest_neighbours, place, 10)),
    ):
        relative, ours, theirs = ratio(work, floor, given.device, given.repeats)
        print(f"{name} of {n} x {FEATURES}: {1 / relative:.0%} of the product's rate ({ours:.2f} s, {theirs:.2f} s)")
    for kind, gram in (("float64", partial(gram_of, codes)), ("float32", partial(torch.matmul, codes.T, codes))):
        relative, ours, theirs = ratio(partial(rankme, codes), gram, given.device, given.repeats)
        print(f"RankMe with its interval: {relative:.2f} x the {kind} Gram matrix ({ours:.2f} s, {theirs:.2f} s)")
    print(f"largest resident memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10:.0f} MB")


if __name__ == "__main__":
    main()
