"""Codes and activation maps of transformed views of images, and the lengths of clean codes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.core.encoder import Pixels
from holdfast.core.errors import HoldfastError
from holdfast.core.run_settings import Observed
from holdfast.evaluations.geometry.activation_maps import gradcam
from holdfast.evaluations.geometry.sphere import distinct
from holdfast.protocol.fits import LooksAt
from holdfast.protocol.observation import Observation
from holdfast.protocol.population import Population
from holdfast.transforms.base import Transform


def changed(population: Population, rows: Sequence[int], transform: Transform, view: int = 0) -> Pixels:
    """Return the images at ``rows`` changed by ``transform``; each ``view`` has draws of its own.

    Raises:
        HoldfastError: the encoder takes no images in [0, 1].
    """
    domain = population.encoder.domain
    if (domain.low, domain.high) != (0, 1):
        raise HoldfastError(
            f"{transform} changes images in [0, 1], but {population.encoder.name} takes [{domain.low:g}, {domain.high:g}]; "
            "put the scaling into the encoder"
        )
    noise = population.run.noise([population.images.ids[row] for row in rows]).fork("view", view)
    return transform(population.pixels(rows), noise)


@final
@dataclass(frozen=True)
class Views(Observation):
    """The codes of each image's ``views``, in their order."""

    views: tuple[Transform, ...]
    samples: int
    name = "views"
    version = 1

    def rows(self, population: Population) -> list[int]:
        return sorted(distinct(population, self.samples))

    def observe(self, population: Population, rows: Sequence[int]) -> Observed:
        codes: list[Float[Tensor, "b d"]] = [
            population.encode(changed(population, rows, transform, view)) for view, transform in enumerate(self.views)
        ]
        return {"codes": torch.stack(codes, dim=1).cpu()}

    def inputs(self, population: Population) -> int:
        return len(self.views)


@final
@dataclass(frozen=True)
class Lengths(Observation):
    """The Euclidean length of each code."""

    samples: int
    name = "code-lengths"
    version = 1

    def looks_at(self) -> LooksAt:
        return "codes"

    def rows(self, population: Population) -> list[int]:
        return sorted(distinct(population, self.samples))

    def observe(self, population: Population, rows: Sequence[int]) -> Observed:
        return {"length": torch.linalg.vector_norm(population.codes[list(rows)].double(), dim=1).cpu()}


@final
@dataclass(frozen=True)
class Maps(Observation):
    """The maps of each image and of its changed version."""

    change: Transform
    samples: int
    name = "grad-cam-maps"
    version = 2

    def rows(self, population: Population) -> list[int]:
        return population.choose(self.samples)

    def observe(self, population: Population, rows: Sequence[int]) -> Observed:
        clean, towards = population.pixels(rows), population.codes[list(rows)]
        pixels = {"clean": clean, "changed": changed(population, rows, self.change)}
        return {name: gradcam(population.encoder, image, towards).cpu() for name, image in pixels.items()}

    def inputs(self, population: Population) -> int:
        return 6  # two forwards and two backwards, each as long as two
