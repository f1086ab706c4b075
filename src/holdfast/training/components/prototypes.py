"""Prototypes: directions that codes are compared with, as the classes of objectives that cluster."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import normalize

from holdfast.core.encoder import Codes


class Prototypes(nn.Module):
    """Cosines of codes with learned directions.

    The weights are divided by their norms in the forward pass, a weight normalisation whose lengths stay 1: what the
    authors of DINO do; those of SwAV divide the weights themselves after each step.
    """

    def __init__(self, width: int, count: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(count, width))

    def forward(self, codes: Codes) -> Float[Tensor, "b k"]:
        return normalize(codes, dim=1) @ normalize(self.weight, dim=1).T
