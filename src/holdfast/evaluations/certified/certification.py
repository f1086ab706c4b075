"""The settings that all certificates share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from holdfast.attacks.base import Attack
from holdfast.bounds.methods.base import Method
from holdfast.core.records import Conditions
from holdfast.protocol.observation import SharedSettings


@final
@dataclass(frozen=True)
class Certification(SharedSettings):
    """How many images are certified, by which bounds, and which attack is set against the certificates."""

    samples: int
    method: Method
    attack: Attack
    neurons: int
    """The most nonlinear entries an encoder may have."""

    def by_bounds(self, norm: str) -> Conditions:
        """Return the conditions of what is proved in a norm."""
        return {"ball": norm, "method": str(self.method)}

    def by_attack(self, norm: str) -> Conditions:
        """Return the conditions of what is found in a norm."""
        return {"ball": norm, "attack": str(self.attack)}
