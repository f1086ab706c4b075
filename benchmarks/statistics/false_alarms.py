"""How often drift is found where there is none, and where there is: the tests of ``holdfast drift``, again and again.

    python -m benchmarks.statistics.false_alarms --trials 1000
    python -m benchmarks.statistics.false_alarms --trials 0 --encoder python:examples.real_encoder:lite0 --images photos/ \\
        --changes jpeg:30,noise:0.1 --size 72 --power-trials 20

False alarms: both sets are drawn from one distribution, log-normal in three dimensions, 60 and 40 samples. Power: of the
images, ``--size`` before and as many others after a change; before that, as many others as they are.
``--recurring`` draws both sets from one law of which some images are blank, so that copies are in both sets.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import holdfast as hf
from holdfast.core.noise import Noise
from holdfast.core.run_settings import RunSettings
from holdfast.service.drift_findings import beyond_support, by_direction, compare
from holdfast.service.evaluations.drift import Drift
from holdfast.service.two_sets import TwoSets, half
from holdfast.transforms.base import Transform

ALPHA = 0.05
FLAT = nn.Flatten()
BATCH = 16
UNCHANGED = "unchanged"


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


RECURRING = ((100, 0.1), (100, 0.2), (250, 0.05), (250, 0.1))
"""Images in each set, and the fraction of blank ones."""


def chance_of_recurring(size: int, blank: float, trial: int, permutations: int) -> float:
    """Return the p-value of drift between two sets of one law, of whose images a fraction are ``blank``, one image."""
    noise = Noise.of(trial, list(map(str, range(2 * size))))
    pixels = torch.where(noise.fork("blank").uniform((1, 1, 1)) < blank, 0.0, noise.uniform((1, 2, 2)))
    before, after = hf.Images(pixels[:size]), hf.Images(pixels[size:])
    evaluation = Drift(permutations=permutations, edits=("noise",), samples=3, directions=1)
    run = RunSettings(seed=trial)
    return (
        evaluation(hf.Encoder(FLAT, "pixels", hf.Domain((1, 2, 2))), after, run, before).estimate("drift_p_value").value
    )


@dataclass(frozen=True)
class Changed:
    """Codes of images, as they are and after each change."""

    ids: tuple[str, ...]
    codes: dict[str, Tensor]

    @classmethod
    def of(cls, encoder: str, images: str, changes: Sequence[str]) -> Changed:
        """Return the codes of ``images`` by references, and of what each of ``changes`` makes of them."""
        loaded = hf.load_encoder(encoder)
        as_they_are = hf.load_images(images, loaded)
        codes = {UNCHANGED: encoded(loaded, as_they_are)}
        for change in changes:
            codes[change] = encoded(loaded, hf.transformed(as_they_are, Transform.read(change)))
        return cls(as_they_are.ids, codes)

    def pairs(self, change: str, size: int, trials: int) -> Iterator[TwoSets]:
        """Yield some of the images as they are, and as many others after a change."""
        for trial in range(trials):
            order = Noise.of(trial, self.ids).uniform(()).argsort()
            before, after = order[:size], order[size : 2 * size]
            yield two_sets(self.codes[UNCHANGED][before], self.codes[change][after], trial)


def encoded(encoder: hf.Encoder, images: hf.Images) -> Tensor:
    """Return the codes of all images."""
    with torch.no_grad():
        batches = torch.arange(len(images)).split(BATCH)
        return torch.cat([encoder(images.pixels(rows.tolist())) for rows in batches])


def rates(pairs: Iterator[TwoSets], trials: int, permutations: int) -> dict[str, float]:
    """Return the share of pairs in which each test found something."""
    counts = Counter(name for sets in pairs for name in alarms(sets, permutations))
    names = ("drift", "energy", "classifier", "directions", "sequential", "new images")
    return {name: counts[name] / trials for name in names}


def main() -> None:
    """Print the rates."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--power-trials", type=int, default=100)
    parser.add_argument("--permutations", type=int, default=199)
    parser.add_argument("--encoder", default="builtin:digits-contrastive")
    parser.add_argument("--images", default="builtin:digits")
    parser.add_argument("--changes", default="noise:0.2,contrast:0.6,rotation:10.0")
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--recurring", type=int, default=0, help="trials with images that recur in both sets")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.trials:
        print("one distribution", rates(alike(asked.trials), asked.trials, asked.permutations), flush=True)
    for size, blank in RECURRING if asked.recurring else ():
        chances = [chance_of_recurring(size, blank, trial, asked.permutations) for trial in range(asked.recurring)]
        alarmed = sum(chance <= ALPHA for chance in chances)
        print(f"{size} + {size} images, {blank:.0%} blank: {alarmed} of {asked.recurring}", flush=True)
    changes = asked.changes.split(",") if asked.power_trials else []
    changed = Changed.of(asked.encoder, asked.images, changes)
    for change in (UNCHANGED, *changes) if changes else ():
        pairs = changed.pairs(change, asked.size, asked.power_trials)
        print(change, rates(pairs, asked.power_trials, asked.permutations), flush=True)


if __name__ == "__main__":
    main()
