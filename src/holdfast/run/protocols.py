"""The published protocols by name: which evaluations, with which settings. ``report.papers`` has the columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Settings = Mapping[str, Mapping[str, Any]]

RVCL = {
    "certified-radius": {},
    "linear-radius": {},
    "margin-distribution": {},
    "probe-accuracy": {"probes": ["linear:recipe=rvcl"]},
}
CIFAR = 0.225 / 255
"""One step of a pixel in the units of the paper's normalised CIFAR-10 images, as a fraction of the range."""


def _steps(count: int) -> str:
    """Return the attack of Petrov and Kwiatkowska: fixed steps of .001 and the last iterate."""
    return f"pgd:steps={count},step=0.001,keep=last"


UPGD = tuple(_steps(count) for count in (5, 10, 30, 50))
OF_ONE_ATTACK = {"divergences": ["l2", "linf", "cosine"], "objective": "l2"}
"""Tables 5 to 7: three distances after one attack on l2."""

PROTOCOLS: dict[str, tuple[str, Settings]] = {
    "wang2022": (
        "RVCL on MNIST (Wang and Liu 2022): certified radii, instance accuracy, linear radii, margins",
        {
            **RVCL,
            "instance-accuracy": {"balls": ["linf:0.1"], "generate": "linf:0.3", "negatives": 1},
            "robust-accuracy": {
                "balls": ["linf:0.15", "linf:0.2"],
                "attacks": ["pgd"],
                "probes": ["linear:recipe=rvcl"],
            },
        },
    ),
    "wang2022-cifar10": (
        "RVCL on CIFAR-10 (Wang and Liu 2022): the same with the radii of its colour images",
        {
            **RVCL,
            "instance-accuracy": {
                "balls": [f"linf:{4 * CIFAR:.7f}"],
                "generate": f"linf:{16 * CIFAR:.7f}",
                "negatives": 1,
            },
            "robust-accuracy": {
                "balls": ["linf:8/255", "linf:16/255"],
                "attacks": ["pgd"],
                "probes": ["linear:recipe=rvcl"],
            },
        },
    ),
    "ko2022": (
        "SynBench (Ko et al. 2022): the score of each budget, standard and robust linear probes, corruptions",
        {
            "synbench": {"mode": "published"},
            "probe-accuracy": {"probes": ["linear", "synbench-robust"]},
            "robust-accuracy": {
                "balls": ["l2:0.5"],
                "attacks": ["pgd:steps=10"],
                "probes": ["linear", "synbench-robust"],
            },
            "corruption-error": {"probes": ["linear", "synbench-robust"]},
        },
    ),
    "petrov2022": (
        "robustness without labels (Petrov and Kwiatkowska 2022): quantiles, risks, impersonation, smoothing",
        {
            "displacement": {"attacks": UPGD, **OF_ONE_ATTACK},
            "impersonation": {"attacks": UPGD, **OF_ONE_ATTACK, "probe": "linear:recipe=moco"},
            "breakaway": {"attacks": [_steps(25)], "balls": ["linf:0.05"], "divergences": ["l2"]},
            "overlap": {"attacks": [_steps(10)], "balls": ["linf:0.05"], "divergences": ["l2"]},
            "center-smoothing": {"divergences": ["l2"]},
            "randomized-smoothing": {"probes": ["noise:recipe=moco"]},
            "probe-accuracy": {"probes": ["linear:recipe=moco", "low-pass:50,recipe=moco"]},
        },
    ),
    "zhong2022": (
        "contrastive and supervised encoders (Zhong et al. 2022): accuracy lost to corruptions, the space, Grad-CAM",
        {
            "corruption-test": {"probes": ["knn", "linear"]},
            "geometry": {},
            "alignment": {},
            "grad-cam": {},
        },
    ),
    "cheng2021": (
        "SPADE (Cheng et al. 2021): spectral scores, hops of the worst edges, CLEVER at worst, random and best images",
        {
            "spade": {"sweep": [5, 20], "planes": True},
            "clever": {
                "batches": 500,
                "draws": 1024,
                "rivals": 10,
                "random": 100,
                "guided": 10,
                "least": 10,
                "gairat": ["linf:8/255"],
            },
        },
    ),
}
