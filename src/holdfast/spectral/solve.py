"""Solutions of ``L x = b`` for a graph Laplacian, exactly by factorisation or by preconditioned conjugate gradients.

``L`` is singular: one constant per component costs nothing. With one node of each component fixed to zero (grounded) it is
positive definite, and the solution is moved to mean zero on each component afterwards: the pseudo-inverse applied to b.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float

from holdfast.spectral.graph import Graph, Sparse

FACTORED = 20_000
"""Largest number of nodes for which the Laplacian is factorised: beyond, the factor of a neighbour graph outgrows memory."""
TOLERANCE = 1e-8
STEPS = 2000
"""Most steps of conjugate gradients; a kNN graph of a million nodes takes a few hundred."""
Columns = Float[np.ndarray, "n q"]


@contextmanager
def one_thread() -> Iterator[None]:
    """Keep BLAS to one thread: these matrices are too small for more, and threads under load are ten times slower."""
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1, "blas"):
        yield


class Factor:
    """A sparse factorisation of a symmetric matrix without pivoting, as Cholesky's is."""

    def __init__(self, matrix: Sparse) -> None:
        from scipy.sparse.linalg import splu

        self._lu = splu(
            matrix.tocsc(), permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True}
        )

    @property
    def positive(self) -> bool:
        """Return whether the matrix is positive definite: all pivots came from the diagonal and are positive."""
        straight = np.array_equal(self._lu.perm_r, self._lu.perm_c)
        return bool(straight and (self._lu.U.diagonal() > 0).all())

    def solve(self, b: Float[np.ndarray, "m *q"]) -> Float[np.ndarray, "m *q"]:
        """Return the solution for one or several right-hand sides."""
        return self._lu.solve(b)


class Laplacian:
    """A graph's Laplacian, ready to be solved with."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.matrix = graph.laplacian
        self.inverse_degree: Float[np.ndarray, "n"] = 1 / np.maximum(self.matrix.diagonal(), 1e-300)

    @cached_property
    def free(self) -> Bool[np.ndarray, "n"]:
        """Return which nodes are not grounded: all but the first of each component."""
        free = np.ones(self.graph.n, dtype=bool)
        free[np.unique(self.graph.component, return_index=True)[1]] = False
        return free

    @cached_property
    def factor(self) -> Factor:
        """Return the factorisation of the grounded Laplacian."""
        return Factor(grounded(self.matrix, self.free))

    def centred(self, x: Columns) -> Columns:
        """Return ``x`` with mean zero on each component."""
        if self.graph.components == 1:
            return x - x.mean(axis=0)
        part, size = self.graph.component, np.bincount(self.graph.component)
        sums = np.stack([np.bincount(part, weights=column) for column in x.T], axis=1)
        return x - (sums / size[:, None])[part]

    def solve(self, b: Columns) -> Columns:
        """Return the pseudo-inverse applied to the columns of ``b``."""
        b = self.centred(b)
        if self.graph.n > FACTORED:
            return self.centred(self.descend(b, STEPS, TOLERANCE))
        x = np.zeros_like(b)
        x[self.free] = self.factor.solve(np.ascontiguousarray(b[self.free]))
        return self.centred(x)

    def descend(self, b: Columns, steps: int, tolerance: float = 0.0) -> Columns:
        """Solve ``L x = b`` approximately by ``steps`` steps of conjugate gradients, preconditioned by the degrees."""
        inverse = self.inverse_degree[:, None]
        x, r = np.zeros_like(b), b.copy()
        goal = tolerance * np.linalg.norm(b, axis=0)
        z = inverse * r
        p, energy = z.copy(), _dots(r, z)
        for _ in range(steps):
            lp = self.matrix @ p
            length = energy / np.maximum(_dots(p, lp), np.finfo(float).tiny)
            x += length * p
            r -= length * lp
            if tolerance and (np.linalg.norm(r, axis=0) <= goal).all():
                break
            z = inverse * r
            before, energy = energy, _dots(r, z)
            p = z + energy / np.maximum(before, np.finfo(float).tiny) * p
        return x


def grounded(matrix: Sparse, free: Bool[np.ndarray, "n"]) -> Sparse:
    """Return the rows and columns of the ``free`` nodes."""
    rows = np.flatnonzero(free)
    return matrix[rows][:, rows]


def _dots(a: Columns, b: Columns) -> Float[np.ndarray, "q"]:
    return np.einsum("ij,ij->j", a, b)
