"""The class-conditional Gaussian: ``y = +1`` or ``-1`` with probability 1/2, and ``x | y ~ N(y mu, I)``.

A sample needs no more memory than itself, at any image size. Ko et al. 2022 (SynBench),
https://arxiv.org/abs/2210.02989, section 3.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import pi

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.core.errors import HoldfastError, did_you_mean
from holdfast.core.noise import Noise

DIRECTIONS = ("ones", "smooth", "signs")


def direction(kind: str, shape: tuple[int, ...], seed: int = 0) -> Float[Tensor, "*pixels"]:
    """Return the unit vector along which the class means lie, of the inputs' ``shape``.

    ``ones`` brightens every input value alike (published); ``smooth`` is one half cosine across each of the last two
    axes, which averages to zero; ``signs`` is an equal number in every place with a sign drawn by ``seed``.

    Example:
        >>> direction("ones", (1, 2, 2))
        tensor([[[0.5000, 0.5000],
                 [0.5000, 0.5000]]], dtype=torch.float64)
    """
    if kind not in DIRECTIONS:
        raise HoldfastError(f"unknown direction {kind!r}; {did_you_mean(kind, list(DIRECTIONS))}")
    if kind == "signs":
        vector = Noise.of(seed, ["direction"]).signs(shape, torch.float64)[0]
    else:
        vector = torch.ones(shape, dtype=torch.float64)
    for axis in range(max(0, len(shape) - 2), len(shape)) if kind == "smooth" else ():
        size = shape[axis]
        wave = torch.cos(pi * (torch.arange(size, dtype=torch.float64) + 0.5) / size)
        if size > 1:  # along a single place there is nothing to vary
            vector = vector * wave.reshape(-1, *[1] * (len(shape) - axis - 1))
    return vector / vector.norm()


@dataclass(frozen=True)
class Mixture:
    """Two Gaussians around ``mean`` and ``-mean``, in which every input value varies by 1 on its own."""

    mean: Float[Tensor, "*pixels"]

    def sample(self, noise: Noise, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Float[Tensor, "b"]]:
        """Return one input per stream of ``noise``, shape (b, *pixels), and the classes, +1 or -1."""
        shape = tuple(self.mean.shape)
        labels = noise.fork("class").signs((), dtype)
        spread = noise.fork("spread").normal(shape, dtype)
        return labels.reshape(-1, *[1] * len(shape)) * self.mean.to(spread) + spread, labels
