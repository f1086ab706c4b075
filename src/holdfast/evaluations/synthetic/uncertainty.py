"""How far SynBench scores would move if all samples were drawn again, and whether one budget's score is really the best.

A score is a sum over scales of ``f = u (a - a_t)_+ / a`` with ``a`` the mean of ``c`` (1 where a test sample is classified
rightly) and ``u`` the mean of ``B c``. So one test sample moves it, where ``a > a_t``, in proportion to

    (a - a_t) (B c - b c) / a + b (c - a),      b = u / a

The train set moves the rules. How far shows in the rules of its two halves: half the difference of their ``f`` has, to first
order, the variance of the ``f`` of the whole. All scales are independent, so their variances add up.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.core.run_settings import Observed
from holdfast.synthetic.reference import reference
from holdfast.synthetic.score import area

WHOLE = (0.0, 0.0, 1.0)
"""The score as a combination of those of (first half, second half, whole train set)."""
EXTRAPOLATED = (-0.5, -0.5, 2.0)
"""The score extrapolated to unlimited train samples, as its bias is about proportional to their inverse number."""


def score_covariance(
    observed: Observed, scales: Sequence[float], thresholds: Sequence[float], n: int, parts: tuple[float, ...]
) -> Float[Tensor, "t e e"]:
    """Return the covariance over budgets of a combination of scores at each threshold.

    Args:
        observed: what ``RuleAccuracies`` observed of ``n`` test samples per scale.
        scales: of the mixture.
        thresholds: of the scores.
        n: test samples per scale.
        parts: the weights of the scores under the rules of the first half, the second half and the whole train set.
    """
    a, u = observed["right"], observed["bound"]
    means = torch.cat([a, u], 2).flatten(1)
    spread = observed["products"] - means[:, :, None] * means[:, None, :]
    weights = a.new_tensor(parts)[:, None]
    covariances = []
    for threshold, best in zip(thresholds, area(*reference(scales), thresholds).tolist(), strict=True):
        above, safe = (a > threshold).to(a), a.clamp_min(threshold)
        slope = weights * torch.cat([above * threshold * u / safe.square(), above * (1 - threshold / safe)], 2)
        tested = slope.flatten(1)[:, :, None] * spread * slope.flatten(1)[:, None, :]
        e = a.shape[2]
        tested = tested.unflatten(2, (-1, e)).sum(2).unflatten(1, (-1, e)).sum(1)
        f = above * u * (1 - threshold / safe)
        gap = (f[:, 0] - f[:, 1]) / 2
        trained = gap[:, :, None] * gap[:, None, :]
        covariances.append((tested / n + trained).sum(0) / (len(scales) * best) ** 2)
    return torch.stack(covariances)


def tied(scores: Float[Tensor, "e"], covariance: Float[Tensor, "e e"], z: float) -> list[int]:
    """Return the place of the highest score, then those of scores less than ``z`` standard errors of the difference below.

    Example:
        >>> tied(torch.tensor([0.50, 0.52, 0.40]), torch.eye(3) * 1e-4, z=1.96)
        [1, 0]
    """
    values = [round(value, 9) for value in scores.tolist()]  # rounding errors are no difference
    best = values.index(max(values))
    spread = covariance.diag() + covariance[best, best] - 2 * covariance[best]
    reach = [z * sqrt(max(variance, 0.0)) for variance in spread.tolist()]
    return [best, *(k for k, value in enumerate(values) if k != best and values[best] - value <= reach[k])]
