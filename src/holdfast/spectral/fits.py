"""Fit of the spectral scores of a run's images, computed once for all evaluations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import final

import numpy as np
import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from holdfast.core.errors import HoldfastError
from holdfast.core.images import Images
from holdfast.core.points.points import Points
from holdfast.core.run_settings import Observed
from holdfast.measure.population import Fit, LooksAt, Population
from holdfast.spectral.analysis import Spade, scored
from holdfast.spectral.graph_pair import GraphConstruction, GraphPair, checked, draw
from holdfast.spectral.stability import spade_of, tensors_of

BATCH = 256


@dataclass(frozen=True, eq=False)
class SpectralScores:
    """Inputs and outputs in an order that the samples' ids alone decide, and their scores in the order of ``rows``."""

    read: Callable[[], tuple[Points, Points]]
    """Reads the inputs and outputs: all pixels, which who only asks for scores does not wait for."""
    ordered: GraphPair
    """The graphs in the ids' order: what is drawn at random from them does not depend on the images' order either."""
    spade: Spade
    rows: Sequence[int]
    order: Int[np.ndarray, "n"]
    """Permutation of ``rows`` into the order of ids."""

    @cached_property
    def points(self) -> tuple[Points, Points]:
        """Inputs and outputs, read once."""
        return self.read()

    @property
    def x(self) -> Points:
        """The inputs."""
        return self.points[0]

    @property
    def y(self) -> Points:
        """The outputs."""
        return self.points[1]


@final
@dataclass(frozen=True)
class SpectralFit(Fit[SpectralScores]):
    """The graphs and scores of up to ``samples`` randomly chosen images.

    Learning raises HoldfastError if there are too few images for ``k``, or all have the same code.
    """

    k: int
    manifold: GraphConstruction
    repair: str
    samples: int
    name = "spectral-scores"
    version = 1

    def looks_at(self) -> LooksAt:
        return "inputs"

    def learn(self, population: Population) -> Observed:
        _, ordered = self._order(population)
        x, y = _points(population, ordered)
        seed = population.run.seed
        return tensors_of(scored(draw(x, y, self.k, self.manifold, self.repair, seed), seed))

    def restore(self, population: Population, learned: Observed) -> SpectralScores:
        order, ordered = self._order(population)
        scores = spade_of(learned)
        renamed = replace(scores, graphs=scores.graphs.renamed(order))
        read = partial(_points, population, ordered)
        return SpectralScores(read, scores.graphs, renamed, population.choose(self.samples), order)

    def _order(self, population: Population) -> tuple[Int[np.ndarray, "n"], list[int]]:
        """Return which of the chosen rows comes first, second ... in the ids' order, and the rows in that order."""
        rows = population.choose(self.samples)
        rank = np.empty(len(population.images), dtype=np.int64)
        rank[population.random_order.numpy()] = np.arange(len(rank))
        order = np.argsort(rank[rows])
        return order, [rows[position] for position in order.tolist()]


def _points(population: Population, rows: Sequence[int]) -> tuple[Points, Points]:
    return checked(pixels_of(population.images, rows), population.codes[rows].cpu())


def pixels_of(images: Images, rows: Sequence[int]) -> Shaped[Tensor, "n p"]:
    """Return the flattened inputs at ``rows`` as they are stored: a byte per value where the source has bytes.

    Raises:
        HoldfastError: embeddings alone are known.
    """
    if images.inputs is None:
        raise HoldfastError(
            f"embeddings are compared with their inputs, and {images.name} holds embeddings alone; add inputs=FILE"
        )
    first = images.inputs.read(rows[:1])
    pixels = torch.empty(len(rows), first[0].numel(), dtype=first.dtype)
    for start in range(0, len(rows), BATCH):
        part = rows[start : start + BATCH]
        pixels[start : start + len(part)] = images.inputs.read(part).flatten(1)
    return pixels
