"""Neighbours among the leading principal components: distances without the directions of little variance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
import torch

from holdfast.core.errors import HoldfastError
from holdfast.core.points import Points, points
from holdfast.core.points.neighbours import Neighbours
from holdfast.spectral.graph import Graph, union
from holdfast.spectral.graphs.base import GraphConstruction


@final
@dataclass(frozen=True)
class PCA(GraphConstruction):
    """Joins each point with its ``k`` nearest others among the first ``components`` principal components."""

    components: int = 50
    name = "pca"

    def __post_init__(self) -> None:
        if self.components < 1:
            raise HoldfastError(f"pca: components must be at least 1, got {self.components}")

    def view(self, points_: Points) -> Points:
        from sklearn import decomposition

        if self.components >= min(len(points_), points_.features):
            return points_  # all of them: distances stay the same
        values = points_.tile(slice(None), torch.float64).cpu().numpy()
        reduced = decomposition.PCA(self.components, svd_solver="auto", random_state=0).fit_transform(values)
        return points(np.ascontiguousarray(reduced), "principal components")

    def remark(self, inputs: Points) -> str:
        most = min(len(inputs), inputs.features)
        if self.components < most:
            return ""
        return (
            f"Graph {self}: {len(inputs)} inputs of {inputs.features} features have no more than {most} principal "
            "components, so all are kept and their graph is that of knn."
        )

    def connect(self, near: Neighbours) -> Graph:
        return union(near.index)
