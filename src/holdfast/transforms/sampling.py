"""Images read between their pixels, by bilinear interpolation."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from holdfast.transforms.base import ImagePixels

Places = Float[Tensor, "#b #height #width"]


def sampled(pixels: ImagePixels, rows: Places, columns: Places, beyond: str = "edge") -> ImagePixels:
    """Return the values of images at fractional ``rows`` and ``columns``.

    Args:
        pixels: the images.
        rows: where to read, 0 at the centre of the first row.
        columns: the same for columns. Each may be one value wide along the other's axis.
        beyond: what is there outside of the image: "edge" (its nearest pixel) or "zeros" (black).
    """
    height, width = pixels.shape[-2:]
    across, down = ((2 * columns + 1) / width - 1).to(pixels), ((2 * rows + 1) / height - 1).to(pixels)
    share = torch.stack(torch.broadcast_tensors(across, down), -1)
    padding = {"edge": "border", "zeros": "zeros"}[beyond]
    grid = share.expand(len(pixels), -1, -1, -1)
    return functional.grid_sample(pixels, grid, mode="bilinear", padding_mode=padding, align_corners=False)


def centred(pixels: ImagePixels) -> tuple[Tensor, Tensor]:
    """Return the rows, shape (height, 1), and columns, shape (1, width), of the pixels as seen from the middle."""
    height, width = pixels.shape[-2:]
    rows = torch.arange(height, dtype=torch.float64, device=pixels.device) - (height - 1) / 2
    columns = torch.arange(width, dtype=torch.float64, device=pixels.device) - (width - 1) / 2
    return rows[:, None], columns[None]


def mapped(pixels: ImagePixels, matrix: tuple[float, float, float, float]) -> ImagePixels:
    """Return the images read at ``matrix`` times (row, column), both seen from the middle, with black around them."""
    rows, columns = centred(pixels)
    height, width = pixels.shape[-2:]
    a, b, c, d = matrix
    at = a * rows + b * columns + (height - 1) / 2, c * rows + d * columns + (width - 1) / 2
    return sampled(pixels, at[0][None], at[1][None], beyond="zeros")


def symmetric(places: Tensor, size: int) -> Tensor:
    """Return fractional places in a row of ``size`` pixels, reflected at the outer edges of the first and the last.

    Example:
        >>> symmetric(torch.tensor([-1.25, 1.0, 4.5]), 4).tolist()
        [0.25, 1.0, 2.5]
    """
    within = (places + 0.5) % (2 * size)
    return torch.where(within < size, within, 2 * size - within) - 0.5


def mirrored(places: Tensor, size: int) -> Tensor:
    """Return fractional places in a row of ``size`` pixels, reflected at the centres of the first and the last.

    Example:
        >>> mirrored(torch.tensor([-1.25, 1.0, 3.25, 4.5]), 4).tolist()
        [1.25, 1.0, 2.75, 1.5]
    """
    within = places % (2 * max(size - 1, 1))
    return torch.where(within <= size - 1, within, 2 * (size - 1) - within)
