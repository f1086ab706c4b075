"""The SynBench score: the area under an encoder's accuracy and bound, over that of the mixture itself.

With ``a_i`` the accuracy and ``b_i`` the expected bound at scale ``i`` of ``n``, accuracy above ``a_t`` comes with the bound
``E(a_t) = (1/n) sum b_i 1[a_i > a_t]``. Its area from ``a_t`` to 1 is a sum, and the score a ratio of two of them:

    score(a_t) = sum b_i (a_i - a_t)_+  /  sum h(Phi(s_i)) (Phi(s_i) - a_t)_+

Ko et al. 2022, https://arxiv.org/abs/2210.02989, section 3.3. Departure: the area is exact; ``published`` adds up ``E`` on
100 points from 0.6 to 1, as the authors' program does, which differs by less than 0.01 up to ``a_t = 0.9``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.core.errors import HoldfastError, did_you_mean
from holdfast.synthetic.reference import reference

MODES = ("exact", "published")
GRID = (0.6, 1.0, 100)
"""Where the authors' program adds up: from, to, how many points."""
Curves = Float[Tensor, "n *e"]


def expected_above(accuracy: Curves, bound: Curves, thresholds: Float[Tensor, "t"]) -> Float[Tensor, "t *e"]:
    """Return ``E(a_t)``: the expected bound, averaged over scales, counting those of accuracy above each threshold."""
    above = accuracy > thresholds.reshape(-1, *[1] * accuracy.ndim)
    return (above * bound).mean(1)


def area(accuracy: Curves, bound: Curves, thresholds: Sequence[float], mode: str = "exact") -> Float[Tensor, "t *e"]:
    """Return the area under ``E`` from each threshold to 1 (in ``published`` mode, its sum over the grid points there)."""
    if mode not in MODES:
        raise HoldfastError(f"unknown mode {mode!r}; {did_you_mean(mode, list(MODES))}")
    from_ = torch.tensor(thresholds, dtype=accuracy.dtype, device=accuracy.device)
    if mode == "exact":
        return (bound * (accuracy - from_.reshape(-1, *[1] * accuracy.ndim)).clamp_min(0)).mean(1)
    grid = torch.linspace(*GRID, dtype=accuracy.dtype, device=accuracy.device)
    heights = expected_above(accuracy, bound, grid)
    counted = (grid >= from_[:, None]).to(accuracy)
    return torch.tensordot(counted, heights, 1)


def score(
    accuracy: Curves, bound: Curves, scales: Sequence[float], thresholds: Sequence[float], mode: str = "exact"
) -> Float[Tensor, "t *e"]:
    """Return the score at each threshold from the ``accuracy`` and ``bound`` at each of the ``n`` scales (per budget).

    Example:
        >>> scales = [0.5, 1.0, 2.0]
        >>> score(*reference(scales), scales, [0.7])  # the mixture itself keeps everything
        tensor([1.], dtype=torch.float64)
    """
    best = area(*reference(scales), thresholds, mode).to(accuracy)
    if not bool((best > 0).all()):
        top = float(reference(scales)[0].max())
        raise HoldfastError(
            f"no scale reaches the threshold {max(thresholds):g}: the largest, {max(scales):g}, allows an accuracy of "
            f"{top:.3g}; add larger scales or lower the threshold"
        )
    return area(accuracy, bound, thresholds, mode) / best.reshape(-1, *[1] * (accuracy.ndim - 1))
