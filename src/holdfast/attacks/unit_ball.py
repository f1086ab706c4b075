"""A radius of its own for every image: ``delta -> f(clip(x + radius * delta))`` turns each ball into the unit ball.

There one attack, which knows a single radius, serves all images at once.
"""

from __future__ import annotations

import copy

from jaxtyping import Float
from torch import Tensor, nn

from holdfast.attacks.gradient import passable
from holdfast.core.balls import column
from holdfast.core.encoder import Domain, Encoder, Pixels


class UnitBallModule(nn.Module):
    """An encoder's module as a function of ``delta`` in the unit ball."""

    def __init__(self, encoder: Encoder, centres: Pixels, radii: Float[Tensor, "b"]) -> None:
        super().__init__()
        self.module, self.domain = encoder.module, encoder.domain
        self.centres, self.radii = centres, column(radii, centres)

    def pixels(self, delta: Pixels) -> Pixels:
        """Return the inputs that ``delta`` stands for."""
        return self.domain.clip(self.centres + self.radii * delta)

    def forward(self, delta: Tensor) -> Tensor:
        x = self.pixels(delta).detach()
        if delta.requires_grad:
            # Straight-through clip; outward gradients are zeroed.
            x = x + (delta - delta.detach()) * self.radii
            # Not of ``x`` itself, which would then hold its own hook and never be freed.
            here, domain = x.detach(), self.domain
            x.register_hook(lambda gradient: passable(here, gradient, domain))
        return self.module(x)


def on_unit_ball(encoder: Encoder, centres: Pixels, radii: Float[Tensor, "b"]) -> tuple[Encoder, UnitBallModule]:
    """Return ``encoder`` as a function of ``delta`` in the unit ball around zero, and its module, which gives the pixels.

    A new ``Encoder`` would copy the weights, at every radius that is tried.
    """
    module = UnitBallModule(encoder, centres, radii).eval()
    moved = copy.copy(encoder)
    moved.module, moved.domain = module, Domain(encoder.domain.shape, -1.0, 1.0)
    moved.__dict__.pop("fingerprint", None)
    return moved, module
