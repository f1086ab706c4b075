"""What is trained and measured in the study of training under change: objectives, changes, orders and subsets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

OBJECTIVES: dict[str, dict[str, Any]] = {
    "supervised": {"objective": "supervised"},
    "supervised without augmentation": {"objective": "supervised", "augmentation": "none"},
    "simclr": {"objective": "simclr"},
    "moco-v2": {"objective": "moco-v2:momentum=0.99"},
    "byol": {"objective": "byol:momentum=0.99"},
    "simsiam": {"objective": "simsiam"},
    "barlow-twins": {"objective": "barlow-twins"},
    "dino": {"objective": "dino:momentum=0.99,warmup_epochs=5"},
}
MORE_UNIFORM, LESS_UNIFORM = "supervised + 0.01 uniformity", "supervised - 0.01 uniformity"
REGULARISED: dict[str, dict[str, Any]] = {
    "supervised": OBJECTIVES["supervised"],
    MORE_UNIFORM: {"objective": "supervised:uniformity=0.01"},
    LESS_UNIFORM: {"objective": "supervised:uniformity=-0.01"},
}
BASELINES = ("pixels", "random")
CHANGES = (
    "gamma:0.2",
    "gamma:5",
    "global-shuffle:grid=4",
    "global-shuffle:patch=4",
    "local-shuffle:grid=4",
    "local-shuffle:patch=4",
)
UNIFORM_CHANGES = ("gamma:5", "local-shuffle:grid=4", "global-shuffle:grid=4")
ORDERS = ("corrupt-aug", "aug-corrupt")
SUBSETS = ("uniform", "long-tail", "substituted")
SHOTS = ("many", "medium", "few")
PROBES = ("knn:k=20", "linear")
CHECKPOINTS = 10


@dataclass(frozen=True)
class Case:
    """What is trained, and on what."""

    objective: str
    change: str = ""
    order: str = ""
    subset: str = ""

    def __str__(self) -> str:
        return ", ".join(filter(None, (self.objective, f"{self.order} {self.change}".strip(), self.subset)))


def cases(part: str, objectives: Sequence[str], changes: Sequence[str]) -> list[Case]:
    """Return what is to be measured for a part of the study."""
    clean = [Case(name) for name in objectives]
    if part == "pretraining":
        baselines = [Case(name, change, ORDERS[0]) for name in BASELINES for change in changes]
        changed = [Case(name, change, order) for name in objectives for order in orders(name) for change in changes]
        return [*(Case(name) for name in BASELINES), *baselines, *clean, *changed]
    if part == "downstream":
        return [*(Case(name) for name in BASELINES), *clean]
    if part == "classes":
        return [Case(name, subset=one) for name in objectives for one in SUBSETS]
    return clean if part == "fluctuation" else [Case(name) for name in REGULARISED]


def orders(objective: str) -> tuple[str, ...]:
    """Return in which orders changes and augmentations can be: of baselines and without augmentation, there is one."""
    return ORDERS if "augmentation" not in OBJECTIVES.get(objective, {"augmentation": ""}) else ORDERS[:1]
