"""From what probes answer to series."""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor

from holdfast.core.records import Claim, Conditions, Series
from holdfast.core.statistics.series import series_of

CLEAN = "accuracy of the probe on clean images"
MARGIN = "log-odds of the label against the best other class"
ABSENT = "the bank shows no image of its class"


def right_series(conditions: Conditions, right: Bool[Tensor, "n"], quantity: str = "classified_right") -> Series:
    """Return which clean images are classified right as a series."""
    return series_of(quantity, conditions, right, "yes or no", Claim.ESTIMATE, CLEAN, ABSENT)


def margin_series(conditions: Conditions, margin: Float[Tensor, "n"], quantity: str, claim: Claim) -> Series:
    """Return margins as a series; labels that the bank does not show have none."""
    return series_of(quantity, conditions, margin, "log-odds", claim, MARGIN, ABSENT)
