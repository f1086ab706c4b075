"""How often the interval of the agreement of ``harden`` holds the mean cosine similarity, for cosines of real hardenings.

``python -m benchmarks.statistics.coverage_agreement --replications 4000``

Cosines are bounded by 1 and skewed: most are near it, and few images move far. The population of each training are the
cosines of 1,000 built-in digits before and after. Runs are drawn from it with replacement, so its mean is known. In groups,
each image comes with the three that are nearest to it in cosine: images of a group move alike.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

import holdfast as hf
from holdfast.commands.train import train
from holdfast.core.balls import Linf
from holdfast.training.hardening import Promise, recipe_for

ENCODER, IMAGES = "builtin:digits-contrastive", "builtin:digits-train"
TAUGHT, POOL, GROUP = 200, 1000, 4
SIZES = (20, 60, 200)
TRAININGS: dict[str, dict[str, Any]] = {
    "ε = .1": {"ball": Linf(0.1), "rate": 1e-3, "epochs": 30},
    "ε = .3": {"ball": Linf(0.3), "rate": 3e-3, "epochs": 40},
    "rotation and blur": {"ball": Linf(0.1), "edits": ("rotation", "blur"), "rate": 1e-3, "epochs": 30},
    "ε = .3, too fast": {"ball": Linf(0.3), "rate": 1e-2, "epochs": 10},
}
"""Trainings as ``harden`` makes them; the last one moves some images far."""
Cosines = Float[np.ndarray, "n"]


@dataclass(frozen=True)
class Row:
    """How often the interval held the mean of a population of cosines."""

    training: str
    mean: float
    least: float
    images: int
    grouped: bool
    covered: float
    kept_wrongly: float
    """Fraction of draws whose lower end is above the mean, so that a floor at the mean counts as kept."""
    width: float


def cosines(name: str) -> Cosines:
    """Cosine similarity of each image of the pool before and after a training, shape (n,)."""
    encoder = hf.load_encoder(ENCODER)
    images = hf.load_images(IMAGES, encoder)
    taught, pool = images[:TAUGHT], images[TAUGHT : TAUGHT + POOL]
    hardened = train(recipe_for(encoder, TAUGHT, **TRAININGS[name]), taught, start=encoder, progress=False)
    pixels = pool.pixels(range(len(pool)))
    return torch.cosine_similarity(encoder(pixels).double(), hardened(pixels).double()).numpy()


def row(training: str, values: Cosines, images: int, grouped: bool, replications: int) -> Row:
    """Draw runs from a population of cosines.

    Args:
        training: Name of the training.
        values: Population, shape (n,).
        images: Images of a run.
        grouped: True to draw groups of ``GROUP`` images that moved alike.
        replications: Runs to draw.
    """
    rng, each = np.random.default_rng(0), GROUP if grouped else 1
    blocks = np.sort(values)[: len(values) // each * each].reshape(-1, each)
    names = [f"group{number}" for number in range(images // each) for _ in range(each)]
    truth, found = float(blocks.mean()), []
    for _ in range(replications):
        drawn = blocks[rng.integers(len(blocks), size=images // each)].ravel()
        promise = Promise.of(truth, torch.from_numpy(drawn), names if grouped else None)
        found.append((promise.low, promise.high))
    low, high = np.array(found).T
    covered, width = float(((low <= truth) & (truth <= high)).mean()), float((high - low).mean())
    return Row(training, truth, float(values.min()), images, grouped, covered, float((low > truth).mean()), width)


def simulated(replications: int) -> Iterator[Row]:
    """Yield the row of every training and size."""
    for training in TRAININGS:
        values = cosines(training)
        for images in SIZES:
            for grouped in (False, True):
                yield row(training, values, images, grouped, replications)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--replications", type=int, default=4000)
    print("| training | mean cosine, least | images | groups of 4 | covered | floor at the mean called kept | width |")
    print("|---|---|---|---|---|---|---|")
    for each in simulated(parser.parse_args().replications):
        print(
            f"| {each.training} | {each.mean:.3f}, {each.least:.3f} | {each.images} | {'yes' if each.grouped else 'no'} "
            f"| {each.covered:.3f} | {each.kept_wrongly:.3f} | {each.width:.4f} |",
            flush=True,
        )
