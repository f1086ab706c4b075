"""What the agreement study measures with labels: how well codes serve probes, clean, attacked, corrupted and smoothed.

Images and random seeds are others than those of the measures; the bank is clean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.integrate import trapezoid

import holdfast as hf
from holdfast.core.records import Series
from studies.agreement.measures import ATTACK, CLEAN, FEW, KINDS, Values, one
from studies.agreement.members import Member
from studies.agreement.zoo import Zoo

IMAGES, SEED = 150, 1
PROBES = ("knn:k=20", "linear")
LADDERS = {
    "mnist": (0.03, 0.06, 0.1, 0.2, 0.3),
    "cifar10": tuple(k / 255 for k in (1, 2, 4, 8, 16)),
    "fashion": (0.01, 0.02, 0.05, 0.1, 0.2),
    "photographs": tuple(k / 255 for k in (0.25, 0.5, 1, 2, 4)),
}
PRIMARY = "robust area"


@dataclass(frozen=True)
class Reference:
    """A number that needs labels; larger is more robust."""

    name: str
    says: str


REFERENCES = (
    Reference(PRIMARY, "area under the accuracy of both probes over ε of the attack, mean of the two"),
    Reference("robust area, kNN", "the same, kNN only"),
    Reference("robust area, linear", "the same, linear probe only"),
    Reference("share retained", "robust area over clean accuracy"),
    Reference("corrupted accuracy", "kNN accuracy on corrupted images, with a clean reference set"),
    Reference("smoothed radius", "radius of kNN certified by smoothing, 0 if wrong"),
)
"""The first is the primary one, the others are exploratory. All are compared at the same clean accuracy as well."""


def settings(dataset: str) -> dict[str, dict[str, Any]]:
    """Return the settings of each evaluation for a data set."""
    usual: dict[str, dict[str, Any]] = {
        "robust-accuracy": {
            "balls": [f"linf:{eps:.6g}" for eps in LADDERS[dataset]],
            "attacks": [ATTACK],
            "probes": PROBES,
            "samples": IMAGES,
        },
        "corruption-error": {"kinds": KINDS, "severities": [3], "probes": PROBES[:1], "samples": IMAGES},
        "randomized-smoothing": {
            "probes": PROBES[:1],
            "divergences": ["l2"],
            "samples": FEW,
            "selection": 100,
            "copies": 1000,
            "others": 100,
            "radii": [0.25],
        },
    }
    if dataset == "photographs":
        usual["robust-accuracy"]["samples"] = 40
        usual["randomized-smoothing"] |= {"samples": 15, "copies": 300, "sigma": 0.1, "radii": [0.05]}
    return usual


def measured(zoo: Zoo, member: Member, encoder: hf.Encoder, out: Path) -> tuple[dict[str, float], dict[str, Values]]:
    """Return each reference of an encoder, and what is known of it image by image."""
    chosen = settings(member.dataset)
    run = hf.evaluate(
        encoder,
        zoo.labelled(member.dataset, IMAGES),
        bank=zoo.bank(member.dataset),
        only=list(chosen),
        settings=chosen,
        suite="standard",
        seed=SEED,
        out=out,
        progress=False,
    )
    series = areas(run["robust-accuracy"].findings.series, LADDERS[member.dataset])
    wrong = one(run["corruption-error"].findings.series, "corrupted_wrong", corruption="all", probe=PROBES[0])
    series["corrupted accuracy"] = 1 - wrong
    series["smoothed radius"] = one(run["randomized-smoothing"].findings.series, "certified_probe_radius")
    values = {name: float(np.nanmean(found)) for name, found in series.items()}
    values["share retained"] = values[PRIMARY] / values[CLEAN]
    return values, series


def areas(series: Sequence[Series], ladder: tuple[float, ...]) -> dict[str, Values]:
    """Return for each image clean accuracy and the area under what each probe still gets right, by the worse attack.

    An image that fell in a ball is counted as fallen in all larger ones, which hold the same attacked image.
    """
    found: dict[str, list[Values]] = {PRIMARY: [], CLEAN: []}
    for probe, name in zip(PROBES, ("kNN", "linear"), strict=True):
        right = [one(series, "classified_right", probe=probe)]
        for eps in ladder:
            attacked = [
                one(series, "robust", probe=probe, ball=f"linf:{eps:.6g}", attack=f"{ATTACK} at the {aim}")
                for aim in ("probe", "code")
            ]
            right.append(np.minimum(right[-1], np.minimum(*attacked)))
        radii = np.array([0.0, *ladder])
        area = trapezoid(np.stack(right), radii, axis=0) / radii[-1]
        found[f"robust area, {name}"] = [area]
        found[PRIMARY].append(area)
        found[CLEAN].append(right[0])
    return {name: np.mean(parts, axis=0) for name, parts in found.items()}
