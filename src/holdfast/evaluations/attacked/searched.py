"""Who may be nearer to an attacked image than its own clean code, and how many of them are."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from holdfast.core.divergences import Divergence
from holdfast.core.points.counting import crossings
from holdfast.protocol.population import Population


class Searched:
    """The images that attacked ones may break away to: those of the bank, or else the measured ones. Copies count once."""

    def __init__(self, population: Population) -> None:
        self.population = population
        self.gallery = population.bank if population.bank_images else population
        self.originals = self.gallery.originals.to(population.codes.device)
        copies = self.originals != torch.arange(len(self.originals), device=self.originals.device)
        self.copies, self.distinct = copies if copies.any() else None, int((~copies).sum())

    @property
    def others(self) -> int:
        """How many images can be closer to an attacked one than its own; where there are none, nothing is defined."""
        return max(1, self.distinct - (self.gallery is self.population))

    @property
    def alone(self) -> bool:
        """Whether all images are copies of one, so that there is nobody to break away to."""
        return self.gallery is self.population and self.distinct < 2

    def closer(self, rows: Sequence[int], divergence: Divergence, moved: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return how many images are closer to each moved code than its own, and how many moved codes pass each of ``rows``.

        Both are floats, nan where that is undefined and for copies of another image. The latter is None where there is a
        bank: nobody passes an image that is not in it.
        """
        population, divergence = self.population, self.population.fitted(divergence)
        clean = population.codes[list(rows)]
        moved = moved.to(clean.device)
        copies = (population.originals[list(rows)] != torch.as_tensor(rows)).to(clean.device)
        defined = divergence(moved.double(), clean.double()).isfinite() & ~copies & (not self.alone)
        moved = moved.masked_fill(~defined[:, None], torch.nan)
        within = self.gallery is population
        originals = self.originals[list(rows)] if within else torch.full_like(self.originals[:1].expand(len(rows)), -1)
        counts, passed = crossings(divergence, moved, originals, self.gallery.codes, clean, self.copies)
        passed_here = passed[originals].double().masked_fill(~defined, torch.nan) if within else None
        return counts.double().masked_fill(~defined, torch.nan), passed_here
