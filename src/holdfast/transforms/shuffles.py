"""Images cut into patches and shuffled by one permutation, the same for every image, channel and patch.

``global-shuffle`` permutes the ``grid`` x ``grid`` patches (what is local survives), ``local-shuffle`` the pixels inside
each patch (what is global survives); Zhong et al. 2022, https://arxiv.org/abs/2206.05259. The labels of the paper,
"G4x4" and "L8x8", count patches per side, as ``grid`` does. No pixel is lost: a permutation of all coordinates leaves
every distance between raw images as it was. Its larger grid has patches of 4 pixels, ``patch=4``: as many per side as there
are pixels over 4. Its "L128x128" of 224 pixels has patches of 1 and 2 pixels a side, for 128 does not divide 224: patch
``i`` of a side of ``s`` pixels begins at ``floor(i s / grid)``, and all patches of one shape have one permutation.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from math import gcd
from typing import final

import torch
from jaxtyping import Int
from torch import Tensor

from holdfast.core.errors import OutOfRange
from holdfast.core.noise import Noise
from holdfast.transforms.base import ImagePixels, Transform


@dataclass(frozen=True)
class Shuffle(Transform):
    """Permutation of the pixels, the same for every image."""

    grid: int = 4
    """Patches per side."""
    seed: int = 0
    """Seed of the permutation."""
    patch: int = 0
    """Pixels per side of a patch, instead of `grid`; 0: `grid` decides."""

    allowed = ("grid in [1, inf)", "patch in [0, inf)")

    def change(self, pixels: ImagePixels, noise: Noise) -> ImagePixels:
        return ordered(pixels, self.order(*pixels.shape[-2:]))

    def undone(self, pixels: ImagePixels) -> ImagePixels:
        return ordered(pixels, self.order(*pixels.shape[-2:]).argsort())

    @abstractmethod
    def order(self, height: int, width: int) -> Int[Tensor, "pixels"]:
        """Return where each pixel comes from."""

    def patches(self, height: int, width: int) -> int:
        """Return how many patches there are per side.

        Raises:
            HoldfastError: The shorter side is no multiple of ``patch``.
        """
        side = min(height, width)
        if self.patch and side % self.patch:
            fits = [size for size in range(1, side + 1) if side % size == 0]
            raise OutOfRange(f"patch for a side of {side} pixels", self.patch, fits)
        return side // self.patch if self.patch else self.grid


@final
class GlobalShuffle(Shuffle):
    """Shuffle the patches of an image, in one order for the whole data set."""

    name = "global-shuffle"

    def order(self, height: int, width: int) -> Int[Tensor, "pixels"]:
        return global_order(height, width, self.patches(height, width), self.seed)


@final
class LocalShuffle(Shuffle):
    """Shuffle the pixels inside each patch, in one order for all patches and images."""

    name = "local-shuffle"

    def order(self, height: int, width: int) -> Int[Tensor, "pixels"]:
        return local_order(height, width, self.patches(height, width), self.seed)


def ordered(pixels: ImagePixels, order: Int[Tensor, "pixels"]) -> ImagePixels:
    """Images whose pixels come from other places.

    Args:
        order: Place that each pixel comes from, counted row by row, shape (height * width,).
    """
    return pixels.flatten(2)[..., order.to(pixels.device)].reshape(pixels.shape)


@cache
def global_order(height: int, width: int, grid: int, seed: int) -> Int[Tensor, "pixels"]:
    """Order of the pixels when whole patches are permuted.

    Raises:
        HoldfastError: The sides are no multiples of ``grid``, so that patches of different shapes would change places.
    """
    if height % grid or width % grid:
        common = gcd(height, width)
        fits = [side for side in range(1, common + 1) if common % side == 0]
        raise OutOfRange(f"grid for images of {height} x {width}", grid, fits)
    places = torch.arange(height * width).reshape(grid, height // grid, grid, width // grid).transpose(1, 2)
    patches = places.reshape(grid * grid, -1)[permutation(grid * grid, seed)]
    return patches.reshape(grid, grid, height // grid, width // grid).transpose(1, 2).flatten()


@cache
def local_order(height: int, width: int, grid: int, seed: int) -> Int[Tensor, "pixels"]:
    """Order of the pixels when those inside each patch are permuted, alike in all patches of one shape.

    Raises:
        HoldfastError: There are more patches than pixels per side.
    """
    if grid > min(height, width):
        raise OutOfRange(f"grid for images of {height} x {width}", grid, f"at most {min(height, width)}")
    places = torch.arange(height * width).reshape(height, width)
    order = places.clone()
    rows, columns = ([place * side // grid for place in range(grid + 1)] for side in (height, width))
    for top, bottom in pairwise(rows):
        for left, right in pairwise(columns):
            patch = places[top:bottom, left:right]
            order[top:bottom, left:right] = patch.flatten()[permutation(patch.numel(), seed)].reshape(patch.shape)
    return order.flatten()


@cache
def permutation(count: int, seed: int) -> Int[Tensor, "count"]:
    """Random order that is not the identity.

    Example:
        >>> permutation(1, seed=0), {tuple(permutation(2, seed).tolist()) for seed in range(9)}
        (tensor([0]), {(1, 0)})
    """
    same, drawn = torch.arange(count), Noise.of(seed, ["permutation"])
    for attempt in range(1 << 16):
        order = drawn.fork(count, attempt).uniform((count,), torch.float64)[0].argsort()
        if count == 1 or not torch.equal(order, same):
            return order
    raise AssertionError("a fair coin never fell on the other side")
