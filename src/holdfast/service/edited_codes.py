"""Embeddings of edited images (measured or reference) and of images attacked for a match."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch

from holdfast.attacks.base import Attack
from holdfast.attacks.objectives.simple import Away, Toward
from holdfast.core.balls import Ball
from holdfast.core.divergences import Cosine
from holdfast.core.errors import OutOfRange
from holdfast.core.run_settings import Observed
from holdfast.measure.observation import Observation
from holdfast.measure.population import LooksAt, Population
from holdfast.service.drift_findings import Compared
from holdfast.service.false_matches import halves
from holdfast.transforms.base import Transform
from holdfast.transforms.severity import changed


@final
@dataclass(frozen=True)
class EditedImages(Observation):
    """Embeddings of images under each edit, shape (b, edits, d); nan if an edit cannot apply."""

    edits: tuple[Transform, ...]
    """Edits to apply."""
    samples: int
    """Images to edit, chosen at random."""
    name = "edited-images"
    version = 1

    def looks_at(self) -> LooksAt:
        return "encoder" if self.edits else "codes"

    def rows(self, population: Population) -> list[int]:
        return sorted(rivals(population, self.samples)) if self.edits else []

    def inputs(self, population: Population) -> int:
        return max(1, len(self.edits))

    def observe(self, population: Population, rows: Sequence[int]) -> Observed:
        return edited(population, rows, self.edits)


@final
@dataclass(frozen=True)
class EditedBank(Observation):
    """Embeddings of reference images under each edit; nan unless drift is shown.

    Edits may only explain a change, and there is none to explain on most days.
    """

    edits: tuple[Transform, ...]
    """Edits to apply."""
    samples: int
    """Images of the reference set to edit."""
    comparison: Compared
    """Comparison that decides whether drift is shown."""
    alpha: float
    """Significance level, 0 to 1."""
    sequential: bool
    """True for the test that is valid after every image."""
    name = "edited-bank"
    version = 1
    uses_bank = True

    def looks_at(self) -> LooksAt:
        return "encoder" if self.edits else "codes"

    def rows(self, population: Population) -> list[int]:
        return population.bank.choose(self.samples) if self.edits else []

    def ids(self, population: Population) -> tuple[str, ...]:
        return population.bank.images.ids

    def fits(self) -> tuple[Compared]:
        return (self.comparison,)

    def inputs(self, population: Population) -> int:
        return max(1, len(self.edits))

    def observe(self, population: Population, rows: Sequence[int]) -> Observed:
        if population.learned(self.comparison).verdict(self.alpha, self.sequential).status != "refuted":
            shape = len(rows), len(self.edits), population.codes.shape[1]
            return {"codes": torch.full(shape, torch.nan, dtype=population.codes.dtype)}
        return edited(population.bank, rows, self.edits)


@final
@dataclass(frozen=True)
class AttackedMatches(Observation):
    """Embeddings of images attacked away from themselves and towards another image."""

    ball: Ball
    """Perturbation set."""
    attack: Attack
    """Attack to run."""
    samples: int
    """Images to attack, chosen at random; 1 or more."""
    name = "attacked-matches"
    version = 1
    uses_groups = True

    def rows(self, population: Population) -> list[int]:
        return sorted(rivals(population, self.samples))

    def forward_passes(self, population: Population) -> int:
        return 2 * (self.attack.forward_passes + 1)

    def observe(self, population: Population, rows: Sequence[int]) -> Observed:
        other = rivals(population, self.samples)
        context = population.context(rows, [other[row] for row in rows])
        moved = {}
        for objective in (Away(Cosine()), Toward(Cosine())):
            noise = context.noise.fork(objective.name)
            pixels = self.attack(context.encoder, context.pixels, objective(context), self.ball, noise)
            moved[objective.name] = population.encode(pixels).cpu()
        return moved


def rivals(population: Population, count: int) -> dict[int, int]:
    """Images that measure thresholds, each with one of another group that chooses them.

    No image is in two of the pairs.

    Args:
        population: Images of the run with their clean embeddings.
        count: Largest number of pairs, 1 or more.
    """
    if count < 1:
        raise OutOfRange("the number of samples", count, "at least 1")
    measuring, choosing = halves(population)
    return dict(list(zip(measuring, choosing, strict=False))[:count])


def edited(population: Population, rows: Sequence[int], edits: Sequence[Transform]) -> Observed:
    """Embeddings of the images at ``rows`` under each edit.

    Args:
        population: Images of the run with their clean embeddings.
        rows: Rows of the population.
        edits: Edits to apply.

    Returns:
        ``codes``, shape (b, edits, d).
    """
    run, clean = population.run, population.codes[list(rows)].cpu()
    # Interpolation and Fourier transforms want more digits than half precision has.
    precise = torch.promote_types(run.dtype, torch.float32)
    pixels = population.images.pixels(rows, run.device, precise, population.encoder.domain)
    noise = run.noise([population.images.ids[row] for row in rows])
    codes = torch.full((len(rows), len(edits), clean.shape[1]), torch.nan, dtype=clean.dtype)
    for index, edit in enumerate(edits):
        if (moved := changed(edit, pixels, noise)) is not None:
            codes[:, index] = population.encode(moved.to(run.dtype)).cpu()
    return {"codes": codes}
