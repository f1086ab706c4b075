"""From one value per sample to a typed series."""

from __future__ import annotations

from math import isnan, nan

from jaxtyping import Float, Shaped
from torch import Tensor

from holdfast.core.records import Claim, Conditions, Series


def series_of(
    quantity: str, conditions: Conditions, values: Shaped[Tensor, "n"], unit: str, claim: Claim, of: str, reason: str
) -> Series:
    """Return ``values`` as a series; those that are nan are missing for ``reason``.

    Example:
        >>> import torch
        >>> series_of("risk", {}, torch.tensor([0.5, torch.nan]), "share", Claim.ESTIMATE, "risk", "a zero code").reasons
        {1: 'a zero code'}
    """
    numbers = values.double().cpu().tolist()
    return Series(
        quantity=quantity,
        conditions=conditions,
        values=tuple(numbers),
        unit=unit,
        claim=claim,
        of=of,
        reasons={position: reason for position, value in enumerate(numbers) if isnan(value)},
    )


def ratio_of_means(top: Float[Tensor, "n"], bottom: Float[Tensor, "n"]) -> Float[Tensor, "n"]:
    """Return one value per sample whose mean is ``mean(top) / mean(bottom)``: itself plus the sample's influence on it.

    So its interval and its paired comparisons are those of a mean, and allow for the chance in both means (the delta
    method). All nan where the lower mean is zero.

    Example:
        >>> import torch
        >>> ratio_of_means(torch.tensor([1.0, 0.0, 1.0, 0.0]), torch.tensor([1.0, 1.0, 1.0, 0.0])).mean()
        tensor(0.6667)
    """
    mean = bottom.mean()
    ratio = top.mean() / mean
    return (ratio + (top - ratio * bottom) / mean).where(mean != 0, nan)
