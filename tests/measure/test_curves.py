"""Estimates at several radii become curves: one for each quantity, norm and further conditions."""

from __future__ import annotations

from holdfast.core.balls import L2, Ball, Linf
from holdfast.core.records import Claim, Estimate
from holdfast.measure.observation import radius_curves


def estimate(ball: Ball | None, value: float, attack: str = "pgd", quantity: str = "breakaway_risk") -> Estimate:
    return Estimate(
        quantity=quantity,
        conditions={"attack": attack} if ball is None else {"ball": str(ball), "attack": attack},
        value=value,
        low=value - 0.1,
        high=value + 0.1,
        n=10,
        method="by hand",
        unit="share",
        claim=Claim.LOWER,
        better="lower",
        confidence=0.95,
        of="harm",
    )


def test_radii_ascend_and_nothing_else_is_mixed() -> None:
    estimates = [
        estimate(Linf(8 / 255), 0.4),
        estimate(Linf(1 / 255), 0.2),
        estimate(Linf(8 / 255), 0.5, attack="square"),
        estimate(Linf(1 / 255), 0.1, attack="square"),
        estimate(L2(0.5), 0.3),
        estimate(None, 0.9),
        estimate(Linf(1 / 255), 0.7, quantity="nearest_neighbour_accuracy"),
    ]
    first, second = radius_curves(estimates)
    assert first.x == second.x == (1 / 255, 8 / 255)
    assert (first.y, second.y) == ((0.2, 0.4), (0.1, 0.5))
    assert (first.low[0], first.high[1]) == (0.2 - 0.1, 0.4 + 0.1)
    assert first.conditions == {"ball": "linf", "attack": "pgd"}
    assert (first.quantity, first.x_label, first.y_label) == ("breakaway_risk", "linf radius", "breakaway risk")
