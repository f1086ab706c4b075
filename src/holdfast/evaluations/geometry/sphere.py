"""The clean codes of distinct images on the unit sphere: who is near whom, learned once from all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from holdfast.core.divergences import Cosine
from holdfast.core.errors import HoldfastError
from holdfast.core.points import Points, points
from holdfast.core.points.neighbours import nearest_neighbours
from holdfast.core.run_settings import Observed
from holdfast.core.statistics.clusters import Groups, numbered
from holdfast.evaluations.geometry.pairs import potentials
from holdfast.evaluations.geometry.tags import Tags
from holdfast.protocol.fits import Fit, LooksAt
from holdfast.protocol.population import Population

MOST = 1 << 22
"""Neighbours held at a time where groups are large."""
ZERO = "the code is zero and has no direction"


@dataclass(frozen=True, eq=False)
class Sphere:
    """Unit codes of some images in an order that their ids alone decide, with what pairs of them say."""

    rows: list[int]
    codes: Float[Tensor, "n d"]
    potential: Float[np.ndarray, "n"]
    near: Int[np.ndarray, "n k"]
    """The nearest neighbours of each, as places in ``rows``; none where there are too few images."""
    constant: bool
    """Whether all codes point the same way up to rounding."""
    ties: int
    """How many images share their code with ``k`` others, so that their neighbours are arbitrary."""


def distinct(population: Population, samples: int) -> list[int]:
    """Return up to ``samples`` randomly chosen rows without exact copies, in an order that ids alone decide."""
    if samples < 2:
        raise HoldfastError(f"the number of samples to look at must be at least 2, got {samples}")
    chosen = population.shuffled[:samples]
    rows: list[int] = chosen[population.originals[chosen] == chosen].tolist()
    if len(rows) < 2:
        raise HoldfastError("pairs of different images are needed, but there is only one; add images")
    return rows


@final
@dataclass(frozen=True)
class Neighbourhoods(Fit[Sphere]):
    """The Gaussian potential of each code among all others, and its ``k`` nearest neighbours, both exact."""

    k: int
    samples: int
    name = "neighbourhoods"
    version = 1

    def looks_at(self) -> LooksAt:
        return "codes"

    def learn(self, population: Population) -> Observed:
        rows, codes = directions(population, self.samples)
        on_sphere = points(codes)
        if self.k < 1:
            raise HoldfastError(f"k must be at least 1, got {self.k}")
        empty = np.empty((len(rows), 0), dtype=np.int64), np.empty((len(rows), 0))
        index, distance = empty
        if len(rows) > self.k and not on_sphere.constant:
            neighbours = nearest_neighbours(on_sphere, self.k)
            index, distance = neighbours.index, neighbours.distance
        return {
            "potential": potentials(on_sphere).cpu(),
            "near": torch.from_numpy(index),
            "constant": torch.tensor(on_sphere.constant),
            "ties": torch.tensor(int((distance[:, -1:] == 0).sum())),
        }

    def restore(self, population: Population, learned: Observed) -> Sphere:
        rows, codes = directions(population, self.samples)
        potential, near = learned["potential"].cpu().numpy(), learned["near"].cpu().numpy()
        return Sphere(rows, codes, potential, near, bool(learned["constant"]), int(learned["ties"]))


def directions(population: Population, samples: int) -> tuple[list[int], Float[Tensor, "n d"]]:
    """Return the rows of distinct images whose codes have a direction, and their unit codes."""
    rows = distinct(population, samples)
    codes = Cosine().embed(population.codes[rows])
    assert codes is not None
    defined = codes.isfinite().all(1)
    rows = [row for row, kept in zip(rows, defined.tolist(), strict=True) if kept]
    if len(rows) < 2:
        raise HoldfastError("codes of two images at least must not be zero; the encoder tells nothing apart")
    return rows, codes[defined]


@final
@dataclass(frozen=True)
class Strangers(Fit[Int[np.ndarray, "n k"]]):
    """The ``k`` nearest neighbours of each image on the sphere among those of other groups than its own.

    Groups are those of the file of tags or else of the images; without any, each image is its own.
    """

    k: int
    samples: int
    tags: Tags
    name = "strangers"
    version = 1
    uses_groups = True

    def looks_at(self) -> LooksAt:
        return "codes"

    def learn(self, population: Population) -> Observed:
        rows, codes = directions(population, self.samples)
        on_sphere, names = points(codes), groups_of(population, self.tags)
        if self.k < 1:
            raise HoldfastError(f"k must be at least 1, got {self.k}")
        groups = np.arange(len(rows)) if names is None else numbered(np.array(names)[rows])
        if on_sphere.constant or len(rows) <= self.k:
            return {"near": torch.empty((len(rows), 0), dtype=torch.int64)}
        return {"near": torch.from_numpy(nearest_strangers(on_sphere, self.k, groups))}

    def restore(self, population: Population, learned: Observed) -> Int[np.ndarray, "n k"]:
        return learned["near"].cpu().numpy()


def groups_of(population: Population, tags: Tags) -> tuple[str, ...] | None:
    """Return the group of every image: from the file of tags, or as the images have them.

    Raises:
        HoldfastError: both state groups.
    """
    stated = tags.groups(population.images.ids)
    if stated is not None and population.images.groups is not None:
        raise HoldfastError(f"groups are stated twice, in {tags.path} and by ?groups= of the images; keep one")
    return population.images.groups if stated is None else stated


def nearest_strangers(directions: Points, k: int, groups: Groups) -> Int[np.ndarray, "n k"]:
    """Return the ``k`` nearest points of other groups of each point, exactly.

    Of the nearest ``k`` and as many as the rest of a group, ``k`` are of others; so points are searched by the size of
    their groups.
    """
    sizes = np.bincount(groups)
    if len(groups) - sizes.max() < k:
        raise HoldfastError(
            f"one group holds {sizes.max()} of {len(groups)} images, so fewer than {k} others are left for its neighbours; "
            "lower k or give more groups"
        )
    near = np.empty((len(groups), k), dtype=np.int64)
    steps = np.ceil(np.log2(sizes[groups])).astype(int)
    for step in np.unique(steps):
        rows = np.flatnonzero(steps == step)
        count = min(len(groups) - 1, k + int(sizes[groups[rows]].max()) - 1)
        for part in np.array_split(rows, -(-len(rows) * count // MOST)):
            index = nearest_neighbours(directions, count, torch.from_numpy(part)).index
            same_group = groups[index] == groups[part][:, None]
            near[part] = np.take_along_axis(index, np.argsort(same_group, axis=1, kind="stable"), axis=1)[:, :k]
    return near
