"""How a neighbourhood graph is drawn from points: which distances count, and which near points are joined."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from holdfast.core.discovery import named_classes
from holdfast.core.points import Points
from holdfast.core.points.neighbours import Neighbours
from holdfast.core.settings import Spelled, read
from holdfast.spectral.graph import Graph


@dataclass(frozen=True)
class GraphConstruction(Spelled):
    """A graph that stands for the manifold near which the points lie."""

    name: ClassVar[str]

    @classmethod
    def read(cls, text: str) -> GraphConstruction:
        import holdfast.spectral.graphs as home  # whose files import this one

        return read(text, named_classes(home, GraphConstruction), "graph")

    def view(self, points: Points) -> Points:
        """Return the points between which distances are taken: the same ones by default."""
        return points

    def remark(self, inputs: Points) -> str:
        """Return what cannot be done to ``inputs`` as the settings say, in one sentence; empty if nothing."""
        return ""

    @abstractmethod
    def connect(self, near: Neighbours) -> Graph:
        """Return the graph of points with these nearest neighbours."""
