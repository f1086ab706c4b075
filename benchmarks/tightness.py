"""How much of the attacked radius is certified, pair by pair, by a method that is given time.

``--digits`` measures the built-in encoders; otherwise HOLDFAST_REFERENCE names the folder of published weights and images.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, median

import numpy as np
import torch

from holdfast import data
from holdfast.bounds import read_method
from holdfast.certified.radius import CertifiedRadius
from holdfast.encoder import Encoder
from holdfast.encoders import Options, load
from holdfast.encoders.builtin import names
from holdfast.images import Images
from holdfast.run import Run

PUBLISHED = {
    "mnist_base": "mnist_base",
    "mnist_cnn_4layer_a": "mnist_cnn_a",
    "mnist_cnn_4layer_a_adv3": "mnist_cnn_a",
    "cifar10_base_adv4": "cifar_base",
}
IMAGES = 20


def digits() -> Iterator[tuple[Encoder, Images]]:
    """Yield the built-in encoders, with images."""
    for name in names():
        encoder = load(f"builtin:{name}")
        yield encoder, data.load("builtin:digits", encoder.domain, limit=60)


def published(folder: Path) -> Iterator[tuple[Encoder, Images]]:
    """Yield encoders with published weights, each with the first test images of its kind."""
    for weights, arch in PUBLISHED.items():
        checkpoint = f"checkpoint:{folder / 'encoders' / weights}.pt"
        encoder = load(checkpoint, Options(arch=f"holdfast.encoders.rvcl:{arch}"))
        kind = "mnist_test" if "mnist" in weights else "cifar10_raw200"
        pixels = torch.tensor(np.load(folder / "images" / f"{kind}.npz")["images"][:IMAGES]).float() / 255
        yield encoder, Images(pixels)


def main() -> None:
    """Print for each encoder the ratios of all pairs, and the seconds of each anchor, its attacks included."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--digits", action="store_true")
    parser.add_argument("--method", default="crown")
    parser.add_argument("--anchors", type=int, default=2, help="one for each of the seeds from 0")
    parser.add_argument("--negatives", type=int, default=5)
    parser.add_argument("--only", help="one encoder")
    given = parser.parse_args()
    torch.set_num_threads(1)
    evaluation = CertifiedRadius(anchors=1, negatives=given.negatives, method=read_method(given.method))
    for encoder, images in digits() if given.digits else published(Path(os.environ["HOLDFAST_REFERENCE"])):
        if given.only not in (None, encoder.name):
            continue
        ratios, spent = [], []
        for seed in range(given.anchors):
            began = time.perf_counter()
            result = evaluation(encoder, images, Run(seed=seed))
            assert result.estimate("contradictions").value == 0
            spent.append(time.perf_counter() - began)
            ratios.append(result.estimate("tightness").value)
        print(
            f"{encoder.name} {given.method}: mean {mean(ratios):.3f} of {[round(ratio, 3) for ratio in ratios]}; "
            f"seconds for an anchor: median {median(spent):.0f}, most {max(spent):.0f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
