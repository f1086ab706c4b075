"""Hop (geodesic) distances between pairs of nodes, by breadth-first search from 64 sources in every machine word.

A node's word holds one bit per source that has reached it; one level is the bitwise or over its neighbours' words.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int, UInt64

from holdfast.spectral.graph import Edges, Graph

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
