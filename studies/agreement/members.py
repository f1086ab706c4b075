"""The encoders that the advice rests on: published ones, ones trained here by a recipe each, and degenerate ones.

An encoder is one *member* of the zoo; the same recipe under another seed is the same member again, not another encoder.
Members of one family share an objective or a maker, so what is found of one is expected of the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import holdfast as hf
from studies.objectives.training_small import MOCO, TRAINED, TUNED

DOMAINS = {
    "mnist": hf.Domain((1, 28, 28)),
    "cifar10": hf.Domain((3, 32, 32)),
    "fashion": hf.Domain((1, 28, 28)),
    "photographs": hf.Domain((3, 64, 64)),
}
TITLES = {"mnist": "MNIST", "cifar10": "CIFAR-10", "fashion": "Fashion-MNIST", "photographs": "photographs"}
FIRST = ("mnist", "cifar10")
"""The data sets of these encoders; the others are held out."""
EPOCHS, TUNED_EPOCHS, TAUGHT = 20, 10, 10_000
"""Of trainings from random weights, of trainings from other encoders, and how many images each sees."""


@dataclass(frozen=True)
class Member:
    """One encoder of the zoo, and how it is made."""

    name: str
    dataset: str
    family: str
    eps: float = 0.0
    """Radius of adversarial training in pixels; 0 where there was none."""
    weights: str = ""
    """The published file or network it is read from, if it is."""
    recipe: Mapping[str, Any] = field(default_factory=dict)
    start: str = ""
    """The recipe of the same seed that it is trained further from."""
    degenerate: bool = False
    taught: int = TAUGHT
    """How many images it is trained on."""
    copy: str = ""
    """What was done to the weights of ``start``, if it is a copy of it: one of ``COPIES``."""

    @property
    def case(self) -> str:
        """How results call it."""
        return f"{self.dataset} {self.name}"

    @property
    def made(self) -> str:
        """Return in words how it is made."""
        if self.weights:
            return "published weights"
        if self.degenerate:
            return "made, not trained"
        if self.copy:
            return f"{self.start}, {self.copy}"
        return f"trained further from {self.start}" if self.start else "trained here"


def _published() -> tuple[Member, ...]:
    """Return the encoders of RVCL; the strengths of CIFAR-10 were 4.4 and 8.8 / 255 after division by 0.225."""
    of = {
        ("mnist", "base"): {0.0: "mnist_base", 0.1: "mnist_base_adv1"},
        ("mnist", "cnn-a"): {0.0: "mnist_cnn_4layer_a", 0.1: "mnist_cnn_4layer_a_adv1", 0.3: "mnist_cnn_4layer_a_adv3"},
        ("cifar10", "base"): {4.4 / 255 * 0.225: "cifar10_base_adv4"},
        ("cifar10", "cnn-b"): {0.0: "cifar10_cnn_4layer_b", 8.8 / 255 * 0.225: "cifar10_cnn_4layer_b_adv8"},
    }
    return tuple(
        Member(f"published-{architecture}{f'-{eps:.3g}' if eps else ''}", dataset, "published", eps, weights)
        for (dataset, architecture), files in of.items()
        for eps, weights in files.items()
    )


FAMILIES = {
    "supervised": ("supervised", "supervised-uniform", "supcon", "madry"),
    "simclr": ("simclr", "rocl"),
    "moco": ("moco-v2", "moco-v3", "moco-v2+tar", "moco-v2+untar", "moco-v2+l-pgd"),
    "distilled": ("moco-v2+fare", "moco-v2+spade", "moco-v2+spade-control"),
    "self-distilled": ("byol", "simsiam", "dino"),
    "redundancy": ("barlow-twins", "vicreg"),
    "clusters": ("swav", "deepcluster-v2"),
    "masked": ("mae-pixels", "mae"),
}
STRENGTHS = {"rocl": 0.1, "madry": 0.1, **dict.fromkeys(TUNED, 0.1)}
STRENGTHS |= dict.fromkeys(("moco-v2+tar", "moco-v2+untar", "moco-v2+l-pgd"), 0.05)


def _small() -> tuple[Member, ...]:
    """Return what ``studies.objectives.training_small`` trains."""
    return tuple(
        Member(
            name,
            "mnist",
            family,
            STRENGTHS.get(name, 0.0),
            recipe=TRAINED.get(name) or TUNED[name],
            start="moco-v2" if name in TUNED else "",
        )
        for family, names in FAMILIES.items()
        for name in names
    )


def _loss(eps: float, steps: int) -> str:
    return f"loss:ball=linf:{eps:.6g},steps={steps}"


def _wanted() -> tuple[Member, ...]:
    """Return what the study trains itself, the cheapest first."""
    untar = "untargeted:ball=linf:0.05,steps=3"
    mnist: list[tuple[str, str, float, dict[str, Any], str]] = [
        ("base-supervised", "supervised", 0, {"objective": "supervised", "architecture": "base"}, ""),
        ("base-simclr", "simclr", 0, {"objective": "simclr", "architecture": "base"}, ""),
        ("supervised+untar", "supervised", 0.05, {"objective": "supervised", "adversary": untar}, "supervised"),
        ("madry-0.2", "supervised", 0.2, {"objective": "supervised", "adversary": _loss(0.2, 7)}, ""),
        ("base-rocl", "simclr", 0.1, {"objective": "simclr", "architecture": "base", "adversary": _loss(0.1, 10)}, ""),
        ("rocl-0.2", "simclr", 0.2, {"objective": "simclr", "adversary": _loss(0.2, 10)}, ""),
    ]
    pixel = 1 / 255
    coloured: list[tuple[str, str, float, dict[str, Any], str]] = [
        ("supervised", "supervised", 0, {"objective": "supervised"}, ""),
        ("simclr", "simclr", 0, {"objective": "simclr"}, ""),
        ("moco-v2", "moco", 0, {"objective": MOCO}, ""),
        ("barlow-twins", "redundancy", 0, {"objective": "barlow-twins"}, ""),
        (
            "moco-v2+untar",
            "moco",
            4 * pixel,
            {"objective": MOCO, "adversary": untar.replace("0.05", "4/255")},
            "moco-v2",
        ),
        ("madry", "supervised", 4 * pixel, {"objective": "supervised", "adversary": _loss(4 * pixel, 7)}, ""),
        ("rocl", "simclr", 4 * pixel, {"objective": "simclr", "adversary": _loss(4 * pixel, 10)}, ""),
    ]
    return tuple(
        Member(name, dataset, family, eps, recipe=recipe, start=start)
        for dataset, members in (("mnist", mnist), ("cifar10", coloured))
        for name, family, eps, recipe, start in members
    )


DEGENERATE = ("pixels", "pca", "random", "random-2", "collapsed")
ZOO = (
    *_published(),
    *(Member(name, "mnist", "degenerate", degenerate=True) for name in DEGENERATE),
    *_small(),
    *(Member(name, "cifar10", "degenerate", degenerate=True) for name in DEGENERATE),
    *_wanted(),
)
"""All members, in the order in which they are made and measured."""
REFUSED = {"cifar10 collapsed": "its embeddings of the labelled images are equal up to rounding"}
"""Members that cannot be measured, and why: of CIFAR-10 the collapsed network keeps no more than rounding."""
