"""How far an attack moves the smoothed encoder: the other side of what center smoothing certifies.

The attack climbs the displacement of the mean code of a few noisy copies, the same ones throughout, which has gradients
where the centre has none. What counts is where the centre itself ends up, found at the attacked image from fresh copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from holdfast.attacks.base import Attack
from holdfast.core.balls import L2
from holdfast.core.divergences import Divergence, L2Distance
from holdfast.core.encoder import Codes, Encoder, Pixels
from holdfast.core.run_settings import Observed
from holdfast.evaluations.smoothed.center import central_sample
from holdfast.evaluations.smoothed.index import Index, Smoothing, embedding
from holdfast.evaluations.smoothed.noisy import Copies
from holdfast.objectives.away import Away
from holdfast.objectives.base import AttackContext
from holdfast.protocol.fits import Fit, whitenings
from holdfast.protocol.observation import Observation
from holdfast.protocol.population import Population

COPIES = 16
"""How many noisy copies the attack looks at."""


class MeanOfCopies(nn.Module):
    """``mean_k module(x + noise_k)``."""

    def __init__(self, module: nn.Module, noise: Tensor) -> None:
        super().__init__()
        self.module, self.noise = module, noise

    def forward(self, x: Pixels) -> Codes:
        noisy = x[:, None] + self.noise
        codes: Codes = self.module(noisy.flatten(0, 1)).unflatten(0, noisy.shape[:2])
        return codes.mean(1)


@final
@dataclass(frozen=True)
class AttackedCentres(Observation):
    """What noisy copies of each image say once it is attacked in the l2 ball of ``radius``.

    ``centre`` and ``held`` are as in ``NoisyCodes``; ``kept``: the share of copies that are nearest to their own entry.
    """

    smoothing: Smoothing
    radius: float
    divergence: Divergence
    attack: Attack
    name = "attacked-centres"
    version = 2
    uses_bank = True

    def fits(self) -> tuple[Fit[Any], ...]:
        return (*whitenings(self), self.smoothing.index)

    def rows(self, population: Population) -> list[int]:
        return population.choose(self.smoothing.samples)

    def inputs(self, population: Population) -> int:
        return 2 * self.smoothing.selection

    def forwards(self, population: Population) -> int:
        return COPIES * self.attack.forwards + self.inputs(population)

    def observe(self, population: Population, rows: Sequence[int]) -> Observed:
        pixels = self.pixels(population, rows)
        observations = [self._of_image(population, row, pixels[[k]]) for k, row in enumerate(rows)]
        return {name: torch.stack([values[name] for values in observations]) for name in observations[0]}

    def pixels(self, population: Population, rows: Sequence[int]) -> Pixels:
        """Return the attacked images at ``rows``."""
        context = population.context(rows)
        # One set of copies for all images: whoever shares a batch changes nothing.
        drawn = population.run.noise(["copies"] * COPIES)
        numbers = torch.arange(COPIES, device=context.pixels.device)
        noise = drawn[:1].fork("attack").numbered(numbers).gaussian(context.pixels.shape[1:], context.pixels.dtype)
        smoothed = mean_encoder(population.encoder, self.smoothing.sigma * noise)
        divergence = population.fitted(self.divergence if self.divergence.smooth else L2Distance())
        facing = AttackContext(smoothed, context.pixels, context.noise)
        objective = Away(divergence)(facing)
        return self.attack(smoothed, context.pixels, objective, L2(self.radius), context.noise.fork("smoothed"))

    def _of_image(self, population: Population, row: int, pixels: Pixels) -> Observed:
        embed = embedding(population, self.divergence)
        copies, count = Copies.of(population, row, self.smoothing.sigma), self.smoothing.selection
        index = Index.of(population, row, embed, self.smoothing)
        samples = embed(copies.reduced("attacked", count, lambda codes: {"codes": codes}, pixels)["codes"])
        central = central_sample(samples)
        centre = samples[central.index]

        def work(codes: Codes) -> Observed:
            points = embed(codes)
            inside = torch.linalg.vector_norm(points - centre, dim=1) <= central.radius
            return {"held": inside, "kept": index.nearer(points).all(1)}

        fresh = copies.reduced("attacked and held", count, work, pixels)
        return {"centre": centre, **{name: values.double().mean() for name, values in fresh.items()}}


def mean_encoder(encoder: Encoder, noise: Tensor) -> Encoder:
    """Return the encoder of the mean code over these noises; its weights are shared, not copied."""
    smoothed = copy(encoder)
    smoothed.module = MeanOfCopies(encoder.module, noise)
    return smoothed
