"""What hardening for noise gains and costs on the built-in digits: the table of docs/guides/harden-and-train.md.

    python -m benchmarks.noise_hardening --seeds 0,1,2

Each seed keeps 240 of the 1,200 training digits, 80 of which are certified among all 240 (``smoothed-retrieval``).
A row is one training: radius within which an image stays nearest to itself, the cosine similarity that is certified
at ``l2:0.25`` (``feature-smoothing``), and how far codes are what they were.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Mapping
from time import process_time
from typing import Any

import numpy as np
import torch

import holdfast as hf
from holdfast.commands.harden import parted
from holdfast.core.balls import Ball, read_ball
from holdfast.training.hardening import agreement, recipe_for

ENCODER, RATE = "builtin:digits-contrastive", 1e-3
ROWS: Mapping[str, Mapping[str, Any]] = {
    "noise .25, 50 epochs": {"noise": 0.25, "epochs": 50},
    "noise .25, clean=0, 50 epochs": {"noise": 0.25, "epochs": 50, "settings": {"objective": "distillation:clean=0"}},
    "noise .25, l2:0.25, 50 epochs": {"noise": 0.25, "epochs": 50, "ball": "l2:0.25"},
    "noise .25, 200 epochs": {"noise": 0.25, "epochs": 200},
    "noise .5, 100 epochs": {"noise": 0.5, "epochs": 100},
}
SETTINGS: dict[str, Any] = {
    "smoothed-retrieval": {
        "sigma": 0.25, "samples": 80, "others": 239, "copies": 4000, "selection": 3000, "divergences": "l2"
    },
    "feature-smoothing": {"sigma": 0.25, "samples": 25, "radii": 0.25, "attack": "adaptive:restarts=1,steps=5"},
}  # fmt: skip


def main() -> None:
    """Print a line for each training and seed, and before them one for the encoder as it was."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--only", default="", help="rows whose names contain this")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    encoder = hf.load_encoder(ENCODER)
    for seed in map(int, options.seeds.split(",")):
        training, kept = parted(hf.load_images("builtin:digits-train", encoder), None, seed)
        print(line("before", seed, encoder, encoder, kept, 0.0), flush=True)
        for name, row in ROWS.items():
            if options.only in name:
                began = process_time()
                hardened = hf.train(recipe(encoder, len(training), seed, row), training, start=encoder, progress=False)
                print(line(name, seed, encoder, hardened, kept, process_time() - began), flush=True)


def recipe(encoder: hf.Encoder, count: int, seed: int, row: Mapping[str, Any]) -> hf.Recipe:
    """Return the recipe of ``holdfast harden`` with the settings of a row."""
    ball: Ball | None = read_ball(row["ball"]) if "ball" in row else None
    settings = row.get("settings", {})
    chosen: dict[str, Any] = {"epochs": row["epochs"], "noise": row["noise"], "rate": RATE, "settings": settings}
    return recipe_for(encoder, count, ball, certified=False, seed=seed, **chosen)


def line(name: str, seed: int, before: hf.Encoder, after: hf.Encoder, kept: hf.Images, seconds: float) -> str:
    """Return what is certified of an encoder and how far its codes are those from before."""
    run = hf.evaluate(after, kept, only=[*SETTINGS], settings=SETTINGS, workers=1, progress=False)
    (radii,) = [s for s in run["smoothed-retrieval"].series if s.quantity == "certified_nearest_neighbour_radius"]
    values = np.nan_to_num(np.asarray(radii.values, float))
    cosine = run["feature-smoothing"].estimate("certified_cosine_similarity").value
    pixels = kept.pixels(range(len(kept)))
    same = agreement(before(pixels), after(pixels))
    cells = [f"{name:30s} seed {seed}:", f"radius median {np.median(values):.3f}, mean {values.mean():.3f};"]
    cells += [f"certified cosine {cosine:.3f};", f"agreement {same['agreement']:.3f},"]
    cells += [f"neighbours kept {same['neighbours_kept']:.2f};", f"{seconds:.0f} processor s"]
    return " ".join(cells)


if __name__ == "__main__":
    main()
