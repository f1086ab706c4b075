"""Suites: how thorough an evaluation is. They change settings alone; which evaluations run is the catalogue's affair."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Settings = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Suite:
    """``settings`` that replace the defaults, by evaluation and field; evaluations not named keep their own."""

    meaning: str
    settings: Settings = field(default_factory=dict)


_SMOOTHED = {"samples": 25, "selection": 4000, "copies": 6000, "others": 300, "divergences": ["l2"]}
"""The same for all evaluations of the smoothed encoder, which then share one pass."""
_FEW_COPIES = {"samples": 4, "selection": 200, "copies": 1000, "others": 30, "divergences": ["l2"]}
_FEW_CENTRES = {**_FEW_COPIES, "slack": 0.2, "attack": "adaptive:restarts=1,steps=5"}
_ONCE = {"balls": ["linf:0.05"], "divergences": ["l2"], "attacks": ["u-pgd", "adaptive:restarts=1"]}
LARGE = 1_000_000
"""From so many operations an image on, quick asks less of an encoder on a CPU: in full, it would take hours."""
REACH = 6_000_000
"""An encoder of so many operations gets the counts of quick in full, one of twice as many half of them."""
COUNTS = ("samples", "random")
CHEAP = ("spade", "clever", "geometry", "probe-accuracy")
"""These encode each of their samples once, and keep all of them."""
LEAST = 8
_LARGE: Settings = {
    "displacement": _ONCE,
    "breakaway": {**_ONCE, "pairwise": "adaptive:restarts=1"},
    "impersonation": _ONCE,
    "overlap": _ONCE,
    "robust-accuracy": {"balls": ["linf:0.05"]},
    "masking": {"attack": "adaptive:restarts=2", "blind": "square:queries=100"},
    "synbench": {"samples": 256},
    "clever": {"batches": 50, "guided": 2},
    "common-perturbations": {"samples": 20, "chained": 1},
    "common-corruptions": {"samples": 12, "severities": [1, 3, 5]},
    "corruption-error": {"samples": 20},
    "corruption-test": {"samples": 200, "permutations": 1},
    "alignment": {"samples": 60},
    "grad-cam": {"samples": 10},
    "instance-accuracy": {"balls": ["linf:0.05"]},
    "certified-breakaway": {"balls": ["linf:0.05"], "divergences": ["l2"]},
    "certified-overlap": {"balls": ["linf:0.05"], "divergences": ["l2"]},
    "certified-displacement": {"balls": ["linf:0.05"], "divergences": ["l2"]},
    "center-smoothing": _FEW_CENTRES,
    "smoothed-retrieval": _FEW_CENTRES,
    "randomized-smoothing": {**_FEW_COPIES, "radii": [0.25, 0.5]},
}
"""What quick changes beside the counts for large encoders."""

_STRONG = ["u-pgd", "adaptive:steps=100,restarts=5", "square"]
_DIVERGENCES = ["l2", "cosine", "whitened", "rank"]

SUITES = {
    "quick": Suite(
        "published and adaptive attacks on few images: minutes, wide intervals",
        {
            "displacement": {"samples": 300},
            "breakaway": {"samples": 300},
            "impersonation": {"samples": 300},
            "overlap": {"samples": 300},
            "robust-accuracy": {"samples": 200, "attacks": ["adaptive:restarts=1"]},
            "masking": {"samples": 50},
            "synbench": {"scales": [4 * k / 10 for k in range(1, 13)], "samples": 1024},
            "spade": {"samples": 2000},
            "clever": {"batches": 133, "draws": 3, "rivals": 1, "random": 50, "samples": 2000},
            "common-perturbations": {"samples": 100},
            "common-corruptions": {"samples": 100},
            "corruption-error": {"samples": 200},
            "corruption-test": {"samples": 1000},
            "geometry": {"samples": 2000},
            "alignment": {"samples": 300},
            "grad-cam": {"samples": 50},
            "certified-radius": {"samples": 50, "negatives": 3, "attack": "adaptive:restarts=1,steps=25"},
            "instance-accuracy": {"samples": 50, "negatives": 3},
            "certified-breakaway": {
                "samples": 25,
                "others": 300,
                "rivals": 3,
                "attack": "adaptive:restarts=1,steps=25",
            },
            "center-smoothing": _SMOOTHED,
            "smoothed-retrieval": _SMOOTHED,
            "randomized-smoothing": _SMOOTHED,
            "certified-overlap": {"samples": 50, "attack": "adaptive:restarts=1,steps=25"},
            "certified-displacement": {"samples": 50, "attack": "adaptive:restarts=1,steps=25"},
            "linear-radius": {"samples": 50, "rivals": 1, "attack": "adaptive:restarts=1,steps=25"},
            "margin-distribution": {
                "samples": 50,
                "negatives": 2,
                "rivals": 1,
                "attack": "adaptive:restarts=1,steps=25",
            },
        },
    ),
    "standard": Suite(
        "every evaluation with its own defaults: the published protocol, and the adaptive attack beside it"
    ),
    "full": Suite(
        "more images, restarts, a score-only attack and scale-free divergences: the numbers to publish",
        {
            "displacement": {"samples": 10_000, "attacks": _STRONG, "divergences": _DIVERGENCES},
            "breakaway": {"samples": 10_000, "attacks": _STRONG, "divergences": _DIVERGENCES},
            "impersonation": {"samples": 10_000, "attacks": _STRONG, "divergences": _DIVERGENCES},
            "overlap": {"samples": 10_000, "attacks": _STRONG, "divergences": _DIVERGENCES},
            "probe-accuracy": {"probes": ["knn", "knn:k=20", "linear", "noise", "fine-tune"]},
            "robust-accuracy": {
                "samples": 10_000,
                "attacks": ["adaptive:steps=100,restarts=5", "square"],
                "probes": ["knn", "linear", "noise"],
            },
            "masking": {"samples": 1000},
            "synbench": {"samples": "auto"},
            "spade": {"samples": 50_000, "subsets": 16},
            "clever": {"batches": 500, "draws": 1024, "rivals": 10, "samples": 50_000},
            "common-perturbations": {"samples": 2000, "chained": 3, "reference": 10_000},
            "common-corruptions": {"samples": 2000, "reference": 10_000},
            "corruption-error": {"samples": 10_000},
            "corruption-test": {"samples": 50_000, "permutations": 8, "reference": 10_000},
            "geometry": {"samples": 100_000},
            "alignment": {"samples": 10_000},
            "grad-cam": {"samples": 1000},
            "certified-radius": {"samples": 500, "method": "alpha", "attack": "adaptive:steps=100,restarts=5"},
            "instance-accuracy": {"samples": 500, "method": "alpha", "attack": "adaptive:steps=100,restarts=5"},
            "certified-breakaway": {"samples": 500, "rivals": 30, "method": "alpha", "attack": "adaptive:restarts=10"},
            "center-smoothing": {"samples": 500},
            "smoothed-retrieval": {"samples": 500},
            "randomized-smoothing": {"samples": 500},
            "certified-overlap": {"samples": 500, "method": "alpha", "attack": "adaptive:steps=100,restarts=5"},
            "certified-displacement": {"samples": 500, "method": "alpha", "attack": "adaptive:steps=100,restarts=5"},
            "linear-radius": {"samples": 500, "method": "alpha", "attack": "adaptive:steps=100,restarts=5"},
            "margin-distribution": {"samples": 500, "method": "alpha", "attack": "adaptive:steps=100,restarts=5"},
        },
    ),
}


def suite_settings(suite: str, operations: int = 0) -> Settings:
    """Return the settings of ``suite``; those of quick have sizes for encoders of so many operations an image.

    Example:
        >>> [suite_settings("quick", n)["overlap"]["samples"] for n in (0, 12_000_000, 60_000_000, 10**10)]
        [300, 150, 30, 8]
    """
    settings = SUITES[suite].settings
    if suite != "quick" or operations <= LARGE:
        return settings
    return {name: {**_counted(name, fields, operations), **_LARGE.get(name, {})} for name, fields in settings.items()}


def _counted(evaluation: str, fields: Mapping[str, Any], operations: int) -> dict[str, Any]:
    """Return ``fields`` with counts in proportion to what the encoder allows."""
    share, counts = min(1.0, REACH / operations), COUNTS[1:] if evaluation in CHEAP else COUNTS
    return {name: max(LEAST, round(value * share)) if name in counts else value for name, value in fields.items()}
