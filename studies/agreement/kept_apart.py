"""Held-out encoders and a held-out data set, which the advice was not made from.

The list, the settings, the rules of ``confirmation.py`` and the advice that they test were fixed in code before any of these
encoders was trained. Most were not trained against attacks. Trainings are short, and copies of the weights cost nothing.
"""

from __future__ import annotations

from typing import Any

from studies.agreement.members import Member
from studies.objectives.training_small import TRAINED

EPOCHS, TUNED_EPOCHS, TAUGHT = 5, 3, 5000
"""Of trainings from random weights and from other encoders, and images that each sees."""
NOISE = "noise:sigma=0.25"
RENAMED = {"deepcluster-v2": "clusters", "swav": "clusters", "mae-pixels": "masked", "moco-v2": "moco"}
KINDRED = {
    **dict.fromkeys(("supervised", "supervised-uniform", "supcon"), "supervised"),
    **dict.fromkeys(("byol", "simsiam", "dino"), "self-distilled"),
    **dict.fromkeys(("barlow-twins", "vicreg"), "redundancy"),
    **RENAMED,
    "simclr": "simclr",
}
"""The family of each objective whose settings are those of the first zoo."""
QUANTISED, PRUNED = "weights of 4 bits", "four of five weights removed"
COPIES = {"quantised": QUANTISED, "pruned": PRUNED}


def _loss(eps: float, steps: int = 3) -> str:
    return f"loss:ball=linf:{eps:g},steps={steps}"


def _trained(dataset: str, name: str, family: str, eps: float = 0.0, start: str = "", **recipe: Any) -> Member:
    epochs = TUNED_EPOCHS if start else EPOCHS
    return Member(name, dataset, family, eps, recipe={**recipe, "epochs": epochs}, start=start, taught=TAUGHT)


def _copies(dataset: str, *originals: tuple[str, str, float]) -> tuple[Member, ...]:
    """Return copies of other members, of their family and training radius."""
    return tuple(
        Member(f"{name}-{kind}", dataset, family, eps, start=name, taught=TAUGHT, copy=copy)
        for name, family, eps in originals
        for kind, copy in COPIES.items()
    )


def _fashion() -> tuple[Member, ...]:
    moco = TRAINED["moco-v2"]["objective"]
    return (
        *(_trained("fashion", name, family, **TRAINED[name]) for name, family in KINDRED.items()),
        _trained("fashion", "supervised-plain", "supervised", objective="supervised", augmentation="none"),
        _trained("fashion", "supervised-noise", "supervised", objective="supervised", adversary=NOISE),
        _trained("fashion", "base-supervised", "supervised", objective="supervised", architecture="base"),
        _trained("fashion", "simclr-cold", "simclr", objective="simclr:temperature=0.1"),
        _trained("fashion", "base-simclr", "simclr", objective="simclr", architecture="base"),
        _trained("fashion", "base-barlow-twins", "redundancy", objective="barlow-twins", architecture="base"),
        _trained("fashion", "madry-0.05", "supervised", 0.05, objective="supervised", adversary=_loss(0.05)),
        _trained("fashion", "madry-0.1", "supervised", 0.1, objective="supervised", adversary=_loss(0.1)),
        _trained("fashion", "rocl-0.05", "simclr", 0.05, objective="simclr", adversary=_loss(0.05)),
        _trained("fashion", "rocl-0.1", "simclr", 0.1, objective="simclr", adversary=_loss(0.1)),
        _trained(
            "fashion", "moco-v2+untar", "moco", 0.05, "moco-v2", objective=moco,
            adversary="untargeted:ball=linf:0.05,steps=3",
        ),
        _trained("fashion", "moco-v2+fare", "distilled", 0.05, "moco-v2", objective="distillation", adversary=_loss(0.05)),
        _trained(
            "fashion", "certified", "certified", 0.05, objective="simclr:temperature=0.2,head=false",
            adversary="certified:ball=linf:0.05,share=0.2",
        ),
        *_copies(
            "fashion",
            ("supervised", "supervised", 0.0),
            ("simclr", "simclr", 0.0),
            ("barlow-twins", "redundancy", 0.0),
            ("rocl-0.1", "simclr", 0.1),
        ),
    )  # fmt: skip


def _digits() -> tuple[Member, ...]:
    return (
        _trained("mnist", "supervised-plain", "supervised", objective="supervised", augmentation="none"),
        _trained("mnist", "supervised-noise", "supervised", objective="supervised", adversary=NOISE),
        _trained("mnist", "deep-supervised", "supervised", objective="supervised", architecture="deep"),
        _trained("mnist", "simclr-cold", "simclr", objective="simclr:temperature=0.1"),
        _trained("mnist", "deep-simclr", "simclr", objective="simclr", architecture="deep"),
        _trained("mnist", "base-byol", "self-distilled", objective="byol:momentum=0.99", architecture="base"),
        _trained("mnist", "base-barlow-twins", "redundancy", objective="barlow-twins", architecture="base"),
        _trained("mnist", "base-vicreg", "redundancy", objective="vicreg", architecture="base"),
        _trained("mnist", "base-swav", "clusters", objective="swav:prototypes=100", architecture="base"),
        _trained(
            "mnist", "certified", "certified", 0.1, objective="simclr:temperature=0.2,head=false",
            adversary="certified:ball=linf:0.1,share=0.2",
        ),
        *_copies("mnist", ("supervised-plain", "supervised", 0.0), ("simclr-cold", "simclr", 0.0)),
    )  # fmt: skip


FIRST = (
    *("supervised", "simclr", "rocl-0.1", "moco-v2", "barlow-twins", "madry-0.05", "byol", "supcon", "moco-v2+untar"),
    *("vicreg", "swav", "madry-0.1", "mae-pixels", "simsiam", "rocl-0.05", "dino", "moco-v2+fare", "certified"),
)
"""Of the new data set, so that every part of the time has encoders of all kinds."""
KEPT = (
    *sorted(_fashion(), key=lambda member: FIRST.index(member.name) if member.name in FIRST else len(FIRST)),
    *(Member(name, "fashion", "degenerate", degenerate=True) for name in ("pixels", "pca", "random", "collapsed")),
    *_digits(),
)
"""In the order in which they are made and measured, as far as time goes."""
SEEDS = 2
"""Of each that is trained; the second one as far as time goes."""
ENOUGH = 22
"""A third of all trained encoders: with fewer held-out encoders, nothing is concluded."""
