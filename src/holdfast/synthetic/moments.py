"""What a linear rule needs to know of two classes, gathered batch by batch in memory that does not grow with the samples."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

ROUNDING = 10.0
"""Rounding errors of an encoder's codes, in units of its precision relative to their size."""


@dataclass(frozen=True)
class Pooled:
    """Counts and means of the classes +1 and -1, and the scatter of the codes around their own class mean.

    Merging is exact and stable (Chan, Golub and LeVeque 1983, https://doi.org/10.1080/00031305.1983.10483115).
    """

    count: Float[Tensor, "2"]
    mean: Float[Tensor, "2 d"]
    scatter: Float[Tensor, "d d"]

    @classmethod
    def of(cls, codes: Float[Tensor, "b d"], labels: Float[Tensor, "b"]) -> Pooled:
        """Return the moments of one batch, in double precision; ``labels`` are +1 and -1."""
        codes = codes.double()
        members = torch.stack([labels > 0, labels < 0], 1).to(codes)
        count = members.sum(0)
        mean = members.T @ codes / count.clamp_min(1)[:, None]
        centred = codes - members @ mean
        return cls(count, mean, centred.T @ centred)

    def __add__(self, other: Pooled) -> Pooled:
        """Return the moments of both."""
        count = self.count + other.count
        share = (other.count / count.clamp_min(1))[:, None]
        gap = other.mean - self.mean
        between = (gap * (self.count[:, None] * share)).T @ gap
        return Pooled(count, self.mean + gap * share, self.scatter + other.scatter + between)

    @property
    def middle(self) -> Float[Tensor, "d"]:
        """The point half way between the class means."""
        return self.mean.mean(0)

    @property
    def half_gap(self) -> Float[Tensor, "d"]:
        """Half the difference of the class means."""
        return (self.mean[0] - self.mean[1]) / 2

    @property
    def covariance(self) -> Float[Tensor, "d d"]:
        """The covariance within the classes, without bias."""
        return self.scatter / (self.count.sum() - 2).clamp_min(1)

    def modes(self, precision: torch.dtype) -> tuple[Float[Tensor, "r"], Float[Tensor, "d r"]]:
        """Return the eigenvalues of the covariance that are more than rounding, and their eigenvectors.

        Codes of this ``precision`` carry rounding errors in proportion to their size, so that the cutoff is relative: an
        encoder in other units keeps the same directions.
        """
        covariance = self.covariance
        values, vectors = torch.linalg.eigh(covariance)
        size = self.mean.square().sum(1).mean() + covariance.trace()
        coded = (ROUNDING * torch.finfo(precision).eps) ** 2 * size
        computed = len(values) * torch.finfo(values.dtype).eps * values.max()
        kept = values > torch.maximum(coded, computed)
        return values[kept], vectors[:, kept]
