"""Suites: how thorough an evaluation is. They change settings alone; which evaluations run is the catalogue's affair."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Suite:
    """``settings`` that replace the defaults, by evaluation and field; evaluations not named keep their own."""

    meaning: str
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


_STRONG = ["u-pgd", "adaptive:steps=100,restarts=5", "square"]
_DIVERGENCES = ["l2", "cosine", "whitened", "rank"]

SUITES = {
    "quick": Suite(
        "published and adaptive attacks on few images: minutes, wide intervals",
        {
            "displacement": {"attacked": 300},
            "breakaway": {"attacked": 300},
            "impersonation": {"pairs": 300},
            "overlap": {"pairs": 300},
            "masking": {"attacked": 50},
            "synbench": {"scales": [4 * k / 10 for k in range(1, 13)], "samples": 1024},
            "spade": {"samples": 2000},
            "clever": {"draws": 8, "rivals": 1, "random": 50, "samples": 2000},
            "certified-radius": {"anchors": 50, "negatives": 3, "attack": "adaptive:restarts=1,steps=25"},
            "instance-accuracy": {"anchors": 50, "negatives": 3},
            "certified-breakaway": {
                "anchors": 50,
                "others": 300,
                "rivals": 3,
                "attack": "adaptive:restarts=1,steps=25",
            },
            "certified-overlap": {"anchors": 50, "attack": "adaptive:restarts=1,steps=25"},
            "certified-displacement": {"anchors": 50, "attack": "adaptive:restarts=1,steps=25"},
            "linear-radius": {"anchors": 50, "rivals": 1, "attack": "adaptive:restarts=1,steps=25"},
            "margin-distribution": {
                "anchors": 50,
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
            "displacement": {"attacked": 10_000, "attacks": _STRONG, "divergences": _DIVERGENCES},
            "breakaway": {"attacked": 10_000, "attacks": _STRONG, "divergences": _DIVERGENCES},
            "impersonation": {"pairs": 10_000, "attacks": _STRONG, "divergences": _DIVERGENCES},
            "overlap": {"pairs": 10_000, "attacks": _STRONG, "divergences": _DIVERGENCES},
            "masking": {"attacked": 1000},
            "synbench": {"samples": "auto"},
            "spade": {"samples": 50_000, "subsets": 16},
            "clever": {"batches": 500, "draws": 1024, "rivals": 10, "samples": 50_000},
            "certified-radius": {"anchors": 500, "method": "alpha", "attack": "adaptive:steps=100,restarts=5"},
            "instance-accuracy": {"anchors": 500, "method": "alpha", "attack": "adaptive:steps=100,restarts=5"},
            "certified-breakaway": {"anchors": 500, "rivals": 30, "method": "alpha", "attack": "adaptive:restarts=10"},
            "certified-overlap": {"anchors": 500, "method": "alpha", "attack": "adaptive:steps=100,restarts=5"},
            "certified-displacement": {"anchors": 500, "method": "alpha", "attack": "adaptive:steps=100,restarts=5"},
            "linear-radius": {"anchors": 500, "method": "alpha", "attack": "adaptive:steps=100,restarts=5"},
            "margin-distribution": {"anchors": 500, "method": "alpha", "attack": "adaptive:steps=100,restarts=5"},
        },
    ),
}
