"""Grow: make the representation long, ``|f(x^)|``, for encoders whose length is taken for confidence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch

from holdfast.extend import AttackContext, Objective, ObjectiveFunction


@final
@dataclass(frozen=True)
class Grow(Objective):
    """Climb the length of the code."""

    name = "grow"

    def __call__(self, context: AttackContext) -> ObjectiveFunction:
        return lambda codes: torch.linalg.vector_norm(codes, dim=1)
