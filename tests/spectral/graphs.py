"""Random graphs and maps that spectral tests share, and the definition of every score by dense matrices."""

from __future__ import annotations

import numpy as np
from scipy.linalg import eigh

from holdfast.spectral.graph import Graph
from holdfast.spectral.graph_pair import GraphPair


def random_graph(n: int, edges: int, seed: int, connected: bool = True) -> Graph:
    """A random graph with loose weights; a random tree is part of it if it must be connected."""
    rng = np.random.default_rng(seed)
    pairs = rng.integers(0, n, (edges, 2))
    if connected:
        tree = np.stack([np.arange(1, n), [rng.integers(0, i) for i in range(1, n)]], axis=1)
        pairs = np.concatenate([tree, pairs])
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    return Graph.of(n, pairs, rng.uniform(0.5, 2, len(pairs)))


def graph_pair(inputs: Graph, outputs: Graph, k: int = 3) -> GraphPair:
    """Two graphs as if they had been drawn from points."""
    rows = np.arange(inputs.n)
    return GraphPair(inputs, outputs, rows, rows, k, 0, 0, (1.0, 1.0))


def oracle(inputs: Graph, outputs: Graph) -> np.ndarray:
    """All eigenvalues of L_Y^+ L_X on the range of L_Y, descending, by the symmetric square root of the pseudo-inverse."""
    values, vectors = eigh(outputs.laplacian.toarray())
    kept = values > 1e-9 * values.max()
    root = vectors[:, kept] / np.sqrt(values[kept])
    return eigh(root.T @ inputs.laplacian.toarray() @ root, eigvals_only=True)[::-1]


def folded(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Points of a plane and a smooth map of them that folds and stretches."""
    x = np.random.default_rng(seed).normal(size=(n, 2))
    return x, np.stack([x[:, 0], np.tanh(4 * x[:, 1]), np.sin(2 * x[:, 0] * x[:, 1])], axis=1)
