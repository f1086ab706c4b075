"""Everyday edits and common corruptions against their floor: the same transforms and the same forwards, nothing else."""

from __future__ import annotations

from functools import partial

import torch

from benchmarks.measure import arguments, ratio
from benchmarks.speed.attack_steps import encoders
from holdfast.core.images import Images
from holdfast.core.run_settings import RunSettings
from holdfast.corruptions.corrupted_codes import SEVERITIES, CorruptedAnswers
from holdfast.corruptions.edits import Edited, ready
from holdfast.corruptions.evaluations.common_perturbations import CommonPerturbations
from holdfast.measure.population import Population
from holdfast.probes.linear import Linear
from holdfast.transforms.base import Transform, transforms

IMAGES = 1000


def main() -> None:
    """Print what neighbours, balls and probes add to forwards and transforms, for one batch among a thousand images."""
    given = arguments(__doc__ or "")
    for name, (encoder, batch) in encoders().items():
        run, rows = RunSettings(device=given.device), list(range(batch))
        torch.manual_seed(0)
        pixels, labels = torch.rand(2 * IMAGES, *encoder.domain.shape), torch.arange(IMAGES) % 10
        images = Images(pixels[:IMAGES], labels=labels)
        bank = Population(encoder, Images(pixels[IMAGES:], [f"bank{k}" for k in range(IMAGES)], labels), run)
        population = Population(encoder, images, run, bank=bank)
        edits = CommonPerturbations(chained=1).observation()
        fog = tuple(transforms()["fog-c"].read(f"fog-c:{severity}") for severity in SEVERITIES)
        answers = CorruptedAnswers((Linear(),), fog, batch)
        observations: list[tuple[str, Edited | CorruptedAnswers, tuple[Transform, ...]]] = [
            ("45 everyday edits", edits, edits.edits),
            ("fog, 5 severities", answers, fog),
        ]
        for label, observation, changes in observations:
            work = partial(observation.observe, population, rows)
            floor = partial(forward_passes, population, rows, changes)
            relative, ours, theirs = ratio(work, floor, given.device, given.repeats)
            each = len(changes) * batch
            said = f"{1e6 * ours / each:.0f} us per edited image, floor {1e6 * theirs / each:.0f} us"
            print(f"{name:28s} {label:20s} {relative:.3f} x ({said})")


def forward_passes(population: Population, rows: list[int], changes: tuple[Transform, ...]) -> None:
    """The floor: as many transforms and forwards, and nothing else."""
    pixels, noise = ready(population, rows)
    for change in changes:
        population.encode(change(pixels, noise))


if __name__ == "__main__":
    main()
