"""What the mixture itself allows: the accuracy of its best classifier and how far, on average, inputs lie from its boundary.

At scale ``s`` the best accuracy is ``a = Phi(s)``, whatever the budget. The distance of an input to the boundary, in units
of the mean's own and averaged over the inputs that are classified rightly, depends on that accuracy alone:

    h(a) = 1 + exp(-q^2 / 2) / (sqrt(2 pi) a q),      q = Phi^-1(a),      1/2 < a < 1

SynBench (Ko et al. 2022, https://arxiv.org/abs/2210.02989), result 3.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import pi, sqrt

import torch
from jaxtyping import Float
from torch import Tensor

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


def reference(scales: Sequence[float]) -> tuple[Float[Tensor, "n"], Float[Tensor, "n"]]:
    """Return the mixture's accuracy and expected bound at each scale."""
    accuracy = torch.special.ndtr(torch.tensor(scales, dtype=torch.float64))
    return accuracy, expected_bound(accuracy)
