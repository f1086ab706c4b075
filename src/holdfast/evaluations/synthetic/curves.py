"""The pictures that explain a SynBench score: what the encoder reaches, over what the mixture allows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.core.records import Curve
from holdfast.core.run_settings import Observed
from holdfast.synthetic.reference import expected_bound, reference
from holdfast.synthetic.score import expected_above

POINTS = 101
TELLING = 0.55
"""Accuracies below which the bound, of the few inputs that are right by luck, is mostly noise."""


def curves(
    observed: Observed, scales: Sequence[float], budgets: Sequence[float], threshold: float
) -> tuple[Curve, ...]:
    """Return what each budget's rules reach, beside what the mixture itself allows.

    That is the expected bound above each accuracy from ``threshold`` on, where the share of the area under the reference
    is the score; the accuracy at each scale; and the bound at each accuracy.
    """
    accuracy = observed["right"][:, -1]
    bound = observed["bound"][:, -1] / accuracy.clamp_min(1e-9)
    parts = [_of_budget(accuracy[:, k], bound[:, k], scales, budget, threshold) for k, budget in enumerate(budgets)]
    return tuple(curve for kind in zip(*parts, strict=True) for curve in kind if curve.x)


def _of_budget(
    accuracy: Float[Tensor, "n"], bound: Float[Tensor, "n"], scales: Sequence[float], budget: float, threshold: float
) -> Iterator[Curve]:
    best, most = reference(scales)
    conditions = {"budget": f"{budget:g}"}
    demanded = torch.linspace(threshold, 1, POINTS, dtype=torch.float64)
    yield Curve(
        quantity="expected_bound",
        conditions=conditions,
        x_label="accuracy demanded",
        y_label="expected bound",
        x=_numbers(demanded),
        y=_numbers(expected_above(accuracy, bound, demanded)),
        reference=_numbers(expected_above(best, most, demanded)),
        shaded=True,
    )
    yield Curve(
        quantity="accuracy",
        conditions=conditions,
        x_label="scale",
        y_label="accuracy",
        x=tuple(scales),
        y=_numbers(accuracy),
        reference=_numbers(best),
    )
    order = accuracy.argsort()
    order = order[accuracy[order] > TELLING]
    yield Curve(
        quantity="bound",
        conditions=conditions,
        x_label="accuracy",
        y_label="bound where right",
        x=_numbers(accuracy[order]),
        y=_numbers(bound[order]),
        reference=_numbers(expected_bound(accuracy[order])),
    )


def _numbers(values: Float[Tensor, "p"]) -> tuple[float, ...]:
    return tuple(values.tolist())
