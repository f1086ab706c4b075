"""How often drift is found where there is none, and where there is: the tests of ``holdfast drift``, again and again.

    python -m benchmarks.statistics.false_alarms --trials 1000

False alarms: both sets are drawn from one distribution, log-normal in three dimensions, 60 and 40 samples. Power: the test
images of the built-in digits, ``--size`` of them before and as many others after a corruption.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator

import torch
from torch import Tensor

import holdfast as hf
from holdfast.core.noise import Noise
from holdfast.evaluations.deployed.comparison import compare
from holdfast.evaluations.deployed.moved import by_direction
from holdfast.evaluations.deployed.new_images import beyond_support
from holdfast.evaluations.deployed.two_sets import TwoSets, half
from holdfast.transforms.base import Transform

ALPHA = 0.05
CORRUPTIONS = ("noise:0.2", "contrast:0.6", "rotation:10.0")


def two_sets(before: Tensor, after: Tensor, trial: int) -> TwoSets:
    """Return two sets of codes under names of their own."""
    old, new = (tuple(f"{trial}/{side}/{k}" for k in range(len(part))) for side, part in (("a", before), ("b", after)))
    return TwoSets(before.double(), after.double(), old, new, old, new, half(old, trial), half(new, trial))


def alarms(sets: TwoSets, permutations: int) -> list[str]:
    """Return which of the tests say that something has changed."""
    comparison = compare(sets, permutations, 0)
    directions = [e.value for e in by_direction(sets, comparison.weights, 8) if e.quantity == "direction_p_value"]
    _, energy, _, classifier = comparison.tests
    chances = {
        "drift": comparison.chance.value,
        "energy": energy.value,
        "classifier": classifier.value,
        "directions": min(directions),
    }
    found = [name for name, chance in chances.items() if chance <= ALPHA]
    if comparison.bet(ALPHA).verdict.status == "refuted":
        found.append("sequential")
    if beyond_support(sets, ALPHA, 0.1)[0][1].value > 0:
        found.append("new images")
    return found


def alike(trials: int) -> Iterator[TwoSets]:
    """Yield pairs of sets from one distribution."""
    for trial in range(trials):
        drawn = Noise.of(trial, list(map(str, range(100)))).normal((3,), torch.float64).exp()
        yield two_sets(drawn[:60], drawn[60:], trial)


def corrupted(corruption: str, size: int, trials: int) -> Iterator[TwoSets]:
    """Yield digits and other digits under a corruption."""
    encoder = hf.load_encoder("builtin:digits-contrastive")
    images = hf.load_images("builtin:digits", encoder)
    changed = hf.transformed(images, Transform.read(corruption))
    clean, moved = (encoder(each.pixels(range(len(each)))).detach() for each in (images, changed))
    for trial in range(trials):
        order = Noise.of(trial, images.ids).uniform(()).argsort()
        yield two_sets(clean[order[:size]], moved[order[size : 2 * size]], trial)


def rates(pairs: Iterator[TwoSets], trials: int, permutations: int) -> dict[str, float]:
    """Return the share of pairs in which each test found something."""
    counts = Counter(name for sets in pairs for name in alarms(sets, permutations))
    names = ("drift", "energy", "classifier", "directions", "sequential", "new images")
    return {name: counts[name] / trials for name in names}


def main() -> None:
    """Print the rates."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--power-trials", type=int, default=100)
    parser.add_argument("--permutations", type=int, default=199)
    parser.add_argument("--size", type=int, default=100)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print("alike", rates(alike(asked.trials), asked.trials, asked.permutations))
    for corruption in CORRUPTIONS:
        pairs = corrupted(corruption, asked.size, asked.power_trials)
        print(corruption, rates(pairs, asked.power_trials, asked.permutations))


if __name__ == "__main__":
    main()
