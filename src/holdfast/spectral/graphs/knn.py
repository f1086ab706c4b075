"""The graph of Cheng et al. 2021: two points are joined if one is among the other's ``k`` nearest; unit weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from holdfast.core.points.neighbours import Neighbours
from holdfast.spectral.graph import Graph, union
from holdfast.spectral.graphs.base import GraphConstruction


@final
@dataclass(frozen=True)
class KNN(GraphConstruction):
    """Joins each point with its ``k`` nearest others."""

    name = "knn"

    def connect(self, near: Neighbours) -> Graph:
        return union(near.index)
