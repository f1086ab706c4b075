"""The robust Bayes rules in representation space: fitted on one set of codes, applied to another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from holdfast.synthetic.bayes import secular
from holdfast.synthetic.moments import Pooled


@dataclass(frozen=True)
class Rules:
    """One linear rule per budget. ``weights`` are scaled so that half the gap of the class means has the value 1."""

    middle: Float[Tensor, "d"]
    weights: Float[Tensor, "e d"]
    rank: int
    """How many directions the codes vary in."""

    @classmethod
    def fit(cls, pooled: Pooled, budgets: Sequence[float], precision: torch.dtype) -> Rules:
        """Return the robust Bayes rules of two classes with these moments, for budgets relative to their distance.

        Codes that do not vary, or classes that do not differ, leave nothing to decide by: all weights are zero.
        """
        lam, axes = pooled.modes(precision)
        m = axes.T @ pooled.half_gap
        w = secular(m, lam, budgets)[1] if bool(m.any()) else m.new_zeros(len(budgets), len(m))
        scaled = w / (w @ m).where(w.any(1), 1)[:, None]
        return cls(pooled.middle, scaled @ axes.T, len(lam))

    def __call__(
        self, codes: Float[Tensor, "b d"], labels: Float[Tensor, "b"]
    ) -> tuple[Bool[Tensor, "b e"], Float[Tensor, "b e"]]:
        """Return which codes are classified rightly and their scaled bounds ``|xbar'w| / |m'w|`` (0 where wrongly)."""
        values = (codes.double() - self.middle) @ self.weights.T * labels.double()[:, None]
        return values > 0, values.clamp_min(0)
