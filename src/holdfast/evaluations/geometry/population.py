"""The clean codes of distinct images on the unit sphere: who is near whom, learned once from all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from holdfast.core.divergences import Cosine
from holdfast.core.errors import HoldfastError
from holdfast.core.neighbours import nearest
from holdfast.core.points import points
from holdfast.core.records import COLLAPSED
from holdfast.core.run import Observed
from holdfast.evaluations.geometry.pairs import potentials
from holdfast.protocol.fits import Fit
from holdfast.protocol.observation import Observation
from holdfast.protocol.population import Population

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

    def learn(self, population: Population) -> Observed:
        rows, codes = self._codes(population)
        place = points(codes)
        if self.k < 1:
            raise HoldfastError(f"k must be at least 1, got {self.k}")
        empty = np.empty((len(rows), 0), dtype=np.int64), np.empty((len(rows), 0))
        index, distance = empty
        if len(rows) > self.k and not place.constant:
            found = nearest(place, self.k)
            index, distance = found.index, found.distance
        return {
            "potential": potentials(place).cpu(),
            "near": torch.from_numpy(index),
            "constant": torch.tensor(place.constant),
            "ties": torch.tensor(int((distance[:, -1:] == 0).sum())),
        }

    def restore(self, population: Population, learned: Observed) -> Sphere:
        rows, codes = self._codes(population)
        potential, near = learned["potential"].cpu().numpy(), learned["near"].cpu().numpy()
        return Sphere(rows, codes, potential, near, bool(learned["constant"]), int(learned["ties"]))

    def _codes(self, population: Population) -> tuple[list[int], Float[Tensor, "n d"]]:
        rows = distinct(population, self.samples)
        codes = Cosine().embed(population.codes[rows])
        assert codes is not None
        defined = codes.isfinite().all(1)
        rows = [row for row, kept in zip(rows, defined.tolist(), strict=True) if kept]
        if len(rows) < 2:
            raise HoldfastError("codes of two images at least must not be zero; the encoder tells nothing apart")
        return rows, codes[defined]


@final
@dataclass(frozen=True)
class Lengths(Observation):
    """The Euclidean length of each code."""

    samples: int
    name = "code-lengths"
    version = 1

    def rows(self, population: Population) -> list[int]:
        return sorted(distinct(population, self.samples))

    def observe(self, population: Population, rows: Sequence[int]) -> Observed:
        return {"length": torch.linalg.vector_norm(population.codes[list(rows)].double(), dim=1).cpu()}


def sphere_warnings(population: Population, found: Sphere, looked_at: int) -> tuple[str, ...]:
    """Return what a reader must see beside any number about these codes."""
    said, digests = [], population.images.digests
    if found.constant:
        said.append(
            f"{COLLAPSED}: all codes point the same way up to rounding, so no two images can be told apart by cosine."
        )
    if found.ties:
        said.append(
            f"{found.ties} images share their code with {found.near.shape[1]} others or more, so which of these are their "
            "neighbours is arbitrary: read hubness with suspicion."
        )
    if twins := len(digests) - len(set(digests)):
        said.append(f"{twins} of {len(digests)} images are exact copies of others; each image is counted once.")
    if zero := looked_at - len(found.rows):
        said.append(f"{zero} of {looked_at} images have a zero code, which has no direction, and are left out.")
    if len(found.rows) < 2 * found.codes.shape[1]:
        said.append(
            f"RankMe of {len(found.rows)} images cannot exceed their number, and codes have {found.codes.shape[1]} "
            "features: use several times as many images before comparing it with other data."
        )
    return tuple(said)
