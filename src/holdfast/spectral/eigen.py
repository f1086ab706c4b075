"""The largest eigenvalues of ``L_X v = lambda L_Y v``, by shift-invert Lanczos or LOBPCG."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from holdfast.spectral.graph import Graph, Sparse
from holdfast.spectral.resistance import FACTORED, Columns, Factor, Laplacian, grounded, one_thread

# Shift-invert Lanczos for ``L_X v = lambda L_Y v``: one factorisation of the grounded L_Y, then ARPACK.
#
# Removing one node per component of G_Y from both matrices changes no eigenvalue on the vectors orthogonal to the
# components' constants, and makes L_Y positive definite.


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


# LOBPCG for the largest eigenvalues of ``L_X v = lambda L_Y v`` (Knyazev 2001,
# https://doi.org/10.1137/S1064827500366124).
#
# Each step maximises the Rayleigh quotient over the span of the vectors X, the search directions W and the last change
# P.
# W is a few steps of conjugate gradients on L_Y applied to the residual: a cheap stand-in for L_Y^+, without which the
# iteration stalls. Departures from the textbook, each for a failure seen: [X, W, P] is scaled column by column and
# directions whose Gram eigenvalue is below 1e-12 are dropped (they are rounding); products are recomputed every 20
# steps (updated ones drift); the constants of G_Y's components are projected out of W rather than imposed as
# constraints.

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


# The largest eigenvalues of ``L_X v = lambda L_Y v``: which solver, how exact, and what proves the largest.
#
# Vectors are normalised ``v' L_Y v = 1``, have mean zero on each component of G_Y, and their largest entry is positive.
# The components rule (``components.split``) must have found the largest eigenvalue finite.

SCORES = 1e-5
"""Relative residual up to which eigenvectors serve for scores; 1e-3 does for the eigenvalue alone."""
SLACK = 1e-6
DENSE = 2000
"""Largest number of nodes for which all eigenvalues are computed."""


@dataclass(frozen=True, eq=False)
class Spectrum:
    """The largest generalised eigenvalues, descending, and their vectors."""

    values: Float[np.ndarray, "r"]
    vectors: Float[np.ndarray, "n r"]
    residuals: Float[np.ndarray, "r"]
    """``|L_X v - lambda L_Y v| / (|L_X v| + lambda |L_Y v|)``"""
    solver: str


def spectrum(
    inputs: Graph, outputs: Graph, r: int = 10, tolerance: float = SCORES, seed: int = 0, solver: str | None = None
) -> Spectrum:
    """Return the ``r`` largest eigenpairs (fewer if the matrix has fewer).

    Args:
        outputs: G_Y, such that no edge of ``inputs`` joins two of its components.
        tolerance: largest relative residual, where the solver is iterative.
        solver: ``dense``, ``lanczos`` or ``lobpcg``; by default the fastest for this size and ``r``.
    """
    energy, bound = inputs.laplacian, Laplacian(outputs)
    most = int(bound.free.sum())
    r = min(r, most)
    if solver is None:
        # Lanczos needs a subspace clearly larger than r; below that a dense solver is faster anyway.
        small = most <= max(100, 4 * r)
        solver = "dense" if small else "lanczos" if r > 1 and outputs.n <= FACTORED else "lobpcg"
    with one_thread():
        if solver == "dense":
            values, vectors = _dense(inputs, bound, r)
        elif solver == "lanczos":
            values, vectors = lanczos(energy, bound, r, seed)
        else:
            values, vectors = lobpcg(energy, bound, r, tolerance, seed)
        vectors = _normal(bound, vectors)
        left, right = energy @ vectors, values * (bound.matrix @ vectors)
    size = np.linalg.norm(left, axis=0) + np.linalg.norm(right, axis=0)
    residuals = np.linalg.norm(left - right, axis=0) / np.maximum(size, np.finfo(float).tiny)
    return Spectrum(values, vectors, residuals, solver)


def all_values(inputs: Graph, outputs: Graph) -> Float[np.ndarray, "r"]:
    """Return every generalised eigenvalue, descending, by a dense solver: n minus the components of ``outputs``."""
    from scipy.linalg import eigh

    bound = Laplacian(outputs)
    pair = (grounded(matrix, bound.free).toarray() for matrix in (inputs.laplacian, bound.matrix))
    with one_thread():
        return eigh(*pair, eigvals_only=True)[::-1]


def certified(inputs: Graph, outputs: Graph, value: float, slack: float = SLACK) -> float | None:
    """Return ``value * (1 + slack)`` if a factorisation proves that every eigenvalue is below it, else None.

    ``theta L_Y - L_X`` grounded is positive definite if and only if all eigenvalues are below ``theta``; factorising
    shows it, up to rounding.
    """
    theta = value * (1 + slack)
    bound = Laplacian(outputs)
    try:
        factor = Factor(grounded(theta * bound.matrix - inputs.laplacian, bound.free))
    except RuntimeError:  # an exact zero pivot: not positive definite
        return None
    return theta if factor.positive else None


def _dense(inputs: Graph, bound: Laplacian, r: int) -> tuple[Float[np.ndarray, "r"], Columns]:
    from scipy.linalg import eigh

    pair = (grounded(matrix, bound.free).toarray() for matrix in (inputs.laplacian, bound.matrix))
    # All pairs: asked for some, LAPACK returns fewer where eigenvalues are equal, as those of two equal graphs are.
    values, eigenvectors = eigh(*pair)
    vectors = np.zeros((inputs.n, r))
    vectors[bound.free] = eigenvectors[:, -r:]
    return values[: -r - 1 : -1], vectors[:, ::-1]


def _normal(bound: Laplacian, vectors: Columns) -> Columns:
    vectors = bound.centred(vectors)
    vectors = vectors / np.sqrt(np.einsum("ij,ij->j", vectors, bound.matrix @ vectors))
    top = np.abs(vectors).argmax(axis=0)
    return vectors * np.sign(vectors[top, np.arange(vectors.shape[1])])
