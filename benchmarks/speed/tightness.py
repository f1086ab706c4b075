"""How much of the attacked radius is certified, pair by pair, by a method that is given time.

Anchors are the first images, the negatives of each those that follow it, in a ring of 20. ``--digits`` measures the
built-in encoders; otherwise HOLDFAST_REFERENCE names the folder of published weights and images.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from statistics import mean, median

import torch

from benchmarks import published
from holdfast import data
from holdfast.bounds import read_method
from holdfast.bounds.certified_pairs import PairAttack, image_pairs, unit_ball
from holdfast.bounds.evaluations.certified_radius import CertifiedRadius
from holdfast.bounds.pair_bounds import radius_bounds
from holdfast.core.encoder import Encoder
from holdfast.core.images import Images
from holdfast.core.run_settings import RunSettings
from holdfast.encoders import load
from holdfast.encoders.builtin import names
from holdfast.measure.population import Population

MEASURED = ("mnist_base", "mnist_cnn_4layer_a", "mnist_cnn_4layer_a_adv3", "cifar10_base_adv4")
IMAGES = 20
TOLERANCE = 1e-3


def digits() -> Iterator[tuple[Encoder, Images]]:
    """Yield the built-in encoders, with images."""
    for name in names():
        encoder = load(f"builtin:{name}")
        yield encoder, data.load("builtin:digits", encoder.domain, limit=IMAGES)


def real() -> Iterator[tuple[Encoder, Images]]:
    """Yield encoders with published weights, each with the first test images of its kind."""
    root = published.folder()
    assert root, "HOLDFAST_REFERENCE is not set"
    for weights in MEASURED:
        encoder = published.encoder(root, weights)
        yield encoder, Images(published.images(root, encoder.domain.shape[0], IMAGES))


def main() -> None:
    """Print for each encoder the ratios of all pairs, and the seconds of each anchor, its attacks included."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--digits", action="store_true")
    parser.add_argument("--method", default="crown")
    parser.add_argument("--anchors", type=int, default=4)
    parser.add_argument("--negatives", type=int, default=5)
    parser.add_argument("--only", help="one encoder")
    parser.add_argument("--norm", default=CertifiedRadius().norm)
    given = parser.parse_args()
    torch.set_num_threads(1)
    measured = [*(digits() if given.digits else real())]
    names_of_all = [encoder.name for encoder, _ in measured]
    if given.only not in (None, *names_of_all):
        parser.error(f"--only takes one of {', '.join(names_of_all)}, got {given.only}")
    for encoder, images in measured:
        if given.only not in (None, encoder.name):
            continue
        ratios, spent = [], []
        for anchor in range(given.anchors):
            began = time.perf_counter()
            attack = pair_attack(encoder, images, anchor, given.negatives, given.norm)
            found = radius_bounds(attack, read_method(given.method), TOLERANCE)
            spent.append(time.perf_counter() - began)
            assert (found["lowest"] > 0).all()
            ratios.append(float((found["certified"] / found["attacked"]).mean()))
        print(
            f"{encoder.name} {given.norm} {given.method}: mean {mean(ratios):.3f} of {[round(r, 3) for r in ratios]}; "
            f"seconds for an anchor: median {median(spent):.0f}, most {max(spent):.0f}",
            flush=True,
        )


def pair_attack(encoder: Encoder, images: Images, anchor: int, count: int, norm: str) -> PairAttack:
    """Return the attacks on an anchor and the images that follow it."""
    usual = CertifiedRadius()
    population = Population(encoder, images, RunSettings())
    following = population.pixels([(anchor + k) % IMAGES for k in range(1, count + 1)])
    return PairAttack(
        image_pairs(population, [anchor], count, usual.neurons, following[None]), unit_ball(norm), usual.attack
    )


if __name__ == "__main__":
    main()
