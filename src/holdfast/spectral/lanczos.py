"""Shift-invert Lanczos for ``L_X v = lambda L_Y v``: one factorisation of the grounded L_Y, then ARPACK.

Removing one node per component of G_Y from both matrices changes no eigenvalue on the vectors orthogonal to the
components' constants, and makes L_Y positive definite.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from holdfast.spectral.graph import Sparse
from holdfast.spectral.solve import Columns, Laplacian, grounded


def lanczos(energy: Sparse, bound: Laplacian, r: int, seed: int) -> tuple[Float[np.ndarray, "r"], Columns]:
    """Return the ``r`` largest eigenvalues, descending, and vectors that are zero at the grounded nodes."""
    from scipy.sparse.linalg import LinearOperator, eigsh

    free, m = bound.free, int(bound.free.sum())
    left, right = grounded(energy, free), grounded(bound.matrix, free)
    inverse = LinearOperator((m, m), matvec=bound.factor.solve, dtype=np.float64)
    start = np.random.default_rng(seed).standard_normal(m)
    values, eigenvectors = eigsh(left, r, M=right, Minv=inverse, which="LA", v0=start, tol=1e-10)
    order = np.argsort(values)[::-1]
    vectors = np.zeros((len(free), r))
    vectors[free] = eigenvectors[:, order]
    return values[order], vectors
