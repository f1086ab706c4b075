"""Plasma: a height map by the diamond-square method, whose roughness falls with scale."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.core.noise import Noise


def plasma(height: int, width: int, decay: float, noise: Noise, dtype: torch.dtype) -> Float[Tensor, "b height width"]:
    """Return the corner of a map that spans [0, 1], one per stream of ``noise``.

    From the corners of ever smaller squares, periodic at the border, the middle of each square and of each edge becomes
    the mean of its four neighbours and a uniform draw, whose size divides by ``decay`` twice whenever squares halve.
    """
    side = max(2, 1 << (max(height, width) - 1).bit_length())
    # One draw for each place, by where it is.
    draws = 2 * noise.uniform((side, side), dtype) - 1
    heights = torch.zeros_like(draws)
    step, rough = side, 100.0
    while step >= 2:
        half, size = step // 2, rough * rough
        squares = heights[:, ::step, ::step]
        middles = squares + squares.roll(-1, 1)
        middles = (middles + middles.roll(-1, 2)) / 4 + size * draws[:, half::step, half::step]
        heights[:, half::step, half::step] = middles
        above, left = middles + middles.roll(1, 1), middles + middles.roll(1, 2)
        right, below = squares + squares.roll(-1, 2), squares + squares.roll(-1, 1)
        heights[:, ::step, half::step] = (above + right) / 4 + size * draws[:, ::step, half::step]
        heights[:, half::step, ::step] = (left + below) / 4 + size * draws[:, half::step, ::step]
        step, rough = half, rough / decay
    heights -= heights.amin((1, 2), keepdim=True)
    heights /= heights.amax((1, 2), keepdim=True)
    return heights[:, :height, :width]
