"""Graphs that stand for the manifold near which points lie. To add one, add a file and its class to ``MANIFOLDS``."""

from __future__ import annotations

from holdfast.spectral.graphs.base import Manifold
from holdfast.spectral.graphs.cknn import CKNN
from holdfast.spectral.graphs.knn import KNN
from holdfast.spectral.graphs.pca import PCA
from holdfast.spectral.graphs.sparsified import Sparsified
from holdfast.spelling import READERS, read

__all__ = ["CKNN", "KNN", "MANIFOLDS", "PCA", "Manifold", "Sparsified"]

MANIFOLDS: dict[str, type[Manifold]] = {kind.name: kind for kind in (KNN, PCA, CKNN, Sparsified)}
READERS["Manifold"] = lambda text: read(text, MANIFOLDS, "graph")
