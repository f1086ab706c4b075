"""Floating-point formats, and how far sums in them can be from the sums of real numbers.

With unit roundoff ``u``, the result of one operation is that of real numbers times ``1 + d``, ``|d| <= u``, or differs from
it by less than the smallest normal number where it is smaller still. A sum of ``n`` terms, in any order and with or without
fused multiply-add, is off by at most ``gamma_n = n u / (1 - n u)`` times the sum of the terms' sizes (Higham 2002,
*Accuracy and Stability of Numerical Algorithms*, sections 2.2 and 3.1, https://doi.org/10.1137/1.9780898718027).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import torch
from torch import Tensor

NAMES = {torch.float16: "float16", torch.bfloat16: "bfloat16", torch.float32: "float32", torch.float64: "float64"}


@dataclass(frozen=True)
class Format:
    """The numbers of a torch type, rounded to nearest; results below the smallest normal number may be taken for zero."""

    dtype: torch.dtype

    @property
    def name(self) -> str:
        return NAMES[self.dtype]

    @property
    def unit(self) -> float:
        """The unit roundoff ``u``: half the distance from 1 to the next number."""
        return torch.finfo(self.dtype).eps / 2

    @property
    def tiny(self) -> float:
        """The smallest normal number."""
        return torch.finfo(self.dtype).smallest_normal

    @property
    def largest(self) -> float:
        """The largest finite number."""
        return torch.finfo(self.dtype).max

    def gamma(self, n: int) -> float:
        """Return ``n u / (1 - n u)``, infinite where so many roundings may lose all digits.

        Example:
            >>> Format(torch.bfloat16).gamma(128)
            inf
            >>> Format(torch.float32).gamma(2) / 2**-23
            1.0000001192092896
        """
        share = n * self.unit
        return share / (1 - share) if share < 0.5 else inf

    def holds(self, values: Tensor) -> Tensor:
        """Return which values are numbers of this format."""
        return values.to(self.dtype).to(values.dtype) == values

    def nearest(self, values: Tensor) -> Tensor:
        """Return the nearest numbers of this format, in the precision of ``values``."""
        return values.to(self.dtype).to(values.dtype)
