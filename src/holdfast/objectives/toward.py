"""Targeted: move the representation towards that of another image, ``-d(f(x^), f(x_j))``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from holdfast.objectives.base import AttackContext, DivergenceObjective, ObjectiveFunction


@final
@dataclass(frozen=True)
class Toward(DivergenceObjective):
    """Descend the divergence to the target's clean code (T-PGD; Petrov and Kwiatkowska 2022, section 4)."""

    name = "toward"
    targeted = True

    def __call__(self, context: AttackContext) -> ObjectiveFunction:
        targets = context.targets
        return lambda codes: -self.divergence(codes, targets)
