"""Measure a network of your own beside its random-weight twin and the raw pixels, and write the report.

Run it anywhere: ``python examples/your_own_encoder.py`` writes ``runs/your-own-encoder/report.html``.
"""

from __future__ import annotations

from torch import nn

import holdfast as hf

DOMAIN = hf.Domain((1, 8, 8))


def trained() -> nn.Module:
    """Stand in for your training: weights of a small contrastive network, so that this script needs no download."""
    return hf.load_encoder("builtin:digits-contrastive").module


def main() -> None:
    """Measure three encoders on 60 images and print where the report is."""
    mine = hf.Encoder(trained(), "mine", DOMAIN)
    attack = hf.AdaptiveAttack(restarts=1, steps=10)
    run = hf.evaluate(
        mine,
        "builtin:digits",
        only=["breakaway", "displacement"],
        eps=0.1,
        settings={"breakaway": {"attacks": attack, "pairwise": attack}, "displacement": {"attacks": attack}},
        limit=60,
        baselines=["random", "pixels"],
        out="runs/your-own-encoder",
    )
    print(f"{run}\n{run.report()}")


if __name__ == "__main__":
    main()
