"""The settings that all certificates share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from holdfast.attacks.base import Attack
from holdfast.bounds.methods.base import Method
from holdfast.bounds.rounding.executed_encoder import check_arithmetic, executes, stated
from holdfast.core.encoder import Pixels
from holdfast.core.records import Conditions
from holdfast.evaluations.certified.pairwise.pairs import CertifiedEncoder, certified_encoder
from holdfast.protocol.observation import SharedSettings
from holdfast.protocol.population import Population


def arithmetic_of(population: Population, arithmetic: str) -> Conditions:
    """Return what a certificate is conditional on where it is of an encoder as executed; nothing in real arithmetic."""
    precision = population.run.dtype
    return {"arithmetic": stated(precision)} if executes(arithmetic, precision) else {}


@final
@dataclass(frozen=True)
class Certification(SharedSettings):
    """How many images are certified, by which bounds, and which attack is set against the certificates."""

    samples: int
    method: Method
    attack: Attack
    neurons: int
    """The most nonlinear entries an encoder may have."""
    arithmetic: str = "real"
    """``real``: of the function of real numbers; ``executed``: of whatever the run's precision may make of it."""

    def __post_init__(self) -> None:
        check_arithmetic(self.arithmetic)

    def encoder(self, population: Population, pixels: Pixels) -> CertifiedEncoder:
        """Return what is certified around ``pixels``."""
        return certified_encoder(population, self.neurons, self.arithmetic, pixels)

    def by_bounds(self, norm: str) -> Conditions:
        """Return the conditions of what is proved in a norm."""
        return {"ball": norm, "method": str(self.method)}

    def by_attack(self, norm: str) -> Conditions:
        """Return the conditions of what is found in a norm."""
        return {"ball": norm, "attack": str(self.attack)}
