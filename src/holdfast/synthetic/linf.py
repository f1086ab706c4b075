"""The robust Bayes rule of a symmetric Gaussian pair ``N(+-m, Lam)`` under an l_inf budget: a lasso.

    w = argmin 1/2 w' Lam w - m'w + eps ||w||_1,      z = m - Lam w,      ||z||_inf <= eps

is dual to the quadratic program that defines ``z`` (see ``mixture``). Its solutions are piecewise linear in ``eps``, so one
homotopy (Efron et al. 2004, least angle regression, https://doi.org/10.1214/009053604000000067) gives all budgets.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor


def homotopy(
    m: Float[Tensor, "d"], covariance: Float[Tensor, "d d"], budgets: Sequence[float]
) -> tuple[Float[Tensor, "e d"], Float[Tensor, "e d"]]:
    """Return ``z`` and ``w`` for each of the ``e`` budgets, which are absolute: no larger than ``max |m|``.

    Args:
        m: half the difference of the class means.
        covariance: shared by the classes.
        budgets: radii of the perturbation.

    Example:
        >>> z, w = homotopy(torch.tensor([3.0, 1.0]).double(), torch.eye(2).double(), [2.0])
        >>> w.tolist()  # of an isotropic pair it is the mean, drawn towards zero
        [[1.0, 0.0]]
    """
    from sklearn.linear_model import lars_path_gram

    mean, gram = m.double().cpu().numpy(), covariance.double().cpu().numpy()
    radii, _, path = lars_path_gram(Xy=mean, Gram=gram, n_samples=1, method="lasso")
    solved = np.stack([_polished(_between(radii, path, budget), mean, gram, budget) for budget in budgets])
    w = torch.from_numpy(solved).to(m)
    return m - w @ covariance.T, w


def _between(radii: Float[np.ndarray, "k"], path: Float[np.ndarray, "d k"], budget: float) -> Float[np.ndarray, "d"]:
    """Return the point of the piecewise linear ``path`` at ``budget``; its ``radii`` descend."""
    return np.array([np.interp(budget, radii[::-1], row[::-1]) for row in path])


def _polished(
    w: Float[np.ndarray, "d"], m: Float[np.ndarray, "d"], gram: Float[np.ndarray, "d d"], budget: float
) -> Float[np.ndarray, "d"]:
    """Solve for the weights that are not zero once more, from scratch: the path gathers rounding along its way."""
    signs = np.sign(np.where(np.abs(w) > 1e-9 * np.abs(w).max(initial=0), w, 0))
    own = np.flatnonzero(signs)
    exact = np.zeros_like(w)
    try:
        exact[own] = np.linalg.solve(gram[np.ix_(own, own)], m[own] - budget * signs[own])
    except np.linalg.LinAlgError:  # codes that repeat each other; the path has chosen among them
        return w
    return exact if (exact * signs >= 0).all() else w
