"""From estimates at several radii to curves, and why values are missing."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.records import Curve, Estimate
from holdfast.evaluations.attacked.observations import Case

UNDEFINED = "undefined: zero distance to compare with, zero code under cosine, or a code that is not finite"


def radius_curves(estimates: Sequence[Estimate], cases: Sequence[Case]) -> tuple[Curve, ...]:
    """Return each quantity as a function of the radius, one curve per attack and divergence, if there are two radii.

    Only balls of one norm share a curve. ``estimates[k]`` must belong to ``cases[k]``.
    """
    groups: dict[tuple[str, str, str, str], list[tuple[float, Estimate]]] = {}
    for estimate, case in zip(estimates, cases, strict=True):
        key = (estimate.quantity, case.ball.name, estimate.conditions["attack"], estimate.conditions["divergence"])
        groups.setdefault(key, []).append((case.ball.radius, estimate))
    curves = []
    for (quantity, norm, attack, divergence), points in groups.items():
        points.sort(key=lambda point: point[0])
        if len(points) > 1:
            curves.append(
                Curve(
                    quantity=quantity,
                    conditions={"ball": norm, "attack": attack, "divergence": divergence},
                    x_label=f"{norm} radius",
                    y_label=quantity.replace("_", " "),
                    x=tuple(radius for radius, _ in points),
                    y=tuple(estimate.value for _, estimate in points),
                    low=tuple(estimate.low for _, estimate in points),
                    high=tuple(estimate.high for _, estimate in points),
                )
            )
    return tuple(curves)
