"""Print what the built-in encoders are worth on the digits they have not seen: ``python scripts/score_builtin.py``."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.attacks.gradient import GradientAttack
from holdfast.attacks.objectives.simple import Away
from holdfast.core.balls import Ball, Linf
from holdfast.core.encoder import Encoder
from holdfast.core.images import Images
from holdfast.core.noise import Noise
from holdfast.core.objective import AttackContext
from holdfast.data import load as load_images
from holdfast.encoders import load
from holdfast.encoders.baseline import raw_pixels
from holdfast.encoders.builtin import DOMAIN, names

ROWS = {
    "linear_probe_accuracy": "linear probe",
    "neighbours_accuracy": "5 neighbours",
    "displacement": "displacement / median distance",
    "own_neighbour": "still nearest to itself",
    "attacked_neighbours_accuracy": "5 neighbours, attacked",
}


def digits(name: str) -> Images:
    """Return built-in images with their labels."""
    return load_images(f"builtin:{name}", DOMAIN)


def codes(encoder: Encoder, images: Images) -> Float[Tensor, "n d"]:
    """Return the clean codes of all images."""
    with torch.no_grad():
        return encoder(images.pixels(range(len(images))))


def accuracies(encoder: Encoder) -> dict[str, float]:
    """Return the accuracies on the held-out digits of a linear probe and of 5 neighbours, both given the training digits."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    known, unseen = digits("digits-train"), digits("digits")
    probes = {
        "linear_probe_accuracy": make_pipeline(StandardScaler(), LogisticRegression(max_iter=5000)),
        "neighbours_accuracy": KNeighborsClassifier(5),
    }
    return {
        name: float(probe.fit(codes(encoder, known), known.labels).score(codes(encoder, unseen), unseen.labels))
        for name, probe in probes.items()
    }


def robustness(encoder: Encoder, ball: Ball, steps: int) -> dict[str, float]:
    """Return how far, how recognisably and how harmfully PGD moves the codes of the held-out digits.

    ``displacement``: median l2 distance moved, over the median distance between two clean codes; ``own_neighbour``: share
    of moved codes whose nearest clean code is their own; ``attacked_neighbours_accuracy``: 5 neighbours on moved codes.
    """
    from sklearn.neighbors import KNeighborsClassifier

    known, unseen = digits("digits-train"), digits("digits")
    pixels, noise, clean = unseen.pixels(range(len(unseen))), Noise.of(0, unseen.ids), codes(encoder, unseen)
    attack = GradientAttack(steps=steps, stride=2.5 / steps)
    found = attack(encoder, pixels, Away()(AttackContext(encoder, pixels, noise)), ball, noise)
    with torch.no_grad():
        moved = encoder(found)
    own = torch.cdist(moved, clean).argmin(1) == torch.arange(len(clean))
    neighbours = KNeighborsClassifier(5).fit(codes(encoder, known), known.labels)
    return {
        "displacement": float((moved - clean).norm(dim=1).median() / torch.pdist(clean).median()),
        "own_neighbour": float(own.float().mean()),
        "attacked_neighbours_accuracy": float(neighbours.score(moved, unseen.labels)),
    }


def table() -> str:
    """Return the accuracies of all built-in encoders and of the raw pixels, clean and under PGD, as Markdown."""
    encoders = [*(load(f"builtin:{name}") for name in names()), raw_pixels(DOMAIN)]
    scores = {e.name: {**accuracies(e), **robustness(e, Linf(0.1), steps=50)} for e in encoders}
    lines = ["| encoder | " + " | ".join(ROWS.values()) + " |", "|---" * (len(ROWS) + 1) + "|"]
    lines += [f"| {name} | " + " | ".join(f"{score[key]:.3f}" for key in ROWS) + " |" for name, score in scores.items()]
    return "\n".join(lines)


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(table())
