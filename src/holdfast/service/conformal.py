"""Conformal p-values of new embeddings, and a betting test that may be read after every sample."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from math import hypot

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from holdfast.core.statistics.intervals import quantile_interval, share_interval
from holdfast.service.energy import BLOCK, distances

# Which codes lie outside what another set covers: conformal p-values of nearest-neighbour distances.
#
# The reference set is split at random. A sample's score is its distance to the nearest code of one half; the other
# half says how large such distances are: ``p = (1 + #{reference scores >= score}) / (1 + n)``. A sample of the same
# distribution has ``p <= t`` with chance ``t`` at most, exactly, since its score and theirs are exchangeable.
# Declaring new what Benjamini and Hochberg's procedure picks keeps the expected share of false ones among these at
# the stated rate, although all p-values share one reference (Bates et al. 2023, https://arxiv.org/abs/2104.08279,
# theorem 2).

Scores = Float[np.ndarray, "n"]


def support_distances(points: Float[Tensor, "n d"], support: Float[Tensor, "m d"]) -> Float[Tensor, "n"]:
    """Distance of each point to the nearest point of a reference.

    Args:
        points: Points, shape (n, d).
        support: Points of the reference, shape (m, d).

    Example:
        >>> support_distances(torch.tensor([[0.0], [5.0]]), torch.tensor([[1.0], [3.0]]))
        tensor([1., 2.])
    """
    centre = support.double().mean(0)
    points, support = (points - centre).float(), (support - centre).float()
    nearest = torch.full((len(points),), torch.inf)
    for top in range(0, len(points), BLOCK):
        for left in range(0, len(support), BLOCK):
            block = distances(points[top : top + BLOCK], support[left : left + BLOCK]).amin(1)
            nearest[top : top + BLOCK] = nearest[top : top + BLOCK].minimum(block)
    return nearest


def conformal_p_values(scores: Scores, reference: Float[np.ndarray, "m"]) -> Scores:
    """Conformal p-value of each score: small if it is larger than nearly all references.

    Args:
        scores: Scores of new images, shape (n,).
        reference: Scores of the reference, shape (m,).

    Example:
        >>> conformal_p_values(np.array([0.5, 9.0]), np.array([1.0, 2.0, 3.0]))
        array([1.  , 0.25])
    """
    ordered = np.sort(reference)
    return (1 + len(ordered) - np.searchsorted(ordered, scores, side="left")) / (1 + len(ordered))


def discovered(p_values: Scores, rate: float) -> Bool[np.ndarray, "n"]:
    """Mask of images to declare new at a false discovery rate (Benjamini and Hochberg 1995).

    Args:
        p_values: p-value of each image, shape (n,).
        rate: Expected fraction of false discoveries, 0 to 1.

    Example:
        >>> discovered(np.array([0.01, 0.02, 0.9]), 0.1)
        array([ True,  True, False])
    """
    from scipy.stats import false_discovery_control

    return np.asarray(false_discovery_control(p_values) <= rate)


def share_beyond(scores: Scores, reference: Float[np.ndarray, "m"], alpha: float) -> tuple[float, float, float]:
    """Fraction of scores in the upper tail of the reference, with its interval.

    Variation in both sets adds up in squares (Zou and Donner 2008).

    Args:
        scores: Scores of new images, shape (n,).
        reference: Scores of the reference, shape (m,).
        alpha: Probability of the tail, 0 to 1.
    """
    p_values = conformal_p_values(scores, reference)
    beyond = int((p_values <= alpha).sum())
    value = beyond / len(scores)
    ends = share_interval(beyond, len(scores))
    cuts = quantile_interval(reference, 1 - alpha)
    least, most = (float((scores > cut).mean()) for cut in (cuts[1], cuts[0]))
    low = value - hypot(value - ends[0], value - min(value, least))
    high = value + hypot(ends[1] - value, max(value, most) - value)
    return value, max(0.0, low), min(1.0, high)


# A test that may be looked at after every sample: a bet against *nothing has changed* that cannot grow if that is
# true.
#
# Scores of the reference come first, then those that arrive, in the order in which they arrive. The rank of each
# among all before it, ``p_t = (#{s_i > s_t} + u_t #{s_i = s_t}) / t``, is uniform and independent of what came
# earlier as long as all come from one distribution. The simple jumper bets on ``p`` being small, on its being large,
# and on nothing, and moves a hundredth of its capital between the three before every bet (Vovk et al. 2021,
# https://arxiv.org/abs/2102.10439, section 3). Its capital is a martingale that starts at 1: the chance that it
# *ever* reaches ``1 / alpha`` is at most ``alpha`` (Ville).

BETS = np.array([-1.0, 0.0, 1.0])
JUMPING = 0.01
"""Fraction of the capital that is divided again before every bet."""


def ranks_among_earlier(
    reference: Float[np.ndarray, "m"], arriving: Float[np.ndarray, "n"], uniform: Float[np.ndarray, "n"]
) -> Float[np.ndarray, "n"]:
    """Fraction of larger scores among all earlier ones, for each arriving score.

    Args:
        reference: Scores of the reference, shape (m,).
        arriving: New scores in order, shape (n,).
        uniform: Uniform draws that break ties, shape (n,).

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
