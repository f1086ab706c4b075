"""From estimates at several radii to curves over the radius."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.core.balls import read_ball
from holdfast.core.records import Curve, Estimate


def radius_curves(estimates: Sequence[Estimate]) -> tuple[Curve, ...]:
    """Return estimates that differ in the radius of their ball alone as curves, where there are at least two radii.

    Estimates without a ball are left out.
    """
    lines: dict[tuple[str, tuple[tuple[str, str], ...]], list[tuple[float, Estimate]]] = {}
    for estimate in estimates:
        if "ball" in estimate.conditions:
            ball = read_ball(estimate.conditions["ball"])
            case = {**estimate.conditions, "ball": ball.name}
            lines.setdefault((estimate.quantity, tuple(case.items())), []).append((ball.radius, estimate))
    return tuple(
        radius_curve(quantity, dict(case), points) for (quantity, case), points in lines.items() if len(points) > 1
    )


def radius_curve(quantity: str, conditions: Mapping[str, str], points: Sequence[tuple[float, Estimate]]) -> Curve:
    """Return the curve of estimates at some radii; ``conditions`` name the norm as their ball."""
    points = sorted(points, key=lambda point: point[0])
    return Curve(
        quantity=quantity,
        conditions=dict(conditions),
        x_label=f"{conditions['ball']} radius",
        y_label=quantity.replace("_", " "),
        x=tuple(radius for radius, _ in points),
        y=tuple(estimate.value for _, estimate in points),
        low=tuple(estimate.low for _, estimate in points),
        high=tuple(estimate.high for _, estimate in points),
    )
