"""A test that may be looked at after every sample: a bet against *nothing has changed* that cannot grow if that is true.

Scores of the reference come first, then those that arrive, in the order in which they arrive. The rank of each among all
before it, ``p_t = (#{s_i > s_t} + u_t #{s_i = s_t}) / t``, is uniform and independent of what came earlier as long as all
come from one distribution. The simple jumper bets on ``p`` being small, on its being large, and on nothing, and moves a
hundredth of its capital between the three before every bet (Vovk et al. 2021, https://arxiv.org/abs/2102.10439, section 3).
Its capital is a martingale that starts at 1: the chance that it *ever* reaches ``1 / alpha`` is at most ``alpha`` (Ville).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort

import numpy as np
from jaxtyping import Float

BETS = np.array([-1.0, 0.0, 1.0])
JUMPING = 0.01
"""Share of the capital that is divided anew before every bet."""


def ranks_among_earlier(
    reference: Float[np.ndarray, "m"], arriving: Float[np.ndarray, "n"], uniform: Float[np.ndarray, "n"]
) -> Float[np.ndarray, "n"]:
    """Return for each of ``arriving`` scores the share of larger ones among all earlier, ties broken by ``uniform``.

    Example:
        >>> ranks_among_earlier(np.array([1.0, 2.0, 3.0]), np.array([9.0, 2.5]), np.array([0.5, 0.5]))
        array([0.125, 0.5  ])
    """
    ordered, ranks = sorted(reference.tolist()), []
    for score, draw in zip(arriving.tolist(), uniform.tolist(), strict=True):
        insort(ordered, score)
        equal = bisect_right(ordered, score) - bisect_left(ordered, score)
        ranks.append((len(ordered) - bisect_right(ordered, score) + draw * equal) / len(ordered))
    return np.array(ranks)


def log_capital(ranks: Float[np.ndarray, "n"]) -> Float[np.ndarray, "n"]:
    """Return the logarithm of the capital after each bet.

    Example:
        >>> float(log_capital(np.full(20, 0.01))[-1]) > 3, float(log_capital(np.array([0.5]))[0])
        (True, 0.0)
    """
    shares, logarithm, path = np.full(len(BETS), 1 / len(BETS)), 0.0, []
    for rank in ranks.tolist():
        shares = (1 - JUMPING) * shares + JUMPING / len(BETS)
        shares = shares * (1 + BETS * (rank - 0.5))
        growth = float(shares.sum())
        shares, logarithm = shares / growth, logarithm + float(np.log(growth))
        path.append(logarithm)
    return np.array(path)
