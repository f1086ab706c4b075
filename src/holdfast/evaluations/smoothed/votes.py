"""The mathematics of votes among noisy copies: randomized smoothing (Cohen et al. 2019, https://arxiv.org/abs/1902.02918).

Let ``A`` be any event of a noisy copy's code: *a probe says class c*, *image j is the nearest*, *its own image is nearer
than j*. If ``A`` has a chance of at least ``p > 1/2`` at ``x``, it has more than one half at every ``x'`` that is nearer
than ``sigma Phi^-1(p)`` in l2 (their theorem 1). For an event ``g(f(x + noise)) > 0`` that is what percentile smoothing says
of the median of ``g`` (Chiang et al. 2020, https://arxiv.org/abs/2007.03730): the median at ``x'`` is at least the
``Phi(-eps / sigma)`` quantile at ``x``, which is positive exactly where ``p > Phi(eps / sigma)``.
"""

from __future__ import annotations

from math import ceil, log

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor


def least_share(count: Int[Tensor, "*b"], draws: int | Int[Tensor, "*#b"], alpha: float) -> Float[Tensor, "*b"]:
    """Return the lower end, with confidence ``1 - alpha``, of the chance of what happened in ``count`` of ``draws``.

    Clopper and Pearson 1934, one-sided.

    Example:
        >>> least_share(torch.tensor([0, 90, 100]), 100, 0.001)
        tensor([0.0000, 0.7753, 0.9333], dtype=torch.float64)
    """
    from scipy.special import betaincinv

    counts = count.cpu().numpy().astype(np.float64)
    number = draws.cpu().numpy().astype(np.float64) if isinstance(draws, Tensor) else draws
    low = betaincinv(np.maximum(counts, 1), number - counts + 1, alpha)
    return torch.from_numpy(np.where(counts > 0, low, 0.0)).to(count.device)


def radius(share: Float[Tensor, "*b"], sigma: float) -> Float[Tensor, "*b"]:
    """Return within which l2 radius the event keeps the majority; nan where it may not have it at all.

    Example:
        >>> radius(torch.tensor([0.4, 0.8413]), 0.25)
        tensor([   nan, 0.2500])
    """
    return torch.where(share > 0.5, sigma * torch.special.ndtri(share), torch.nan)


def needed_draws(eps: float, sigma: float, alpha: float) -> int:
    """Return how many draws, all for the event, certify the radius ``eps``: ``alpha^(1/N) > Phi(eps / sigma)``.

    Example:
        >>> needed_draws(0.25, 0.25, 0.001)
        40
    """
    from scipy.special import log_ndtr

    return ceil(log(alpha) / float(log_ndtr(eps / sigma)))


def farthest(draws: int, sigma: float, alpha: float) -> float:
    """Return the radius that so many draws certify at best: when all are for the event.

    Example:
        >>> round(farthest(100_000, 0.25, 0.001), 4)
        0.9529
    """
    from scipy.special import ndtri

    return sigma * float(ndtri(alpha ** (1 / draws)))
