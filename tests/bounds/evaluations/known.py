"""Pairs whose robust radius is known: linear encoders, and bounds that lie."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from holdfast.bounds.certified_pairs import Pairs
from holdfast.bounds.methods.base import Method
from holdfast.bounds.network.network_graph import Graph
from holdfast.bounds.network.tracing import trace
from holdfast.bounds.regions import Region
from holdfast.core.encoder import Domain, Encoder
from holdfast.core.images import Images
from holdfast.core.noise import Noise
from tests.samples import linear, published


@cache
def linear_case(count: int = 12) -> tuple[Encoder, Images, Float[Tensor, "d n"]]:
    """A linear encoder of 2 x 3 inputs that no small ball can leave the range of."""
    weight = torch.randn(5, 6, generator=torch.Generator().manual_seed(1))
    pixels = 0.45 + 0.1 * torch.rand(count, 1, 2, 3, generator=torch.Generator().manual_seed(2))
    return linear(weight, (1, 2, 3)), Images(pixels, ids=[f"image {k}" for k in range(count)]), weight


@final
@dataclass(frozen=True)
class Boast(Method):
    """Claims the same bound whatever the radius: by default that nothing can happen."""

    claim: float = 1.0
    name = "boast"

    def __post_init__(self) -> None:
        """Claim whatever is wanted: nan and infinity, too."""

    def __call__(self, graph: Graph, region: Region, rows: Float[Tensor, "b s d"]) -> Float[Tensor, "b s"]:
        return torch.full_like(rows[..., 0], self.claim)


class Sorting(nn.Module):
    """An operation that no bound knows."""

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1).sort(dim=1).values


def sorting(shape: tuple[int, ...] = (1, 8, 8)) -> Encoder:
    """An encoder that cannot be bounded."""
    return Encoder(Sorting().eval(), "sorting", Domain(shape))


def reference_pairs(folder: Path, name: str, count: int) -> tuple[Pairs, dict[str, Float[np.ndarray, "n k"]]]:
    """The first pairs of a published encoder, and what independent programs found of their radii."""
    bounds = np.load(folder / "verification" / f"autolirpa__{name}.npz")
    attacks = np.load(folder / "verification" / f"pgd__{name}.npz")
    encoder = published(folder, name, torch.float64)
    pixels = torch.tensor(bounds["X_f32"]).double()
    near, other = bounds["neg_index"][:count], attacks["pgd_radius_clip"][:count]
    pairs = Pairs(
        encoder=encoder,
        graph=trace(encoder, torch.float64),
        ids=tuple((str(row), *map(str, line)) for row, line in enumerate(near)),
        anchors=pixels[:count],
        negatives=pixels[torch.tensor(near)],
        specifications=torch.tensor(bounds["C_f64"])[:count],
        noise=Noise.of(0, [f"{row} {k}" for row in range(count) for k in range(near.shape[1])]),
    )
    return pairs, {"crown": bounds["radius_clip_f64"][:count], "attacked": other}
