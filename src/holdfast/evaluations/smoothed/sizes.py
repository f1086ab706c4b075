"""How much the suites ask of evaluations of the smoothed encoder, the same of each: they then share one pass."""

from __future__ import annotations

from holdfast.protocol.sizes import Sizes

SIZES = Sizes(
    quick={"samples": 12, "selection": 3000, "copies": 6000, "others": 300, "divergences": ["l2"]},
    full={"samples": 500},
    large={"samples": 4, "selection": 200, "copies": 1000, "others": 30, "divergences": ["l2"]},
    heavy={"selection": 140, "copies": 400, "others": 12, "alpha": 0.01},
)
CENTRES_OF_LARGE = {**SIZES.large, "slack": 0.2, "attack": "adaptive:restarts=1,steps=5"}
"""What quick changes for large encoders where centres of smoothing are looked for and attacked."""
CENTRES_OF_HEAVY = {**SIZES.heavy, "slack": 0.15, "attack": "u-fgsm"}
