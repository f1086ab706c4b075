"""Untargeted: move the representation away from the clean one, ``d(f(x^), f(x))``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from holdfast.objectives.base import AttackContext, DivergenceObjective, ObjectiveFunction


@final
@dataclass(frozen=True)
class Away(DivergenceObjective):
    """Climb the divergence from the clean code (U-FGSM, U-BIM, U-PGD; Petrov and Kwiatkowska 2022, section 4)."""

    name = "away"

    def __call__(self, context: AttackContext) -> ObjectiveFunction:
        clean = context.codes
        return lambda codes: self.divergence(codes, clean)
