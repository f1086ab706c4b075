"""LOBPCG for the largest eigenvalues of ``L_X v = lambda L_Y v`` (Knyazev 2001, https://doi.org/10.1137/S1064827500366124).

Each step maximises the Rayleigh quotient over the span of the vectors X, the search directions W and the last change P.
W is a few steps of conjugate gradients on L_Y applied to the residual: a cheap stand-in for L_Y^+, without which the
iteration stalls. Departures from the textbook, each for a failure seen: [X, W, P] is scaled column by column and
directions whose Gram eigenvalue is below 1e-12 are dropped (they are rounding); products are recomputed every 20
steps (updated ones drift); the constants of G_Y's components are projected out of W rather than imposed as constraints.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from holdfast.spectral.graph import Sparse
from holdfast.spectral.solve import Columns, Laplacian

STEPS = 500
REFRESH = 20
DROPPED = 1e-12
GUARDS = 2
"""Vectors carried along beyond those asked for, so that the last of these does not crawl."""


def lobpcg(
    energy: Sparse, bound: Laplacian, r: int, tolerance: float, seed: int
) -> tuple[Float[np.ndarray, "r"], Columns]:
    """Return the ``r`` largest eigenvalues, descending, and their vectors.

    It stops when every relative residual is at most ``tolerance``, or after ``STEPS`` steps: look at the residuals.
    """
    # More inner steps cost nothing for one vector, and a fifth where the graphs are barely connected.
    inner, wide = (20, 1) if r == 1 else (5, min(r + GUARDS, int(bound.free.sum())))
    start = np.random.default_rng(seed).standard_normal((energy.shape[0], wide))
    # One step of the power method: random vectors are mostly small eigenvalues.
    basis = bound.centred(bound.descend(np.asarray(energy @ start), inner))
    a, b = energy @ basis, bound.matrix @ basis
    lead = wide
    for step in range(1, STEPS + 1):
        values, mix = _ritz(basis, a, b, wide)
        x, ax, bx = basis @ mix, a @ mix, b @ mix
        residual = ax - values * bx
        size = np.linalg.norm(ax, axis=0) + values * np.linalg.norm(bx, axis=0)
        if (np.linalg.norm(residual, axis=0)[:r] <= tolerance * size[:r]).all():
            break
        w = bound.centred(bound.descend(residual, inner))
        mix[:lead] = 0  # what is left is the change; zero in the first step, and dropped there
        last, lead = basis @ mix, x.shape[1]
        if step % REFRESH:
            a, b = np.hstack([ax, energy @ w, a @ mix]), np.hstack([bx, bound.matrix @ w, b @ mix])
        basis = np.hstack([x, w, last])
        if step % REFRESH == 0:
            a, b = energy @ basis, bound.matrix @ basis
    return values[:r], x[:, :r]


def _ritz(basis: Columns, a: Columns, b: Columns, wide: int) -> tuple[Float[np.ndarray, "r"], Float[np.ndarray, "q r"]]:
    """Return the largest Ritz values in the span of ``basis`` and the mixtures of its columns that attain them."""
    from scipy.linalg import eigh

    squares = np.einsum("ij,ij->j", basis, b)
    scale = np.zeros_like(squares)  # of a column that is zero, too
    scale[squares > 0] = 1 / np.sqrt(squares[squares > 0])
    gram = _symmetric(basis.T @ b) * scale * scale[:, None]
    sizes, turn = eigh(gram)
    safe = sizes > DROPPED
    turn = turn[:, safe] / np.sqrt(sizes[safe])
    values, mix = eigh(turn.T @ (_symmetric(basis.T @ a) * scale * scale[:, None]) @ turn)
    order = np.argsort(values)[::-1][:wide]
    return values[order], scale[:, None] * (turn @ mix[:, order])


def _symmetric(matrix: Float[np.ndarray, "q q"]) -> Float[np.ndarray, "q q"]:
    return (matrix + matrix.T) / 2
