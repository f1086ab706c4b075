"""Measure a network of your own beside its random-weight twin and the raw pixels, and write the report.

Run it anywhere: ``python examples/your_own_encoder.py`` writes ``runs/your-own-encoder/report.html``.
"""

from __future__ import annotations

from pathlib import Path

from torch import nn

from holdfast import Domain, Encoder, Linf, Run
from holdfast.attacks.adaptive import AdaptiveAttack
from holdfast.data import load
from holdfast.encoders.baseline import random_init, raw_pixels
from holdfast.encoders.builtin import load as load_builtin
from holdfast.evaluations.attacked.breakaway import Breakaway
from holdfast.evaluations.attacked.displacement import Displacement
from holdfast.execution.store import Store
from holdfast.execution.table import evaluate
from holdfast.report import write

DOMAIN = Domain((1, 8, 8))


def trained() -> nn.Module:
    """Stand in for your training: weights of a small contrastive network, so that this script needs no download."""
    return load_builtin("digits-contrastive").module


def main() -> None:
    """Measure three encoders on 60 images and print where the report is."""
    mine = Encoder(trained(), "mine", DOMAIN)
    encoders = [mine, random_init(mine), raw_pixels(DOMAIN)]
    images = load("builtin:digits", DOMAIN, limit=60)
    attack = AdaptiveAttack(restarts=1, steps=10)
    evaluations = [
        Breakaway(balls=(Linf(0.1),), attacks=(attack,), pairwise=attack),
        Displacement(balls=(Linf(0.1),), attacks=(attack,)),
    ]
    store = Store(Path("runs/your-own-encoder"))
    results, failures = evaluate(encoders, lambda encoder: images, evaluations, Run(), store)
    files = write(results, failures, store.folder)
    print(f"{len(results)} results, {len(failures)} failures: {files['report.html']}")


if __name__ == "__main__":
    main()
