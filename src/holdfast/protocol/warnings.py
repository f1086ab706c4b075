"""What must be known of the clean population before any measure of it means something: collapse, duplicates."""

from __future__ import annotations

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor

from holdfast.core.divergences import Cosine, Divergence
from holdfast.core.points.moments import moments
from holdfast.protocol.population import Population


def collapsed(codes: Float[Tensor, "n d"]) -> bool:
    """Return whether all codes are one point up to rounding."""
    return moments(codes, scatter=False).collapsed


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
