"""Untargeted: move the representation away from the clean one, ``d(f(x^), f(x))``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from holdfast.divergences import Divergence, L2Distance
from holdfast.objective import Goal, Objective, Scene


@final
@dataclass(frozen=True)
class Away(Goal):
    """Climb the divergence from the clean code (U-FGSM, U-BIM, U-PGD; Petrov and Kwiatkowska 2022, section 4)."""

    divergence: Divergence = L2Distance()
    name = "away"

    def __call__(self, scene: Scene) -> Objective:
        clean = scene.codes
        return lambda codes: self.divergence(codes, clean)
