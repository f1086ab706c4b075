"""The mean unit code of noisy copies: drawn until its certificate is as good as more copies could make it.

For ``h(n) = (1 + cos(f(x + n), a)) / 2`` in [0, 1], ``S(x) = E h(n)`` and ``n ~ N(0, sigma^2)``, ``Phi^-1(S)`` is
``1 / sigma``-Lipschitz in l2 (Salman et al. 2019, https://arxiv.org/abs/1906.04584, lemma 2). ``F``, the mean of unit codes,
is no longer than 1, so ``cos(F(x'), a) >= <F(x'), a> = 2 S(x') - 1`` wherever that is positive.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.attacks.base import Attack
from holdfast.core.balls import L2
from holdfast.core.divergences import Cosine
from holdfast.core.encoder import Codes, Pixels
from holdfast.core.run_settings import Observed
from holdfast.evaluations.smoothed.betting import least_mean
from holdfast.evaluations.smoothed.copies import COPIES, Copies, mean_encoder
from holdfast.objectives.away import Away
from holdfast.objectives.base import AttackContext
from holdfast.protocol.observation import Observation, SharedSettings
from holdfast.protocol.population import Population

FIRST = 128
"""Copies of the first round; each round has twice as many as all before it."""


@final
@dataclass(frozen=True)
class FeatureNoise(SharedSettings):
    """How much noise and how many copies; ``copies`` are the most, of which most images need few."""

    sigma: float
    selection: int
    copies: int
    samples: int
    alpha: float
    radius: float
    precision: float


@final
@dataclass(frozen=True)
class UnitCodes(Observation):
    """What noisy copies say of each image's mean unit code.

    ``anchor``: the mean unit code of the ``selection``, made a unit; ``low``: the lower end of ``S`` at that anchor, with
    confidence ``1 - alpha`` at any stopping time; ``mean``: what was seen of it; ``copies``: how many were drawn.
    Copies are drawn until ``2 S - 1`` at ``radius`` by ``low`` is within ``precision`` of that by ``mean``.
    """

    settings: FeatureNoise
    name = "unit-codes"
    version = 1

    def rows(self, population: Population) -> list[int]:
        return population.choose(self.settings.samples)

    def inputs(self, population: Population) -> int:
        return self.settings.selection + self.settings.copies

    def observe(self, population: Population, rows: Sequence[int]) -> Observed:
        observations = [self._of_image(population, row) for row in rows]
        return {name: torch.stack([values[name] for values in observations]) for name in observations[0]}

    def _of_image(self, population: Population, row: int) -> Observed:
        settings = self.settings
        copies = Copies.of(population, row, settings.sigma)
        anchor = mean_unit(copies, "feature anchor", settings.selection)
        anchor = anchor / torch.linalg.vector_norm(anchor).clamp_min(torch.finfo(anchor.dtype).tiny)
        draws, turn = torch.zeros(0, dtype=torch.float64, device=anchor.device), 0
        low = 0.0
        while len(draws) < settings.copies:
            count = min(max(FIRST, len(draws)), settings.copies - len(draws))
            fresh = copies.reduced(
                f"feature {turn}", count, lambda codes: {"similarity": similarities(unit(codes), anchor)}
            )
            draws, turn = torch.cat([draws, fresh["similarity"]]), turn + 1
            low = least_mean(draws, settings.alpha)
            gap = certified_cosine(draws.mean(), settings.radius, settings.sigma) - certified_cosine(
                draws.new_tensor(low), settings.radius, settings.sigma
            )
            if float(gap) <= settings.precision:
                break
        return {
            "anchor": anchor,
            "low": torch.tensor(low, dtype=torch.float64),
            "mean": draws.mean(),
            "copies": torch.tensor(len(draws)),
        }


@final
@dataclass(frozen=True)
class AttackedUnitCodes(Observation):
    """``similarity``: the cosine between the mean unit code of each attacked image and the anchor of the image as it was."""

    settings: FeatureNoise
    radius: float
    attack: Attack
    name = "attacked-unit-codes"
    version = 1

    def rows(self, population: Population) -> list[int]:
        return population.choose(self.settings.samples)

    def inputs(self, population: Population) -> int:
        return 2 * self.settings.selection

    def forwards(self, population: Population) -> int:
        return COPIES * self.attack.forwards + self.inputs(population)

    def observe(self, population: Population, rows: Sequence[int]) -> Observed:
        pixels = self.pixels(population, rows)
        observed = [self._of_image(population, row, pixels[[k]]) for k, row in enumerate(rows)]
        return {"similarity": torch.stack(observed)}

    def pixels(self, population: Population, rows: Sequence[int]) -> Pixels:
        """Return the attacked images at ``rows``."""
        context = population.context(rows)
        drawn = population.run.noise(["copies"] * COPIES)
        numbers = torch.arange(COPIES, device=context.pixels.device)
        noise = (
            drawn[:1].fork("feature attack").numbered(numbers).gaussian(context.pixels.shape[1:], context.pixels.dtype)
        )
        smoothed = mean_encoder(population.arranged, self.settings.sigma * noise)
        facing = AttackContext(smoothed, context.pixels, context.noise)
        return self.attack(
            smoothed, context.pixels, Away(Cosine())(facing), L2(self.radius), context.noise.fork("feature")
        )

    def _of_image(self, population: Population, row: int, pixels: Pixels) -> Tensor:
        copies, count = Copies.of(population, row, self.settings.sigma), self.settings.selection
        anchor = mean_unit(copies, "feature anchor", count)
        moved = mean_unit(copies, "feature attacked", count, pixels)
        return torch.cosine_similarity(anchor, moved, dim=0)


def unit(codes: Codes) -> Float[Tensor, "b d"]:
    """Return codes of length 1 in float64; 0 for codes without a direction, which the certificate allows."""
    codes = codes.double()
    lengths = torch.linalg.vector_norm(codes, dim=1, keepdim=True)
    sound = codes.isfinite().all(1, keepdim=True) & lengths.isfinite() & (lengths > 0)
    return torch.where(sound, codes / lengths, 0.0)


def similarities(units: Float[Tensor, "b d"], anchor: Float[Tensor, "d"]) -> Float[Tensor, "b"]:
    """Return ``(1 + cos) / 2``, in [0, 1]."""
    return ((1 + units @ anchor) / 2).clamp(0.0, 1.0)


def mean_unit(copies: Copies, purpose: str, count: int, pixels: Pixels | None = None) -> Float[Tensor, "d"]:
    """Return the mean unit code of so many copies, of the image or of other ``pixels``."""
    return copies.reduced(purpose, count, lambda codes: {"units": unit(codes)}, pixels)["units"].mean(0)


def certified_cosine(share: Float[Tensor, "*b"], radius: float, sigma: float) -> Float[Tensor, "*b"]:
    """Return ``2 Phi(Phi^-1(S) - eps / sigma) - 1``, a lower bound of the cosine wherever it is positive.

    Example:
        >>> certified_cosine(torch.tensor([0.5, 0.99]).double(), 0.25, 0.25)
        tensor([-0.6827,  0.8153], dtype=torch.float64)
    """
    return 2 * torch.special.ndtr(torch.special.ndtri(share) - radius / sigma) - 1
