"""Graphs that stand for the manifold near which points lie. To add one, add a file."""

from __future__ import annotations

from holdfast.spectral.graphs.base import GraphConstruction
from holdfast.spectral.graphs.cknn import CKNN
from holdfast.spectral.graphs.knn import KNN
from holdfast.spectral.graphs.pca import PCA
from holdfast.spectral.graphs.sparsified import Sparsified

__all__ = ["CKNN", "KNN", "PCA", "GraphConstruction", "Sparsified"]
