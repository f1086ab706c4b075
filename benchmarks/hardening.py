"""What hardening gains and costs on a real network: EfficientNet-Lite0 at 64 pixels, seeds with photographs of their own.

    python -m benchmarks.hardening PHOTOS --seeds 0,1,2 --rate 2e-4 --epochs 300

PHOTOS is a folder of crops named ``photograph_number.png``. Each seed keeps ``--held`` photographs, with all their crops,
from training, and measures with these alone: the attack radius of every crop (``attack-radius``), the cosine between codes
before and after, and whether the nearest other crop is of the same photograph.
"""

from __future__ import annotations

import argparse
import random
import warnings
from pathlib import Path
from time import process_time

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

import holdfast as hf
from holdfast.training.hardening import agreement


def main() -> None:
    """Train and measure one seed after another, a line each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=Path)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--rate", type=float, default=None)
    parser.add_argument("--epochs", type=int, default=None)
    parser.add_argument("--eps", default="1/255")
    parser.add_argument("--agreement", type=float, default=None, help="floor of the agreement with the original")
    parser.add_argument(
        "--native", action="store_true", help="cut training crops from the photographs at their own size"
    )
    parser.add_argument("--held", type=int, default=8, help="photographs to measure with")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    print("seed  crops  radius before  after   ratio  geometric  agreement  nearest before  after  processor s")
    for seed in map(int, asked.seeds.split(",")):
        print(line(asked, seed), flush=True)


def line(asked: argparse.Namespace, seed: int) -> str:
    """Harden once and return what came of it."""
    files = sorted(asked.photos.glob("*.png"))
    photographs = sorted({photograph(file) for file in files})
    held = set(random.Random(seed).sample(photographs, asked.held))
    encoder = hf.load_encoder("python:examples.real_encoder:small")
    images = hf.load_images(str(asked.photos), encoder)
    measured = [k for k, name in enumerate(images.ids) if photograph(Path(name)) in held]
    training = [k for k, name in enumerate(images.ids) if photograph(Path(name)) not in held]
    began = process_time()
    hardened = hf.harden(
        encoder,
        images[training] if asked.native else images.pixels(training),
        eps=asked.eps,
        rate=asked.rate,
        epochs=asked.epochs,
        agreement=asked.agreement,
        settings={"native": True} if asked.native else None,
        seed=seed,
        workers=1,
    )
    spent = process_time() - began
    pixels = images.pixels(measured)
    before, after = (radii(each, pixels) for each in (encoder, hardened.encoder))
    codes = [each(pixels) for each in (encoder, hardened.encoder)]
    names = [photograph(Path(images.ids[k])) for k in measured]
    kept = agreement(*codes)["agreement"]
    geometric = float(np.exp(np.mean(np.log(after / before))))
    middle = [255 * float(np.median(each)) for each in (before, after)]
    nearest = [same_photograph(each, names) for each in codes]
    ratio = middle[1] / middle[0]
    cells = [f"{seed:4d}", f"{len(measured):5d}", f"{middle[0]:13.3f}", f"{middle[1]:5.3f}", f"{ratio:6.2f}"]
    cells += [f"{geometric:9.2f}", f"{kept:9.3f}", f"{nearest[0]:14.3f}", f"{nearest[1]:5.3f}", f"{spent:11.0f}"]
    return "  ".join(cells)


def photograph(file: Path) -> str:
    """Return the photograph that a crop is of."""
    return file.stem.rpartition("_")[0]


def radii(encoder: hf.Encoder, pixels: Float[Tensor, "n *chw"]) -> Float[np.ndarray, "n"]:
    """Return the ``linf`` radius at which each image is taken for another one of them."""
    settings = {"attack-radius": {"samples": len(pixels), "events": ["retrieval"], "attack": "adaptive:steps=10"}}
    run = hf.evaluate(encoder, pixels, only=["attack-radius"], settings=settings, workers=1, progress=False)
    (result,) = run.results
    (series,) = [part for part in result.series if part.quantity == "attack_radius"]
    return np.asarray(series.values)


def same_photograph(codes: Float[Tensor, "n d"], names: list[str]) -> float:
    """Return the share of crops whose nearest other one is of the same photograph."""
    nearest = torch.cdist(codes, codes).fill_diagonal_(torch.inf).argmin(1)
    return float(np.mean([names[k] == names[j] for k, j in enumerate(nearest.tolist())]))


if __name__ == "__main__":
    main()
