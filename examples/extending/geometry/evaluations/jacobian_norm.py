"""The Jacobian norm: how far a code moves for a small change of the pixels, whichever way it goes.

For a code of ``d`` features and directions ``v`` drawn evenly from the unit sphere (Hoffman, Roberts and Yaida 2019,
https://arxiv.org/abs/1908.02729):

    jacobian_norm(x) = |J(x)|_F,  |J(x)|_F^2 = d E_v |J(x)^T v|^2
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch.nn.functional import normalize

from holdfast.extend import (
    GRADIENT,
    Claim,
    Evaluation,
    Findings,
    LooksAt,
    Observation,
    Observed,
    Population,
    Sizes,
    population_warnings,
    series_of,
    summarise,
)


@final
@dataclass(frozen=True)
class ProjectedGradients(Observation):
    """The gradient of each code along random ``directions``, by its squared length."""

    directions: int
    samples: int
    name = "projected-gradients"
    version = 1

    def looks_at(self) -> LooksAt:
        return "encoder"

    def rows(self, population: Population) -> list[int]:
        return population.choose(self.samples)

    def forward_passes(self, population: Population) -> int:
        return self.directions * GRADIENT

    def observe(self, population: Population, rows: Sequence[int]) -> Observed:
        noise = population.run.noise([population.images.ids[row] for row in rows]).fork("direction")
        squares = []
        for k in range(self.directions):
            pixels = population.pixels(rows).requires_grad_()
            codes = population.optimised.forward(pixels)
            direction = normalize(noise.fork(k).normal(codes.shape[1:], codes.dtype), dim=1)
            (gradient,) = torch.autograd.grad((codes * direction).sum(), pixels)
            squares.append(gradient.flatten(1).square().sum(1))
        return {"squares": torch.stack(squares, 1)}


@final
@dataclass(frozen=True)
class JacobianNorm(Evaluation):
    """How steep the encoder is at each image."""

    directions: int = 10
    samples: int = 1000
    sizes = Sizes(quick={"samples": 300}, full={"samples": 10_000})
    name = "jacobian-norm"
    version = 1
    partial = True
    title = "Jacobian norm"
    meaning = "How far a code moves for a small change of the pixels, whichever way it goes, per unit of that change."
    headline = ("jacobian_norm",)
    words = (("jacobian", "Jacobian"),)

    def observation(self) -> ProjectedGradients:
        return ProjectedGradients(self.directions, self.samples)

    def conclude(self, population: Population, rows: Sequence[int], observed: Observed) -> Findings:
        norms = (observed["squares"].double().mean(1) * population.codes.shape[1]).sqrt()
        of, missing = "length of the Jacobian", "its gradient is not finite"
        series = series_of("jacobian_norm", {}, norms, "code per pixel", Claim.ESTIMATE, of, missing)
        return Findings(
            ids=tuple(population.images.ids[row] for row in rows),
            series=(series,),
            estimates=(summarise(series, "mean", "lower"),),
            warnings=population_warnings(population),
        )
