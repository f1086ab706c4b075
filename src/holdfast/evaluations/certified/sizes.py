"""How much the suites ask of certificates of networks."""

from __future__ import annotations

from holdfast.protocol.sizes import Sizes

SIZES = Sizes(
    quick={"samples": 50, "attack": "adaptive:restarts=1,steps=25"},
    full={"samples": 500, "method": "alpha", "attack": "adaptive:steps=100,restarts=5"},
    heavy={"samples": 8, "attack": "adaptive:restarts=1,steps=2"},
)
BRACKETS = Sizes(
    quick={**SIZES.quick, "divergences": ["l2"]},
    full=SIZES.full,
    large={"balls": ["linf:0.05"], "divergences": ["l2"]},
    heavy=SIZES.heavy,
)
"""Of evaluations with two bounds in every ball under every divergence."""
