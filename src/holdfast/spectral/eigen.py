"""The largest eigenvalues of ``L_X v = lambda L_Y v``: which solver, how exact, and what proves the largest.

Vectors are normalised ``v' L_Y v = 1``, have mean zero on each component of G_Y, and their largest entry is positive.
The components rule (``components.split``) must have found the largest eigenvalue finite.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from holdfast.spectral.graph import Graph
from holdfast.spectral.lanczos import lanczos
from holdfast.spectral.lobpcg import lobpcg
from holdfast.spectral.solve import FACTORED, Columns, Factor, Laplacian, grounded, one_thread

SCORES = 1e-5
"""Relative residual up to which eigenvectors serve for scores; 1e-3 does for the eigenvalue alone."""
SLACK = 1e-6
DENSE = 2000
"""Up to so many nodes all eigenvalues are computed."""


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
    """Return the ``r`` largest eigenpairs (fewer if there are not so many).

    Args:
        inputs: G_X.
        outputs: G_Y, such that no edge of ``inputs`` joins two of its components.
        r: how many.
        tolerance: largest relative residual, where the solver is iterative.
        seed: of the start vectors; it changes nothing beyond the tolerance.
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
