"""From a tensor of values, one per image, to a typed series."""

from __future__ import annotations

from math import isnan

from jaxtyping import Float
from torch import Tensor

from holdfast.core.records import Claim, Conditions, Series


def series_of(
    quantity: str,
    conditions: Conditions,
    values: Float[Tensor, "n"],
    unit: str,
    of: str,
    reason: str,
    claim: Claim = Claim.ESTIMATE,
) -> Series:
    """Return ``values`` as a series; those that are nan are missing for ``reason``."""
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
