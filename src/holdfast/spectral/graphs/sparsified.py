"""A kNN graph with fewer edges and nearly the same Laplacian, by sampling edges by their effective resistance.

``density * n`` draws with replacement, edge e with probability ``p_e = w_e R_e / (n - 1)``; each draw adds ``w_e / (draws
p_e)`` to its weight, so that the expected Laplacian is the old one. Spielman and Srivastava 2011,
https://doi.org/10.1137/080734029. (The sparsifier of Cheng et al. 2021 is not public; this one has a proof.)
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import final

import numpy as np

from holdfast.core.errors import HoldfastError
from holdfast.core.points.neighbours import Neighbours
from holdfast.spectral.graph import Graph, union
from holdfast.spectral.graphs.base import GraphConstruction
from holdfast.spectral.resistance import resistances


@final
@dataclass(frozen=True)
class Sparsified(GraphConstruction):
    """Samples the edges of the kNN graph by their effective resistance and reweights them."""

    density: float = 6.0
    seed: int = 0
    name = "sparsified"

    def __post_init__(self) -> None:
        if not 1 < self.density < inf:
            raise HoldfastError(f"sparsified: density must be above 1 draw per sample, got {self.density}")

    def connect(self, near: Neighbours) -> Graph:
        return sparsified(union(near.index), round(self.density * len(near.index)), self.seed)


def sparsified(graph: Graph, draws: int, seed: int) -> Graph:
    """Return ``graph`` after ``draws`` draws of its edges."""
    chance = graph.weights * resistances(graph, graph.edges, seed=seed)
    chance = chance / chance.sum()
    counts = np.random.default_rng(seed).multinomial(draws, chance)
    kept = counts > 0
    weights = graph.weights[kept] * counts[kept] / (draws * chance[kept])
    return Graph(graph.n, graph.edges[kept], weights)
