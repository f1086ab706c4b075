"""From right and wrong answers to accuracies, their relative drop, and what must be known of them.

    relative_accuracy_drop = (Acc(original) - Acc(corrupted)) / Acc(original)

Zhong et al. 2022, https://arxiv.org/abs/2206.05259. Signed: a corruption may help.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan, nan, sqrt

import numpy as np
from jaxtyping import Float
from torch import Tensor

from holdfast.core.records import Claim, Conditions, Estimate
from holdfast.core.series import ratio_of_means
from holdfast.core.statistics import share_interval
from holdfast.probes.base import FittedProbe, class_names
from holdfast.protocol.population import Population

NEAR_CHANCE = 3.0
"""Standard errors above chance within which a probe may know nothing."""


def drops(original: Float[Tensor, "n"], corrupted: Float[Tensor, "n"]) -> Float[Tensor, "n"]:
    """Return one value per image whose mean is the relative drop of accuracy; nan where nothing was right to begin with.

    Example:
        >>> import torch
        >>> drops(torch.tensor([1.0, 1.0, 1.0, 0.0]), torch.tensor([1.0, 0.0, 1.0, 0.0])).mean()
        tensor(0.3333)
    """
    return 1 - ratio_of_means(corrupted, original)


def chance_estimate(population: Population, rows: Sequence[int]) -> Estimate:
    """Return the accuracy of answering the most common class of the images measured, without looking."""
    most, n = int(population.labels[list(rows)].unique(return_counts=True)[1].max()), len(rows)
    low, high = share_interval(most, n)
    return Estimate(
        quantity="chance_accuracy",
        value=most / n,
        low=low,
        high=high,
        n=n,
        method="mid-P",
        unit="share of samples",
        claim=Claim.ESTIMATE,
        of="accuracy of the most common class as the only answer",
        better="neither",
    )


def accuracy_warnings(
    population: Population, rows: Sequence[int], learned: Sequence[FittedProbe], clean: Sequence[Estimate]
) -> list[str]:
    """Return the sentences that a reader must see beside drops of probes whose ``clean`` accuracies these are."""
    said = [probe.caution for probe in learned if probe.caution]
    labels = population.labels[list(rows)]
    absent = learned[0].places(labels) < 0
    if bool(absent.any()):
        names = class_names(population, labels[absent].unique())
        said.append(
            f"The bank shows no image of {len(names)} of the classes measured ({', '.join(names[:5])}): their "
            f"{int(absent.sum())} images count as wrong; add images of them to the bank, or leave them out."
        )
    chance = chance_estimate(population, rows).value
    for one in clean:
        if one.value - chance <= NEAR_CHANCE * sqrt(chance * (1 - chance) / one.n):
            said.append(
                f"AT CHANCE: {one.conditions['probe']} is right on {one.value:.1%} of {one.n} clean images, within three "
                f"standard errors of the {chance:.1%} that the most common class alone gives; its drops mean nothing."
            )
    return said


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


def rank_correlation(drop: Sequence[float], lost: Sequence[float], conditions: Conditions, of: str) -> list[Estimate]:
    """Return Spearman's correlation of two numbers over corruptions, if there are at least three of these."""
    from scipy.stats import spearmanr

    if len(drop) < 3 or len(set(drop)) == 1 or len(set(lost)) == 1 or any(map(isnan, [*drop, *lost])):
        return []
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
