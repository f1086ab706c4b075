"""How much the suites ask of measures of attacked codes, the same of each: they then share their attacks."""

from __future__ import annotations

from holdfast.protocol.sizes import Sizes

SIZES = Sizes(
    quick={"samples": 100, "divergences": ["l2"]},
    full={
        "samples": 10_000,
        "attacks": ["u-pgd", "adaptive:steps=100,restarts=5", "square"],
        "divergences": ["l2", "cosine", "whitened", "rank"],
    },
    large={"balls": ["linf:0.05"], "divergences": ["l2"], "attacks": ["u-pgd", "adaptive:restarts=1"]},
    heavy={"samples": 30, "attacks": ["u-fgsm", "adaptive:restarts=1,steps=10"]},
)
