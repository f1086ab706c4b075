"""Which bounding methods are worth their time: tightness against processor seconds, on built-in and reference encoders.

A method gets the pairs of the first test image with the images after it, at multiples of the radius that CROWN
certifies (in l2 balls `lipschitz`). Tightness is the fraction of a proved loss that an attack reaches: 1 is exact.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from unittest.mock import patch

import torch

from benchmarks import published
from benchmarks.measure import busy
from benchmarks.speed.tightness import digits, pair_attack, real
from holdfast.bounds import read_method
from holdfast.bounds.certified_pairs import PairAttack
from holdfast.bounds.methods.base import methods, vacuous_unless_finite
from holdfast.bounds.pair_bounds import certified_radii
from holdfast.bounds.regions import region
from holdfast.core.errors import HoldfastError

NEGATIVES = 3
MULTIPLES = (1.0, 2.0)
SETTINGS = {
    "branch": "branch:seconds={},target=9",
    "semidefinite": "semidefinite:seconds={}",
    "exact": "exact:seconds={}",
}
"""Methods that take the time given to them; no bound reaches the target of `branch`, so that it uses all of it."""
SMALL = 200
"""Most pixels of images for which `exact` is tried."""


def bounded(attack: PairAttack, method: str, eps: list[float], attacked: list[torch.Tensor]) -> tuple[float, float]:
    """Return the mean tightness of a method over all radii and pairs, and its processor seconds for a radius."""
    pairs, found = attack.pairs, list[torch.Tensor]()
    clean = (pairs.specifications @ pairs.graph(pairs.anchors)[..., None]).squeeze(2)

    def work() -> None:
        for radius in eps:
            radii = torch.full_like(pairs.specifications[:, 0, 0], radius)
            ball = region(pairs.anchors, type(attack.ball), radii, pairs.encoder.domain, inputs=pairs.graph.inputs)
            found.append(vacuous_unless_finite(read_method(method)(pairs.graph, ball, pairs.specifications)))

    # Limits count processor time, else a busy machine cuts methods short. The solver of `exact` has a clock of its own.
    with patch("time.monotonic", time.process_time):
        spent = busy(work)
    ratios = [(clean - low) / (clean - bound) for low, bound in zip(attacked, found, strict=True)]
    return float(torch.stack(ratios).mean()), spent / len(eps)


def rows(attack: PairAttack, names: list[str], seconds: str) -> Iterator[tuple[str, float, float]]:
    """Yield each method that can bound the encoder, with its tightness and seconds; why others cannot is printed."""
    pairs = attack.pairs
    cheap = read_method("crown" if attack.ball.name == "linf" else "lipschitz")
    radius = float(certified_radii(pairs, attack.ball, cheap, 1e-3).mean())
    eps = [multiple * radius for multiple in MULTIPLES]
    lowest = [attack(torch.full((pairs.shape.numel(),), e, dtype=pairs.images.dtype), "methods").values for e in eps]
    attacked = [values.reshape(pairs.shape) for values in lowest]
    for name in names:
        if name == "exact" and torch.Size(pairs.graph.nodes[0].shape).numel() > SMALL:
            continue
        try:
            yield name, *bounded(attack, SETTINGS.get(name, name).format(seconds), eps, attacked)
        except HoldfastError as error:
            print(f"  {name}: {error}")


def main() -> None:
    """Print for each encoder and norm all methods by time; a star marks those that no faster one matches."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="*", help="encoders; default: all")
    parser.add_argument("--norms", nargs="*", default=["linf", "l2"])
    parser.add_argument("--methods", nargs="*", default=list(methods()))
    parser.add_argument("--seconds", default="2", help="processor seconds of methods with a limit")
    given = parser.parse_args()
    torch.set_num_threads(1)
    for encoder, images in [*digits(), *(real() if published.folder() else ())]:
        if given.only and encoder.name not in given.only:
            continue
        for norm in given.norms:
            print(f"{encoder.name} {norm}", flush=True)
            attack = pair_attack(encoder, images, 0, NEGATIVES, norm)
            best = 0.0
            for name, tight, seconds in sorted(rows(attack, given.methods, given.seconds), key=lambda row: row[2]):
                print(f"  {name:12} {tight:.3f} {seconds:8.3f} s{' *' if tight > best else ''}", flush=True)
                best = max(best, tight)


if __name__ == "__main__":
    main()
