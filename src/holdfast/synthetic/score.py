"""The SynBench score, what the mixture itself allows, and the budget that the score suggests."""

from __future__ import annotations

from collections.abc import Sequence
from math import log, pi, sqrt

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.core.errors import HoldfastError, UnknownName
from holdfast.core.run_settings import Observed
from holdfast.measure.population import Population
from holdfast.synthetic.accuracies import RuleAccuracies
from holdfast.synthetic.mixture import Mixture

# What the mixture itself allows: the accuracy of its robust Bayes rules and how far, on average, inputs lie from their
# boundary.
#
# At scale ``s`` the best accuracy is ``a = Phi(s)``, whatever the budget. The distance of an input to the boundary,
# in units of the mean's own and averaged over the inputs that are classified rightly, depends on that accuracy alone:
#
#     h(a) = 1 + exp(-q^2 / 2) / (sqrt(2 pi) a q),      q = Phi^-1(a),      1/2 < a < 1
#
# SynBench (Ko et al. 2022, https://arxiv.org/abs/2210.02989), result 3.3. Of any other noise the same holds with
# ``Phi(g s)``, where ``g`` is ``mu'w / sqrt(w' Sigma w)`` of the budget's rule for a mean of length 1. With a prior ``p``
# the boundary lies ``c = log((1 - p) / p) / 2`` from the middle (theorem 4.1 of Dobriban et al. 2020,
# https://arxiv.org/abs/2006.05161), and both numbers are means over the two classes.

SCALES = tuple(k / 10 for k in range(1, 50))
"""The published grid: accuracies from 0.54 to 1. The score depends on where it ends."""


def expected_bound(accuracy: Float[Tensor, "n *e"]) -> Float[Tensor, "n *e"]:
    """Return ``h(a)``; its limit 1 at ``a = 1``, and nan where ``a`` is no better than a coin.

    Example:
        >>> expected_bound(torch.tensor([0.6, 0.7, 0.9]).double())
        tensor([3.5416, 1.9472, 1.1522], dtype=torch.float64)
    """
    inside = torch.where((accuracy > 0.5) & (accuracy <= 1), accuracy, torch.nan)
    q = torch.special.ndtri(inside)
    return 1 + (-q.square() / 2).exp() / (sqrt(2 * pi) * inside * q)


Curves = Float[Tensor, "n *e"]
Allowed = tuple[Float[Tensor, "n *k"], Float[Tensor, "n *k"]]
"""The accuracy and the expected bound that the mixture itself allows at each scale (and budget)."""


def reference(scales: Sequence[float]) -> Allowed:
    """Return the accuracy and expected bound of the published mixture at each scale: the same for all budgets."""
    accuracy = torch.special.ndtr(torch.tensor(scales, dtype=torch.float64))
    return accuracy, expected_bound(accuracy)


def allowed(scales: Sequence[float], mixture: Mixture, budgets: Sequence[float], norm: str) -> Allowed:
    """Return the accuracy and expected bound of a ``mixture`` of mean length 1 at each scale and budget, shape (n, e).

    Example:
        >>> from holdfast.synthetic.mixture import direction
        >>> allowed([1.0], Mixture(direction("ones", (4, 4))), [0.0], "l2")[0]
        tensor([[0.8413]], dtype=torch.float64)
    """
    gain, spread = mixture.rules(budgets, norm)
    s = gain.new_tensor(scales)[:, None]
    if mixture.prior == 0.5:
        accuracy = torch.special.ndtr(gain * s)
        return accuracy, expected_bound(accuracy)
    middle = log((1 - mixture.prior) / mixture.prior) / 2
    accuracy, bound = torch.zeros_like(gain * s), torch.zeros_like(gain * s)
    for share, sign in ((mixture.prior, 1), (1 - mixture.prior, -1)):
        # How far the class mean is from the boundary, and the standard deviation, in units of mean to middle.
        mean, deviation = 1 - sign * middle / (s.square() * gain * spread), 1 / (s * gain)
        ratio = mean / deviation
        right = torch.special.ndtr(ratio)
        accuracy += share * right
        bound += share * (mean * right + deviation * (-ratio.square() / 2).exp() / sqrt(2 * pi))
    return accuracy, bound / accuracy


# The SynBench score: the area under an encoder's accuracy and bound, over that of the mixture itself.
#
# With ``a_i`` the accuracy and ``b_i`` the expected bound at scale ``i`` of ``n``, accuracy above ``a_t`` comes with
# the bound ``E(a_t) = (1/n) sum b_i 1[a_i > a_t]``. Its area from ``a_t`` to 1 is a sum, and the score a ratio of two
# of them:
#
#     score(a_t) = sum b_i (a_i - a_t)_+  /  sum h(Phi(s_i)) (Phi(s_i) - a_t)_+
#
# Ko et al. 2022, https://arxiv.org/abs/2210.02989, section 3.3. Departure: the area is exact; ``published`` adds up
# ``E`` on
# 100 points from 0.6 to 1, as the authors' program does, which differs by less than 0.01 up to ``a_t = 0.9``.

MODES = ("exact", "published")
GRID = (0.6, 1.0, 100)
"""Grid of the sum in the authors' program: from, to, number of points."""


def expected_above(accuracy: Curves, bound: Curves, thresholds: Float[Tensor, "t"]) -> Float[Tensor, "t *e"]:
    """Return ``E(a_t)``: the expected bound, averaged over scales, counting those of accuracy above each threshold."""
    above = accuracy > thresholds.reshape(-1, *[1] * accuracy.ndim)
    return (above * bound).mean(1)


def area(accuracy: Curves, bound: Curves, thresholds: Sequence[float], mode: str = "exact") -> Float[Tensor, "t *e"]:
    """Return the area under ``E`` from each threshold to 1 (in ``published`` mode, its sum over the grid points there)."""
    if mode not in MODES:
        raise UnknownName("mode", mode, MODES)
    from_ = torch.tensor(thresholds, dtype=accuracy.dtype, device=accuracy.device)
    if mode == "exact":
        return (bound * (accuracy - from_.reshape(-1, *[1] * accuracy.ndim)).clamp_min(0)).mean(1)
    grid = torch.linspace(*GRID, dtype=accuracy.dtype, device=accuracy.device)
    heights = expected_above(accuracy, bound, grid)
    counted = (grid >= from_[:, None]).to(accuracy)
    return torch.tensordot(counted, heights, 1)


def score(
    accuracy: Curves, bound: Curves, best: Allowed, thresholds: Sequence[float], mode: str = "exact"
) -> Float[Tensor, "t *e"]:
    """Return the score at each threshold from the ``accuracy`` and ``bound`` at each of the ``n`` scales (per budget).

    Args:
        best: what the mixture allows: one number per scale, or one per scale and budget, the last axis of ``accuracy``.
        thresholds: accuracies above which area counts.

    Example:
        >>> best = reference([0.5, 1.0, 2.0])
        >>> score(*best, best, [0.7])  # the mixture itself keeps everything
        tensor([1.], dtype=torch.float64)
    """
    areas = area(*best, thresholds, mode).to(accuracy)
    if not bool((areas > 0).all()):
        raise HoldfastError(
            f"no scale reaches the threshold {max(thresholds):g}: the largest allows an accuracy of "
            f"{float(best[0][-1].min()):.3g}; add larger scales or lower the threshold"
        )
    return area(accuracy, bound, thresholds, mode) / areas.reshape(
        len(thresholds), *[1] * (accuracy.ndim - best[0].ndim), *areas.shape[1:]
    )


# The budget for robust linear probing that SynBench suggests: the one at which the encoder scores best.
#
#     eps* = argmax over eps of  score(eps, a_t),  averaged over the thresholds a_t
#
# Ko et al. 2022, https://arxiv.org/abs/2210.02989, section 4.

THRESHOLDS = (0.7, 0.75, 0.8, 0.85, 0.9)
BUDGETS = (0.0, 0.2, 0.4, 0.6, 0.8)
SAMPLES = 2048
ENCODINGS = 2_000_000
"""The most that are encoded for all scales together."""


def expected_bounds(observed: Observed) -> Float[Tensor, "n p e"]:
    """Return the expected bounds; 0 where nothing was classified rightly, which is above no threshold anyway."""
    return observed["bound"] / observed["right"].clamp_min(1e-9)


def suggested_budget(population: Population, samples: int = SAMPLES) -> float:
    """Return the budget with the highest mean score; 0 also where every score is 0, which suggests none.

    The mixture lies along the published direction, all input values alike.
    """
    accuracies = RuleAccuracies(SCALES, BUDGETS, samples, ENCODINGS, "ones")
    observed = {
        name: values.double().cpu() for name, values in accuracies.observe(population, range(len(SCALES))).items()
    }
    right, bound = (values[:, -1] for values in (observed["right"], expected_bounds(observed)))  # the whole train set's
    return BUDGETS[int(score(right, bound, reference(SCALES), THRESHOLDS).mean(0).argmax())]
