"""Mean unit embeddings of noisy copies, with confidence sequences that allow stopping at any time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.attacks.base import Attack
from holdfast.attacks.objectives.simple import Away
from holdfast.core.balls import L2
from holdfast.core.divergences import Cosine
from holdfast.core.encoder import Codes, Pixels
from holdfast.core.objective import AttackContext
from holdfast.core.run_settings import Observed
from holdfast.measure.observation import Observation, SharedSettings
from holdfast.measure.population import Population
from holdfast.smoothing.copies import COPIES, Copies, mean_encoder

# Confidence sequences: bounds of a mean that hold at every number of draws at once, so that one may stop when one
# likes.
#
# For draws in [0, 1] of mean ``m`` and bets ``l_t`` that depend on earlier draws alone, the capital ``K_t = prod_i (1
# + l_i (h_i - m))`` is a martingale, and by Ville's inequality exceeds ``1 / alpha`` ever with chance ``alpha`` at
# most. So every ``m`` at which it ever did is ruled out. Waudby-Smith and Ramdas 2023,
# https://arxiv.org/abs/2010.09686, theorem 3; bets after their equation 26, for the lower bound alone. Capital falls
# as ``m`` grows, since bets here do not depend on ``m``, so what is ruled out is all below one number.

BOLDEST = 0.99
"""The largest bet: below 1, so that no draw costs all of the capital."""
HALVINGS = 50


def least_mean(draws: Float[Tensor, "n"], alpha: float) -> float:
    """Return the lower end, with confidence ``1 - alpha`` at any stopping time, of the mean of what ``draws`` come from.

    Args:
        draws: in [0, 1], in the order in which they were drawn; independent, of one mean.
        alpha: the chance that the mean ever lies below the result, however long one goes on.

    Example:
        >>> least_mean(torch.ones(100), 0.001) > 0.92, least_mean(torch.zeros(100), 0.001)
        (True, 0.0)
    """
    draws = draws.double()
    bets = predicted_bets(draws, alpha)
    threshold, low, high = -log(alpha), 0.0, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if bool((torch.log1p(bets * (draws - middle)).cumsum(0) >= threshold).any()):
            low = middle
        else:
            high = middle
    return low


def predicted_bets(draws: Float[Tensor, "n"], alpha: float) -> Float[Tensor, "n"]:
    """Return the bet on each draw from the draws before it; less variation means larger bets."""
    count = torch.arange(1, len(draws) + 1, dtype=torch.float64, device=draws.device)
    means = (0.5 + draws.cumsum(0)) / (count + 1)
    variances = (0.25 + (draws - means).square().cumsum(0)) / (count + 1)
    before = torch.cat([variances.new_tensor([0.25]), variances[:-1]])
    bets = (2 * log(1 / alpha) / (before * count * (count + 1).log())).sqrt()
    return bets.clamp_max(BOLDEST)


# The mean unit code of noisy copies: drawn until its certificate is as good as more copies could make it.
#
# For ``h(n) = (1 + cos(f(x + n), a)) / 2`` in [0, 1], ``S(x) = E h(n)`` and ``n ~ N(0, sigma^2)``, ``Phi^-1(S)`` is
# ``1 / sigma``-Lipschitz in l2 (Salman et al. 2019, https://arxiv.org/abs/1906.04584, lemma 2). ``F``, the mean of
# unit codes, is no longer than 1, so ``cos(F(x'), a) >= <F(x'), a> = 2 S(x') - 1`` wherever that is positive.

FIRST = 128
"""Copies of the first round; each round has twice as many as all before it."""


@final
@dataclass(frozen=True)
class FeatureNoise(SharedSettings):
    """Noise and number of copies; ``copies`` is the maximum, and most images need few."""

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
    """Mean unit embedding of each image's noisy copies.

    ``anchor``: mean unit embedding of the ``selection``, scaled to norm one; ``low``: lower end of ``S`` at that anchor,
    with confidence ``1 - alpha`` at any stopping time; ``mean``: observed ``S``; ``copies``: number of copies drawn.
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
    """``similarity``: cosine of each attacked image's mean unit embedding and the clean image's anchor."""

    settings: FeatureNoise
    radius: float
    attack: Attack
    name = "attacked-unit-codes"
    version = 1

    def rows(self, population: Population) -> list[int]:
        return population.choose(self.settings.samples)

    def inputs(self, population: Population) -> int:
        return 2 * self.settings.selection

    def forward_passes(self, population: Population) -> int:
        return COPIES * self.attack.forward_passes + self.inputs(population)

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
        smoothed = mean_encoder(population.optimised, self.settings.sigma * noise)
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
    """Return embeddings of length 1 in float64; 0 for embeddings without a direction, which the certificate allows."""
    codes = codes.double()
    lengths = torch.linalg.vector_norm(codes, dim=1, keepdim=True)
    sound = codes.isfinite().all(1, keepdim=True) & lengths.isfinite() & (lengths > 0)
    return torch.where(sound, codes / lengths, 0.0)


def similarities(units: Float[Tensor, "b d"], anchor: Float[Tensor, "d"]) -> Float[Tensor, "b"]:
    """Return ``(1 + cos) / 2``, in [0, 1]."""
    return ((1 + units @ anchor) / 2).clamp(0.0, 1.0)


def mean_unit(copies: Copies, purpose: str, count: int, pixels: Pixels | None = None) -> Float[Tensor, "d"]:
    """Return the mean unit embedding over the noisy copies, of the image or of other ``pixels``."""
    return copies.reduced(purpose, count, lambda codes: {"units": unit(codes)}, pixels)["units"].mean(0)


def certified_cosine(share: Float[Tensor, "*b"], radius: float, sigma: float) -> Float[Tensor, "*b"]:
    """Return ``2 Phi(Phi^-1(S) - eps / sigma) - 1``, a lower bound of the cosine wherever it is positive.

    Example:
        >>> certified_cosine(torch.tensor([0.5, 0.99]).double(), 0.25, 0.25)
        tensor([-0.6827,  0.8153], dtype=torch.float64)
    """
    return 2 * torch.special.ndtr(torch.special.ndtri(share) - radius / sigma) - 1
