"""Inputs of an encoder where there are no images: constant ones to time it on, random ones to try it on."""

from __future__ import annotations

from math import isfinite

import torch
from torch import Tensor

from holdfast.core.encoder import Domain, Pixels
from holdfast.core.noise import Noise


def constant_inputs(domain: Domain, count: int, like: Tensor) -> Pixels:
    """Return ``count`` inputs of one value, on the device and of the type of ``like``.

    The value halfway between the ends of the range, or the one nearest to 0 where an end is infinite.

    Example:
        >>> constant_inputs(Domain((2,), -1.0, 3.0), 1, torch.zeros(()))
        tensor([[1., 1.]])
        >>> constant_inputs(Domain((2,), 2.0, float("inf")), 1, torch.zeros(()))
        tensor([[2., 2.]])
    """
    middle = (domain.low + domain.high) / 2
    value = middle if isfinite(middle) else min(max(domain.low, 0.0), domain.high)
    return torch.full((count, *domain.shape), value, device=like.device, dtype=like.dtype)


def random_inputs(domain: Domain, noise: Noise, dtype: torch.dtype) -> Pixels:
    """Return one input for each stream of ``noise``, uniform in the range.

    Where an end is infinite they are normal, and mirrored at the other one.

    Example:
        >>> inputs = random_inputs(Domain((3,), 2.0, float("inf")), Noise.of(0, ["a", "b"]), torch.float32)
        >>> inputs.shape, bool((inputs >= 2).all())
        (torch.Size([2, 3]), True)
    """
    width = domain.high - domain.low
    if isfinite(width):
        return domain.clip(domain.low + width * noise.uniform(domain.shape, dtype))
    values = noise.normal(domain.shape, dtype)
    for end in filter(isfinite, (domain.low, domain.high)):
        values = torch.where(values == domain.clip(values), values, 2 * end - values)
    return domain.clip(values)
