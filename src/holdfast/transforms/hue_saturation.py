"""Colours turned and faded: the chrominance plane of YIQ is rotated and shrunk, the luma stays.

(I, Q) -> (1 - amount / 2) R(90 degrees * amount) (I, Q)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import cos, pi, sin
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.core.errors import HoldfastError
from holdfast.core.noise import Noise
from holdfast.transforms.base import ImagePixels, Transform

YIQ = ((0.299, 0.587, 0.114), (0.595716, -0.274453, -0.321263), (0.211456, -0.522591, 0.311135))


@final
@dataclass(frozen=True)
class HueSaturation(Transform):
    """Hue turned by ``amount`` quarters of a circle and saturation less by half of ``amount``; gray images stay."""

    amount: float
    name = "hue-saturation"
    channels = (1, 3)
    rungs = (0.0, 0.1, 0.2, 0.4, 0.7, 1.0)

    def __post_init__(self) -> None:
        if not 0 <= self.amount <= 1:
            raise HoldfastError(f"the amount of hue-saturation must lie in 0..1, got {self.amount}")

    def change(self, pixels: ImagePixels, noise: Noise) -> ImagePixels:
        if pixels.shape[1] != 3 or self.amount == 0:
            return pixels
        return torch.einsum("ij,bjhw->bihw", turned(self.amount).to(pixels), pixels)


@cache
def turned(amount: float) -> Float[Tensor, "3 3"]:
    """Return what happens to (red, green, blue) as a matrix.

    Example:
        >>> grey = turned(0.4) @ torch.ones(3, dtype=torch.float64)
        >>> bool((grey - 1).abs().max() < 1e-12)
        True
    """
    to_yiq = torch.tensor(YIQ, dtype=torch.float64)
    # Its coefficients are rounded: without this, grey would have a little colour.
    to_yiq[1:] -= to_yiq[1:].mean(1, keepdim=True)
    to_yiq[0] /= to_yiq[0].sum()
    angle, kept = amount * pi / 2, 1 - amount / 2
    rotation = torch.eye(3, dtype=torch.float64)
    rotation[1:, 1:] = kept * torch.tensor([[cos(angle), -sin(angle)], [sin(angle), cos(angle)]])
    return torch.linalg.inv(to_yiq) @ rotation @ to_yiq
