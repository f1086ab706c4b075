"""Objectives of attackers: for given images, each returns a function of the perturbed embeddings to maximise."""

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
from holdfast.core.settings import Searching, to_text

ObjectiveFunction = Callable[[Codes], Float[Tensor, "b"]]
"""The gain of each sample as a function of its moved code: attacks climb it, training descends it."""


@dataclass(frozen=True)
class AttackContext:
    """Images under attack and what an objective may use; embeddings are computed once."""

    encoder: Encoder
    """Encoder under attack."""
    pixels: Pixels
    """Clean images, shape (b, *pixels)."""
    noise: Noise
    """Random streams, one per image."""
    target_pixels: Pixels | None = None
    """Target of each image, for targeted objectives, shape (b, *pixels)."""
    rivals: Float[Tensor, "b k d"] | None = None
    """Clean embeddings of the k competitors of each image, for objectives against many images."""

    @cached_property
    def codes(self) -> Codes:
        """Clean embeddings of the images, shape (b, d)."""
        with torch.no_grad():
            return self.encoder.forward(self.pixels)

    @cached_property
    def targets(self) -> Codes:
        """Clean embeddings of the targets, shape (b, d)."""
        if self.target_pixels is None:
            raise HoldfastError("a targeted objective needs target images; pass them, or use an untargeted objective")
        with torch.no_grad():
            return self.encoder.forward(self.target_pixels)

    def code(self, pixels: Pixels) -> Codes:
        """Embeddings of a view of the images, shape (b, d)."""
        with torch.no_grad():
            return self.encoder.forward(pixels)


@dataclass(frozen=True)
class Objective(Searching, ABC):
    """Goal of an attacker; called on an attack context it gives the function to maximise."""

    name: ClassVar[str]
    version: ClassVar[int] = 1
    """Version of the objective; it rises when equal settings give another function."""
    targeted: ClassVar[bool] = False
    """True if the objective needs a target for each image."""
    per_sample: ClassVar[bool] = True
    """True if the gain of an image does not depend on the rest of its batch."""
    rivals: ClassVar[Literal["none", "nearest", "random"]] = "none"
    """Other images whose embeddings ``AttackContext.rivals`` must hold."""

    def __str__(self) -> str:
        return to_text(self)

    @abstractmethod
    def __call__(self, context: AttackContext) -> ObjectiveFunction:
        """Return the function to climb for the images of ``context``."""


@dataclass(frozen=True)
class DivergenceObjective(Objective):
    """Objective that uses a divergence, which callers may exchange or fit."""

    divergence: Divergence = L2Distance()
    """Distance between embeddings that the attack maximises or minimises."""
