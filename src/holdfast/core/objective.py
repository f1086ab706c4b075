"""An objective says what an attacker wants; for the images at hand it gives a function of the moved codes to climb."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.core.divergences import Divergence, L2Distance
from holdfast.core.encoder import Codes, Encoder, Pixels
from holdfast.core.errors import HoldfastError
from holdfast.core.noise import Noise
from holdfast.core.settings import Searching, spell

ObjectiveFunction = Callable[[Codes], Float[Tensor, "b"]]
"""The gain of each sample as a function of its moved code: attacks climb it, training descends it."""


@dataclass(frozen=True)
class AttackContext:
    """The images under attack and what an objective may know about them; codes are computed once, on demand."""

    encoder: Encoder
    pixels: Pixels
    noise: Noise
    target_pixels: Pixels | None = None
    """For targeted objectives: the image each sample should be mistaken for."""
    rivals: Float[Tensor, "b k d"] | None = None
    """For objectives against many images: the clean codes of each sample's k competitors."""

    @cached_property
    def codes(self) -> Codes:
        """Clean codes of the images."""
        with torch.no_grad():
            return self.encoder.forward(self.pixels)

    @cached_property
    def targets(self) -> Codes:
        """Clean codes of the targets."""
        if self.target_pixels is None:
            raise HoldfastError("a targeted objective needs target images; pass them, or use an untargeted objective")
        with torch.no_grad():
            return self.encoder.forward(self.target_pixels)

    def code(self, pixels: Pixels) -> Codes:
        """Return the codes of a view of the images."""
        with torch.no_grad():
            return self.encoder.forward(pixels)


@dataclass(frozen=True)
class Objective(Searching, ABC):
    """What the attacker wants; called on an attack context it gives the function to climb."""

    name: ClassVar[str]
    version: ClassVar[int] = 1
    """Raised when the same settings give other functions."""
    targeted: ClassVar[bool] = False
    per_sample: ClassVar[bool] = True
    """Whether each sample's gain ignores the other samples of its batch."""
    rivals: ClassVar[Literal["none", "nearest", "random"]] = "none"
    """Which other images' codes ``AttackContext.rivals`` must hold."""

    def __str__(self) -> str:
        return spell(self)

    @abstractmethod
    def __call__(self, context: AttackContext) -> ObjectiveFunction:
        """Return the function to climb for the images of ``context``."""


@dataclass(frozen=True)
class DivergenceObjective(Objective):
    """An objective in terms of a divergence, which callers may exchange or fit to the clean codes."""

    divergence: Divergence = L2Distance()
    """Distance between embeddings that the attack maximises or minimises."""
