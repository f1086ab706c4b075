"""What must be known of the clean population before any measure of it means something: collapse, duplicates, rank."""

from __future__ import annotations

from collections.abc import Sequence
from math import nan

import numpy as np
from jaxtyping import Float, Int
from torch import Tensor

from holdfast.core.divergences import Cosine, Divergence
from holdfast.core.points.moments import far_out, moments, together
from holdfast.core.records import Claim, Estimate
from holdfast.core.statistics.intervals import jackknife, jackknife_interval
from holdfast.protocol.population import Population

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


def collapsed(codes: Float[Tensor, "n d"]) -> bool:
    """Return whether all codes are one point up to rounding."""
    return moments(codes, scatter=False).collapsed


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


def population_warnings(population: Population, divergences: Sequence[Divergence] = ()) -> tuple[str, ...]:
    """Return the sentences a reader must see beside any number about this population under these divergences."""
    warnings = []
    count = len(population.images)
    twins = count - len(population.originals.unique())
    # Of copies of one image nobody can tell whether the encoder tells images apart.
    if count - twins > 1 and collapsed(population.codes):
        warnings.append(
            "COLLAPSED: all images have the same code up to rounding. Nothing can break away from it, so every strict "
            "comparison below reads as perfect robustness; the encoder is useless, not robust."
        )
    if twins:
        warnings.append(
            f"{twins} of {count} images are exact copies of others; a pair of copies has no distance to compare "
            "with and is left out where that matters, and breakaway counts each image once. Remove duplicates for clean "
            "numbers."
        )
    if population.codes.shape[1] == 1 and any(isinstance(divergence, Cosine) for divergence in divergences):
        warnings.append(
            "Codes have one feature, so cosine sees their sign alone: nearly everything reads as robust. Read l2 instead."
        )
    return tuple(warnings)
