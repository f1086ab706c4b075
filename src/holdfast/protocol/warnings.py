"""What must be known of the clean population before any measure of it means something: collapse, duplicates, rank."""

from __future__ import annotations

from collections.abc import Sequence
from math import nan

from jaxtyping import Float
from torch import Tensor

from holdfast.core.divergences import Cosine, Divergence
from holdfast.core.intervals import jackknife
from holdfast.core.records import Claim, Estimate
from holdfast.protocol.population import Population

COLLAPSED = 1e-6
"""Spread of the codes, relative to their size, below which they count as one point."""


def effective_rank(codes: Float[Tensor, "n d"]) -> float:
    """Return the participation ratio ``(sum l)^2 / sum l^2`` of the eigenvalues ``l`` of the codes' covariance.

    Between 1 (all variation along one direction) and d (the same along all); 0 for collapsed codes.

    Example:
        >>> import torch
        >>> round(effective_rank(torch.eye(3)), 6)
        2.0
    """
    if collapsed(codes):
        return 0.0
    centred = codes.double() - codes.double().mean(0)
    gram = centred.T @ centred if codes.shape[1] <= len(codes) else centred @ centred.T
    return float(gram.trace() ** 2 / gram.square().sum())


def collapsed(codes: Float[Tensor, "n d"]) -> bool:
    """Return whether all codes are one point up to rounding."""
    return bool((codes - codes.mean(0)).abs().max() <= COLLAPSED * codes.abs().max())


def rank_estimate(population: Population) -> Estimate:
    """Return the effective rank of the clean codes with its interval."""
    codes = population.codes[population.shuffled]  # so that no group depends on the order of the images
    value, low, high = effective_rank(codes), nan, nan
    if len(codes) >= 10:
        low, high = jackknife(lambda rows: effective_rank(codes[rows]), len(codes))
    return Estimate(
        quantity="effective_rank",
        value=value,
        low=min(low, value),  # few samples span too few dimensions: the interval allows for it, the value does not
        high=max(high, value),
        n=len(codes),
        method="delete-a-group jackknife, 10 groups",
        unit="dimensions",
        claim=Claim.ESTIMATE,
        of="effective rank of the clean representation",
        better="neither",
    )


def population_warnings(population: Population, divergences: Sequence[Divergence] = ()) -> tuple[str, ...]:
    """Return the sentences a reader must see beside any number about this population under these divergences."""
    said = []
    digests = population.images.digests
    # Of copies of one image nobody can tell whether the encoder tells images apart.
    if len(set(digests)) > 1 and collapsed(population.codes):
        said.append(
            "COLLAPSED: all images have the same code up to rounding. Nothing can break away from it, so every strict "
            "comparison below reads as perfect robustness; the encoder is useless, not robust."
        )
    twins = len(digests) - len(set(digests))
    if twins:
        said.append(
            f"{twins} of {len(digests)} images are exact copies of others; a pair of copies has no distance to compare "
            "with and is left out where that matters, and breakaway counts each image once. Remove duplicates for clean "
            "numbers."
        )
    if population.codes.shape[1] == 1 and any(isinstance(divergence, Cosine) for divergence in divergences):
        said.append(
            "Codes have one feature, so cosine sees their sign alone: nearly everything reads as robust. Read l2 instead."
        )
    return tuple(said)
