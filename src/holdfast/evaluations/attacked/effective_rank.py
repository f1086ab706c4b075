"""The effective rank of clean codes, in how many dimensions displacement can take place: a participation ratio."""

from __future__ import annotations

from math import nan

import numpy as np
from jaxtyping import Float, Int
from torch import Tensor

from holdfast.core.points.moments import far_out, moments, together
from holdfast.core.records import Claim, Estimate
from holdfast.core.statistics.intervals import jackknife, jackknife_interval
from holdfast.protocol.population import Population
from holdfast.protocol.warnings import collapsed

GROUPS = 10
"""Of the jackknife of the rank."""


def effective_rank(codes: Float[Tensor, "n d"]) -> float:
    """Return the participation ratio ``(sum l)^2 / sum l^2`` of the eigenvalues ``l`` of the codes' covariance.

    Between 1 (all variation along one direction) and d (the same along all); 0 for collapsed codes.

    Example:
        >>> import torch
        >>> round(effective_rank(torch.eye(3)), 6)
        2.0
    """
    if codes.shape[1] > len(codes):  # the Gram matrix of samples is the smaller one
        return _rank_of_few(codes)
    return moments(codes).rank


def _rank_of_few(codes: Float[Tensor, "n d"]) -> float:
    if collapsed(codes):
        return 0.0
    centred = codes.double() - codes.double().mean(0)
    gram = centred @ centred.T
    return float(gram.trace() ** 2 / gram.square().sum())


def _rank_interval(codes: Float[Tensor, "n d"], order: Int[Tensor, "n"]) -> tuple[float, float, float]:
    """Return the effective rank and the interval of the jackknife whose groups are taken in turn from ``order``."""
    if len(codes) < GROUPS or codes.shape[1] > len(codes):
        shuffled = codes[order]
        value, ends = effective_rank(shuffled), (nan, nan)
        if len(codes) >= GROUPS:
            ends = jackknife(lambda rows: effective_rank(shuffled[rows]), len(codes), GROUPS)
        return value, *ends
    groups = [moments(codes, order[k::GROUPS]) for k in range(GROUPS)]
    value = together(groups).rank
    left_out = [together(groups[:k] + groups[k + 1 :]).rank for k in range(GROUPS)]
    return value, *jackknife_interval(value, np.array(left_out))


def rank_estimate(population: Population) -> Estimate:
    """Return the effective rank of the clean codes with its interval."""
    codes = population.codes
    # Shuffled, so that no group depends on the order of the images.
    value, low, high = _rank_interval(codes, population.shuffled.to(codes.device))
    return Estimate(
        quantity="effective_rank",
        value=value,
        low=min(low, value),  # few samples span too few dimensions: the interval allows for it, the value does not
        high=max(high, value),
        n=len(codes),
        method=f"delete-a-group jackknife, 10 groups{far_out(codes, centred=True)}",
        unit="dimensions",
        claim=Claim.ESTIMATE,
        of="effective rank of the clean representation",
        better="neither",
    )
