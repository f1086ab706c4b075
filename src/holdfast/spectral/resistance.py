"""Effective resistances and hop distances between pairs of nodes.

Also here: solutions of ``L x = b`` for a graph Laplacian, exactly by factorisation or by preconditioned conjugate gradients.
``L`` is singular: a constant per component has no effect. With one node of each component fixed to zero (grounded) it is
positive definite. The solution is then shifted to mean zero on each component: the pseudo-inverse applied to b.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float, Int, UInt64

from holdfast.spectral.graph import Edges, Graph, Sparse

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


# Effective resistances, and every other quadratic form ``e' L_Y^+ L_G L_Y^+ e`` along pairs ``e = e_p - e_q``.
#
# With ``L_G = B' B`` it is ``|B L_Y^+ e|^2``. Exact on small graphs; else estimated by ``|Q B L_Y^+ e|^2`` with ``q``
# rows of random signs, relative error ``sqrt(2 / q)`` (Spielman and Srivastava 2011,
# https://doi.org/10.1137/080734029). With G = Y it is the effective resistance ``d_Y(p, q)``; with G = X the edge
# score over all eigenvectors.

EXACT = 3000
"""Largest number of nodes for which the pseudo-inverse is formed: 72 MB."""
WIDTH = 16
"""Right-hand sides solved for together."""


def sketch_rows(n: int) -> int | None:
    """Return the number of random rows in the sketch of a graph with ``n`` nodes; None if solved exactly."""
    return None if n <= EXACT else 200 if n <= FACTORED else 32


def resistances(graph: Graph, pairs: Edges, rows: int | None = None, seed: int = 0) -> Float[np.ndarray, "m"]:
    """Return the effective resistance between the two nodes of each pair, which must be connected.

    Args:
        graph: its edge weights are conductances.
        rows: how many random rows to sketch with; by default exact up to ``EXACT`` nodes.

    Example:
        >>> path = Graph.of(3, np.array([[0, 1], [1, 2]]))
        >>> resistances(path, np.array([[0, 1], [0, 2]])).round(6).tolist()
        [1.0, 2.0]
    """
    return forms(graph, Laplacian(graph), pairs, rows, seed)


def forms(
    energy: Graph, bound: Laplacian, pairs: Edges, rows: int | None = None, seed: int = 0
) -> Float[np.ndarray, "m"]:
    """Return ``e' L_Y^+ L_G L_Y^+ e`` for each pair, where ``energy`` is G and ``bound`` belongs to Y."""
    rows = sketch_rows(bound.graph.n) if rows is None else rows
    with one_thread():
        return _exact(energy, bound, pairs) if rows is None else _sketched(energy, bound, pairs, rows, seed)


def between(graph: Graph, pairs: Edges) -> Float[np.ndarray, "m"]:
    """Return the exact effective resistance of a few pairs on a graph of any size: one solution each."""
    bound = Laplacian(graph)
    forms_of_pairs = []
    with one_thread():
        for start in range(0, len(pairs), WIDTH):
            part = pairs[start : start + WIDTH]
            each = np.arange(len(part))
            right = np.zeros((graph.n, len(part)))
            right[part[:, 0], each], right[part[:, 1], each] = 1, -1
            potential = bound.solve(right)
            forms_of_pairs.append(potential[part[:, 0], each] - potential[part[:, 1], each])
    return np.concatenate(forms_of_pairs) if forms_of_pairs else np.empty(0)


def _exact(energy: Graph, bound: Laplacian, pairs: Edges) -> Float[np.ndarray, "m"]:
    inverse = _pseudo_inverse(bound)
    form = inverse if energy is bound.graph else inverse @ (energy.laplacian @ inverse)
    p, q = pairs.T
    return form[p, p] + form[q, q] - 2 * form[p, q]


def _pseudo_inverse(bound: Laplacian) -> Float[np.ndarray, "n n"]:
    from scipy.linalg import cho_factor, cho_solve

    inverse = np.zeros((bound.graph.n, bound.graph.n))
    free = np.flatnonzero(bound.free)
    matrix = bound.matrix.toarray()[np.ix_(free, free)]
    inverse[np.ix_(free, free)] = cho_solve(cho_factor(matrix), np.eye(len(free)))
    return bound.centred(bound.centred(inverse).T)


def _sketched(energy: Graph, bound: Laplacian, pairs: Edges, rows: int, seed: int) -> Float[np.ndarray, "m"]:
    rng = np.random.default_rng(seed)
    total = np.zeros(len(pairs))
    for start in range(0, rows, WIDTH):
        width = min(WIDTH, rows - start)
        signs = rng.choice(np.array([-1.0, 1.0]), size=(len(energy.edges), width))
        signs *= np.sqrt(energy.weights)[:, None]
        right = np.stack(
            [
                np.bincount(energy.edges[:, 0], column, energy.n) - np.bincount(energy.edges[:, 1], column, energy.n)
                for column in signs.T
            ],
            axis=1,
        )
        z = bound.solve(right)
        total += np.square(z[pairs[:, 0]] - z[pairs[:, 1]]).sum(axis=1)
    return total / rows


# Hop (geodesic) distances between pairs of nodes, by breadth-first search from 64 sources in every machine word.
#
# A node's word holds one bit per source that has reached it; one level is the bitwise or over its neighbours' words.

MEMORY = 1 << 26
"""Bytes of gathered words per level."""
WORK = 5e8
"""Bytes gathered per level over all sources, above which a sample of the sources has to do."""
Words = UInt64[np.ndarray, "n w"]


def affordable(graph: Graph) -> int:
    """Return from how many sources hop distances cost seconds."""
    return max(1, int(WORK * 8 / max(2 * len(graph.edges), 1)))


def hops(graph: Graph, pairs: Edges) -> Float[np.ndarray, "m"]:
    """Return the number of edges on a shortest path between the nodes of each pair; inf where there is none.

    Example:
        >>> path = Graph.of(4, np.array([[0, 1], [1, 2]]))
        >>> hops(path, np.array([[0, 2], [0, 1], [0, 3]])).tolist()
        [2.0, 1.0, inf]
    """
    from scipy.sparse import eye_array

    matrix = (graph.adjacency + eye_array(graph.n)).tocsr()  # with itself, so that no node is without neighbours
    distances = np.full(len(pairs), np.inf)
    sources, column = np.unique(pairs[:, 0], return_inverse=True)
    order = np.argsort(column, kind="stable")
    ends = np.searchsorted(column[order], np.arange(len(sources) + 1))
    width = 64 * max(1, MEMORY // (8 * matrix.nnz))
    for start in range(0, len(sources), width):
        part = order[ends[start] : ends[min(start + width, len(sources))]]
        block = sources[start : start + width]
        distances[part] = _levels(matrix.indptr, matrix.indices, block, pairs[part, 1], column[part] - start)
    return distances


def _levels(
    pointers: Int[np.ndarray, "_"],
    neighbours: Int[np.ndarray, "_"],
    sources: Int[np.ndarray, "s"],
    targets: Int[np.ndarray, "m"],
    column: Int[np.ndarray, "m"],
) -> Float[np.ndarray, "m"]:
    reached: Words = np.zeros((len(pointers) - 1, -(-len(sources) // 64)), dtype=np.uint64)
    each = np.arange(len(sources))
    np.bitwise_or.at(reached, (sources, each // 64), np.uint64(1) << (each % 64).astype(np.uint64))
    word, bit = column // 64, (column % 64).astype(np.uint64)
    distance = np.full(len(targets), np.inf)
    level = 0
    while True:
        arrived = (reached[targets, word] >> bit & np.uint64(1)).astype(bool)
        distance[arrived & np.isinf(distance)] = level
        further = np.bitwise_or.reduceat(reached[neighbours], pointers[:-1], axis=0)
        if arrived.all() or np.array_equal(further, reached):
            return distance
        reached, level = further, level + 1


def edge_hops(inputs: Graph, outputs: Graph, seed: int) -> Float[np.ndarray, "m"]:
    """Return the hop distance of every input edge, or of those of some random nodes where all would take minutes."""
    count = affordable(outputs)
    if count >= inputs.n:
        return hops(outputs, inputs.edges)
    chosen = np.zeros(inputs.n, dtype=bool)
    chosen[np.random.default_rng(seed).choice(inputs.n, count, replace=False)] = True
    first, second = chosen[inputs.edges].T
    known = first | second
    # From the chosen end, so that there are no more sources than chosen nodes.
    pairs = np.where(first[:, None], inputs.edges, inputs.edges[:, ::-1])[known]
    distances = np.full(len(inputs.edges), np.nan)
    distances[known] = hops(outputs, pairs)
    return distances
