"""From right and wrong answers to the relative drop of accuracy, and how it varies.

    relative_accuracy_drop = (Acc(original) - Acc(corrupted)) / Acc(original)

Zhong et al. 2022, https://arxiv.org/abs/2206.05259. Signed: a corruption may help.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan, nan

import numpy as np
from jaxtyping import Float
from torch import Tensor

from holdfast.core.records import Claim, Conditions, Estimate
from holdfast.core.statistics.series import ratio_of_means


def drops(original: Float[Tensor, "n"], corrupted: Float[Tensor, "n"]) -> Float[Tensor, "n"]:
    """Return one value per image whose mean is the relative drop of accuracy; nan where nothing was right to begin with.

    Example:
        >>> import torch
        >>> drops(torch.tensor([1.0, 1.0, 1.0, 0.0]), torch.tensor([1.0, 0.0, 1.0, 0.0])).mean()
        tensor(0.3333)
    """
    return 1 - ratio_of_means(corrupted, original)


def deviation(values: Sequence[float], conditions: Conditions) -> Estimate:
    """Return the standard deviation of the drop over permutations."""
    return _without_interval(
        "permutation_deviation",
        conditions,
        float(np.std(values, ddof=1)),
        len(values),
        f"standard deviation over {len(values)} permutations; no interval for so few",
        "share of clean accuracy",
        "spread of the drop over permutations",
    )


def rank_correlation(drop: Sequence[float], lost: Sequence[float], conditions: Conditions) -> list[Estimate]:
    """Return Spearman's correlation of harm with and without labels over corruptions, if these are three at least."""
    from scipy.stats import spearmanr

    if len(drop) < 3 or len(set(drop)) == 1 or len(set(lost)) == 1 or any(map(isnan, [*drop, *lost])):
        return []
    of = "agreement of harm with and without labels"
    method = f"Spearman's over {len(drop)} corruptions, which are no sample of anything: no interval"
    value = float(spearmanr(drop, lost).statistic)
    return [_without_interval("rank_correlation", conditions, value, len(drop), method, "correlation", of)]


def _without_interval(
    quantity: str, conditions: Conditions, value: float, n: int, method: str, unit: str, of: str
) -> Estimate:
    return Estimate(
        quantity=quantity,
        conditions=conditions,
        value=value,
        low=nan,
        high=nan,
        n=n,
        method=method,
        unit=unit,
        claim=Claim.ESTIMATE,
        of=of,
        better="neither",
    )
