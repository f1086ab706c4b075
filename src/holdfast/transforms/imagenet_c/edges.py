"""Canny's edges, as OpenCV finds them: ``Canny(levels, 50, 150)`` with 3 x 3 derivatives and |dx| + |dy| as magnitude."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from holdfast.transforms.smoothing import window

LOW, HIGH = 50, 150
SOBEL = torch.tensor([[-1.0, 0.0, 1.0], [-2.0, 0.0, 2.0], [-1.0, 0.0, 1.0]])
TAN_22_5 = 13573
"""tan(22.5 degrees) times 2^15."""


def edges(levels: Float[Tensor, "b 1 height width"]) -> Bool[Tensor, "b 1 height width"]:
    """Return which pixels of 8-bit ``levels`` lie on an edge."""
    from scipy import ndimage  # loaded here, because it is slow to load

    across, down = (window(levels, kernel, "edge").round().long() for kernel in (SOBEL, SOBEL.T))
    ridge, size = ridges(across, down)
    edge_maps = []
    for weak, strong in zip(ridge & (size > LOW), ridge & (size > HIGH), strict=True):
        # A weak edge counts if it hangs together with a strong one.
        pieces, _ = ndimage.label(weak[0].cpu().numpy(), structure=torch.ones(3, 3).numpy())
        labels = torch.from_numpy(pieces).to(levels.device)
        edge_maps.append((weak & torch.isin(labels, labels[strong[0]].unique()))[None])
    return torch.cat(edge_maps)


def ridges(across: Tensor, down: Tensor) -> tuple[Bool[Tensor, "b 1 height width"], Tensor]:
    """Return which pixels have the largest derivative along its direction, and its size."""
    size = across.abs() + down.abs()
    framed = functional.pad(size, (1, 1, 1, 1))
    height, width = size.shape[-2:]

    def beside(rows: int, columns: int) -> Tensor:
        return framed[..., 1 + rows : 1 + rows + height, 1 + columns : 1 + columns + width]

    flat = (down.abs() << 15) < across.abs() * TAN_22_5
    steep = (down.abs() << 15) > across.abs() * (TAN_22_5 + (1 << 16))
    falling = (across ^ down) >= 0
    horizontal = (size > beside(0, -1)) & (size >= beside(0, 1))
    vertical = (size > beside(-1, 0)) & (size >= beside(1, 0))
    diagonal = torch.where(
        falling, (size > beside(-1, -1)) & (size > beside(1, 1)), (size > beside(-1, 1)) & (size > beside(1, -1))
    )
    return torch.where(flat, horizontal, torch.where(steep, vertical, diagonal)), size
