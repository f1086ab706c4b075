"""Confidence sequences: bounds of a mean that hold at every number of draws at once, so that one may stop when one likes.

For draws in [0, 1] of mean ``m`` and bets ``l_t`` that depend on earlier draws alone, the capital
``K_t = prod_i (1 + l_i (h_i - m))`` is a martingale, and by Ville's inequality exceeds ``1 / alpha`` ever with chance
``alpha`` at most. So every ``m`` at which it ever did is ruled out. Waudby-Smith and Ramdas 2023,
https://arxiv.org/abs/2010.09686, theorem 3; bets after their equation 26, for the lower bound alone. Capital falls as ``m``
grows, since bets here do not depend on ``m``, so what is ruled out is all below one number.
"""

from __future__ import annotations

from math import log

import torch
from jaxtyping import Float
from torch import Tensor

BOLDEST = 0.99
"""The largest bet: below 1, so that no draw costs all of the capital."""
HALVINGS = 50


def least_mean(draws: Float[Tensor, "n"], alpha: float) -> float:
    """Return the lower end, with confidence ``1 - alpha`` at any stopping time, of the mean of what ``draws`` come from.

    Args:
        draws: in [0, 1], in the order in which they were drawn; independent, of one mean.
        alpha: the chance that the mean ever lies below the result, however long one goes on.

    Example:
        >>> least_mean(torch.ones(100), 0.001) > 0.92, least_mean(torch.zeros(100), 0.001)
        (True, 0.0)
    """
    draws = draws.double()
    bets = predicted_bets(draws, alpha)
    threshold, low, high = -log(alpha), 0.0, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if bool((torch.log1p(bets * (draws - middle)).cumsum(0) >= threshold).any()):
            low = middle
        else:
            high = middle
    return low


def predicted_bets(draws: Float[Tensor, "n"], alpha: float) -> Float[Tensor, "n"]:
    """Return what is bet on each draw, from those before it: more the less they vary."""
    count = torch.arange(1, len(draws) + 1, dtype=torch.float64, device=draws.device)
    means = (0.5 + draws.cumsum(0)) / (count + 1)
    variances = (0.25 + (draws - means).square().cumsum(0)) / (count + 1)
    before = torch.cat([variances.new_tensor([0.25]), variances[:-1]])
    bets = (2 * log(1 / alpha) / (before * count * (count + 1).log())).sqrt()
    return bets.clamp_max(BOLDEST)
