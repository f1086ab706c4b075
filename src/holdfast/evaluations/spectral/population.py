"""The spectral scores of a run's images, computed once for all evaluations that ask."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

import numpy as np
import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from holdfast.core.images import Images
from holdfast.evaluations.spectral.analysis import Spade, scored
from holdfast.evaluations.spectral.graph_pair import GraphPair, checked, draw
from holdfast.evaluations.spectral.graphs.base import GraphConstruction
from holdfast.evaluations.spectral.points import Points
from holdfast.protocol.population import Population

BATCH = 256


@dataclass(frozen=True)
class SpectralSettings:
    """Which graphs are drawn of a population."""

    k: int
    manifold: GraphConstruction
    repair: str
    samples: int


@dataclass(frozen=True, eq=False)
class SpectralScores:
    """Inputs and outputs in an order that the samples' ids alone decide, and their scores in the order of ``rows``."""

    x: Points
    y: Points
    ordered: GraphPair
    """The graphs in the ids' order: what is drawn at random from them does not depend on the images' order either."""
    found: Spade
    rows: Sequence[int]
    order: Int[np.ndarray, "n"]
    """Which of ``rows`` comes first, second ... in the ids' order."""


_known: WeakKeyDictionary[Population, dict[SpectralSettings, SpectralScores]] = WeakKeyDictionary()


def scores_of(population: Population, asked: SpectralSettings) -> SpectralScores:
    """Return the scores of up to ``asked.samples`` randomly chosen images.

    Raises:
        HoldfastError: there are too few images for ``asked.k``, or all have the same code.
    """
    kept = _known.setdefault(population, {})
    if asked not in kept:
        kept[asked] = _scores(population, asked)
    return kept[asked]


def _scores(population: Population, asked: SpectralSettings) -> SpectralScores:
    rows, seed = population.choose(asked.samples), population.run.seed
    rank = np.empty(len(population.images), dtype=np.int64)
    rank[population.shuffled.numpy()] = np.arange(len(rank))
    order = np.argsort(rank[rows])
    ordered = [rows[place] for place in order.tolist()]
    x, y = checked(pixels_of(population.images, ordered), population.codes[ordered].cpu())
    graphs = draw(x, y, asked.k, asked.manifold, asked.repair, seed)
    scores = scored(graphs, seed)
    return SpectralScores(x, y, graphs, replace(scores, graphs=graphs.renamed(order)), rows, order)


def pixels_of(images: Images, rows: Sequence[int]) -> Shaped[Tensor, "n p"]:
    """Return the flattened inputs at ``rows`` as they are stored: a byte per value where the source has bytes."""
    first = images.source.read(rows[:1])
    found = torch.empty(len(rows), first[0].numel(), dtype=first.dtype)
    for start in range(0, len(rows), BATCH):
        part = rows[start : start + BATCH]
        found[start : start + len(part)] = images.source.read(part).flatten(1)
    return found
