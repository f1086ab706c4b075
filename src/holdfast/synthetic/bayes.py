"""The robust Bayes rule of a symmetric Gaussian pair ``N(+-m, Lam)`` under an l2 budget, exactly.

    z = argmin over ||z||_2 <= eps ||m||_2 of (m - z)' Lam^-1 (m - z),      w = Lam^-1 (m - z)

(Bhagoji et al. 2019, https://arxiv.org/abs/1909.12272; Dan et al. 2020, https://arxiv.org/abs/2006.16384.) In the
eigenbasis of ``Lam`` the solution is ``z_i = m_i / (1 + t lam_i)``, where ``t > 0`` solves the secular equation
``||z|| = eps ||m||``. So one eigendecomposition serves every budget, and each costs a few steps of Newton's method over d
numbers (More and Sorensen 1983, https://doi.org/10.1137/0904038). As ``w_i = m_i / (lam_i + 1/t)``, the robust rule is
ridge discriminant analysis: budget 0 is the plain Bayes rule, budget 1 the direction of ``m``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.core.errors import HoldfastError

STEPS = 100
"""More steps of Newton's method than any spectrum needs: 5 to 7 are usual."""


def check_budgets(budgets: Sequence[float]) -> None:
    """Raise unless every budget is a share of the distance to the mean that leaves something of it."""
    for budget in budgets:
        if not 0 <= budget < 1:
            raise HoldfastError(
                f"budgets are shares of the distance from the mean to the boundary, 0 <= budget < 1, got {budget:g}"
            )


def secular(
    m: Float[Tensor, "r"], lam: Float[Tensor, "r"], budgets: Sequence[float]
) -> tuple[Float[Tensor, "e r"], Float[Tensor, "e r"]]:
    """Return ``z`` and ``w`` for each of the ``e`` budgets (shares of ``||m||``), in the eigenbasis of ``Lam``.

    Args:
        m: half the difference of the class means, not zero.
        lam: the eigenvalues of the covariance, all positive.
        budgets: the radii of the perturbation as shares of ``||m||``, in [0, 1).

    Example:
        >>> z, w = secular(torch.tensor([3.0, 4.0]).double(), torch.ones(2).double(), [0.0, 0.5])
        >>> z  # of an isotropic pair every rule has the direction of the mean
        tensor([[0.0000, 0.0000],
                [1.5000, 2.0000]], dtype=torch.float64)
    """
    check_budgets(budgets)
    assert bool((lam > 0).all()), "the secular equation needs positive eigenvalues"
    assert bool(m.any()), "the secular equation needs a mean"
    wanted = m.new_tensor([budget for budget in budgets if budget > 0])[:, None]
    top = lam.max()
    share, ratio = m / m.abs().max(), lam / top  # of order 1, so that no square leaves the range of the numbers
    share = share / share.norm()
    t = 1 / wanted - 1  # the lower end of the bracket: from there Newton's method on 1/||z|| climbs without overshoot
    for _ in range(STEPS):
        shrunk = 1 + t * ratio
        square = (share / shrunk).square()
        length = square.sum(1, keepdim=True).sqrt()
        step = length.square() / (square * ratio / shrunk).sum(1, keepdim=True) * (length - wanted) / wanted
        t = t + step
        if not bool((step > 4 * torch.finfo(t.dtype).eps * t).any()):
            break
    t = t / top
    robust = iter(zip(m / (1 + t * lam), m / (lam + 1 / t), strict=True))
    pairs = [next(robust) if budget > 0 else (torch.zeros_like(m), m / lam) for budget in budgets]
    return torch.stack([z for z, _ in pairs]), torch.stack([w for _, w in pairs])


def accuracy(w: Float[Tensor, "e r"], m: Float[Tensor, "r"], lam: Float[Tensor, "r"]) -> Float[Tensor, "e"]:
    """Return how often the rules ``sign(w'x)`` are right: ``Phi(m'w / sqrt(w' Lam w))``."""
    return torch.special.ndtr(w @ m / (w.square() @ lam).sqrt())
