"""Who may be nearer to an attacked image than its own clean code, and how many of them are."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from holdfast.core.divergences import Divergence
from holdfast.core.points.counting import crossings
from holdfast.protocol.population import Population


class Searched:
    """The images that attacked ones may break away to: those of the bank, or else the measured ones.

    Copies count once, and images of the own group do not count.
    """

    def __init__(self, population: Population) -> None:
        self.population = population
        self.gallery = population.gallery
        self.originals = self.gallery.originals.to(population.codes.device)
        copies = self.originals != torch.arange(len(self.originals), device=self.originals.device)
        self.copies, self.distinct = copies if copies.any() else None, int((~copies).sum())

    def others(self, rows: Sequence[int]) -> Int[Tensor, "b"]:
        """Return how many images can be closer to each attacked one than its own; 1 where nothing is defined."""
        kin, device = self.population.kin(rows), self.population.codes.device
        own = torch.full((len(rows),), int(self.gallery is self.population), device=device)
        if kin is not None:
            distinct = kin.theirs if self.copies is None else kin.theirs[~self.copies]
            sizes = distinct.bincount(minlength=int(max(kin.mine.max(), kin.theirs.max())) + 1)
            own = sizes[kin.mine]
        return (self.distinct - own).clamp_min(1)

    @property
    def alone(self) -> bool:
        """Whether all images are copies of one, so that there is nobody to break away to."""
        return self.gallery is self.population and self.distinct < 2

    def closer(self, rows: Sequence[int], divergence: Divergence, moved: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return how many images are closer to each moved code than its own, and how many moved codes pass each of ``rows``.

        Both are floats, nan where that is undefined and for copies of another image. The latter is None where there is a
        bank, which does not hold these images. With groups, it is scaled as if all ``rows`` could pass each image.
        """
        population, divergence = self.population, self.population.fitted(divergence)
        clean = population.codes[list(rows)]
        moved = moved.to(clean.device)
        copies = (population.originals[list(rows)] != torch.as_tensor(rows)).to(clean.device)
        defined = divergence(moved.double(), clean.double()).isfinite() & ~copies & (not self.alone)
        kin = population.kin(rows)
        moved = moved.masked_fill(~defined[:, None], torch.nan)
        within = self.gallery is population
        originals = self.originals[list(rows)] if within else torch.full_like(self.originals[:1].expand(len(rows)), -1)
        counts, passed = crossings(divergence, moved, originals, self.gallery.codes, clean, self.copies, kin)
        counts = counts.double().masked_fill(~defined, torch.nan)
        if not within:
            return counts, None
        passed_here = passed[originals].double().masked_fill(~defined, torch.nan)
        if kin is not None:
            sizes = kin.mine[defined].bincount(minlength=len(kin.theirs))
            passed_here *= (int(defined.sum()) - 1) / (int(defined.sum()) - sizes[kin.mine]).clamp_min(1)
        return counts, passed_here
