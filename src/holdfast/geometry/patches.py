"""Patches of images that still match themselves: clean, under edits and attacked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from holdfast.attacks.adaptive import attack_together, forwards_together
from holdfast.attacks.base import Attack
from holdfast.attacks.objectives.simple import Away
from holdfast.core.balls import Ball
from holdfast.core.divergences import Divergence, Tokens
from holdfast.core.encoder import Codes, Pixels
from holdfast.core.points.counting import Kin, nearest_rows
from holdfast.core.run_settings import Observed
from holdfast.measure.observation import Observation, entries, joined, to_transform
from holdfast.measure.population import Population
from holdfast.transforms.base import Transform
from holdfast.transforms.severity import changed

IMAGE, ALL = "its image", "all images"
"""Among which patches one is looked for."""


@dataclass(frozen=True, eq=False)
class Gallery:
    """The clean patches that those of changed images are looked for among.

    A patch finds itself if its own clean code is strictly nearer than every other: copies of it, by which a constant encoder
    would pass for perfect, are as near.
    """

    population: Population
    divergence: Divergence
    images: tuple[int, ...]
    """Of the bank if there is one, else of the population."""

    @classmethod
    def of(cls, population: Population, divergence: Divergence, searched: int) -> Gallery:
        """Return the patches of up to ``searched`` random images, those of the bank if there is one."""
        source = population.bank if population.bank_images else population
        return cls(population, divergence, tuple(source.choose(searched)))

    def apart(self, codes: Codes) -> Float[Tensor, "p e"]:
        """Return the tokens of all ``codes``, image by image, in float64."""
        return codes.double().unflatten(1, (self.population.encoder.tokens, -1)).flatten(0, 1)

    def shares_found(self, moved: Codes, rows: Sequence[int]) -> Observed:
        """Return the share of patches of each of ``moved``, changed images of ``rows``, that find themselves.

        ``image``: among the patches of their image, nan where there is one alone; ``all``: among those of the others, too.
        An image whose codes are not finite, or have no direction where one is needed, has neither.
        """
        distances, home, elsewhere = self._distances(moved, rows)
        count, defined = self.population.encoder.tokens, distances.isfinite()
        return {
            "image": _shares(distances < home, defined & home.isfinite(), count),
            "all": _shares(distances < torch.minimum(home, elsewhere), defined, count),
        }

    def lost(self, moved: Codes, rows: Sequence[int]) -> Bool[Tensor, "b t"]:
        """Return which patches of each of ``moved``, changed images of ``rows``, do not find themselves among all."""
        distances, home, elsewhere = self._distances(moved, rows)
        return ~(distances < torch.minimum(home, elsewhere)).unflatten(0, (len(rows), -1))

    def _distances(
        self, moved: Codes, rows: Sequence[int]
    ) -> tuple[Float[Tensor, "p"], Float[Tensor, "p"], Float[Tensor, "p"]]:
        """Return how far each patch is from its own clean one, from the nearest other of its image, and of the others."""
        population, count = self.population, self.population.encoder.tokens
        clean = self.apart(population.codes[list(rows)])
        patches = self.apart(moved.to(clean.device))
        distances = self.divergence(patches, clean)
        home = torch.full_like(distances, torch.inf)
        for image in range(len(rows)) if count > 1 else ():
            span = slice(image * count, (image + 1) * count)
            home[span] = self._nearest(patches[span], clean[span], list(range(count)))
        return distances, home, self._nearest(patches, self._patches, self._places(rows), self._kin(rows))

    @cached_property
    def _patches(self) -> Float[Tensor, "g e"]:
        source = self.population.bank if self.population.bank_images else self.population
        return self.apart(source.codes[list(self.images)])

    def _places(self, rows: Sequence[int]) -> list[int]:
        """Return where the own clean patch of each patch of ``rows`` stands in the gallery, -1 where it does not."""
        count = self.population.encoder.tokens
        known = {} if self.population.bank_images else {row: place for place, row in enumerate(self.images)}
        return [known[row] * count + token if row in known else -1 for row in rows for token in range(count)]

    def _kin(self, rows: Sequence[int]) -> Kin | None:
        """Return the groups of the patches of ``rows`` and of the gallery, if images have groups."""
        kin, count = self.population.kin(rows), self.population.encoder.tokens
        if kin is None:
            return None
        theirs = kin.theirs[list(self.images)]
        return Kin(kin.mine.repeat_interleave(count), theirs.repeat_interleave(count))

    def _nearest(
        self, patches: Float[Tensor, "p e"], clean: Float[Tensor, "g e"], exclude: Sequence[int], kin: Kin | None = None
    ) -> Float[Tensor, "p"]:
        """Return how far the nearest of ``clean`` is from each patch; infinite where there is no other.

        The patch itself and those of its group are left out.
        """
        if len(clean) == 1 and exclude[0] >= 0:
            return torch.full((len(patches),), torch.inf, dtype=patches.dtype, device=patches.device)
        near = nearest_rows(self.divergence, patches, clean, 1, exclude, kin)[:, 0]
        distances = self.divergence(patches, clean[near])
        if kin is None:
            return distances
        return distances.masked_fill(kin.mine == kin.theirs[near], torch.inf)  # all of the gallery is of its group


def _shares(hits: Bool[Tensor, "p"], defined: Bool[Tensor, "p"], count: int) -> Float[Tensor, "b"]:
    """Return the share of each image's ``count`` patches that are ``hits``; nan if one of them is not ``defined``."""
    return hits.double().masked_fill(~defined, torch.nan).unflatten(0, (-1, count)).mean(1)


@final
@dataclass(frozen=True)
class AttackedPatches(Observation):
    """``Gallery.shares_found`` after each attack on the mean divergence of all patches.

    Entries are ``k.name`` of attack k.
    """

    ball: Ball
    attacks: tuple[Attack, ...]
    divergence: Divergence
    searched: int
    """Other images whose patches are searched."""
    samples: int
    name = "attacked-patches"
    version = 1
    uses_bank = True
    uses_groups = True

    def forward_passes(self, population: Population) -> int:
        return forwards_together(self.attacks) + len(self.attacks)

    def observe(self, population: Population, rows: Sequence[int]) -> Observed:
        gallery = Gallery.of(population, self.divergence, self.searched)
        moved = self.pixels(population, rows)
        return joined([gallery.shares_found(population.encode(pixels), rows) for pixels in moved])

    def of_attack(self, attack: Attack, observed: Observed) -> Observed:
        """Return the shares after ``attack``, from what was ``observed``."""
        return entries(observed, self.attacks.index(attack))

    def pixels(self, population: Population, rows: Sequence[int]) -> list[Pixels]:
        """Return the images at ``rows`` after each of the attacks."""
        context = population.context(rows)
        objective = Away(population.fitted(Tokens(self.divergence)))
        noise = context.noise.fork(objective.name)
        return attack_together(self.attacks, context.encoder, context.pixels, objective(context), self.ball, noise)


@final
@dataclass(frozen=True)
class EditedPatches(Observation):
    """The same of clean images, ``clean.name``, and under each edit, ``edited.name`` of shape (b, edits).

    Nan under edits that cannot change images of this encoder.
    """

    edits: tuple[Transform, ...]
    divergence: Divergence
    searched: int
    """Other images whose patches are searched."""
    samples: int
    name = "edited-patches"
    version = 1
    uses_bank = True
    uses_groups = True

    def inputs(self, population: Population) -> int:
        return max(1, len(self.edits))

    def observe(self, population: Population, rows: Sequence[int]) -> Observed:
        gallery, run = Gallery.of(population, self.divergence, self.searched), population.run
        clean = gallery.shares_found(population.codes[list(rows)], rows)
        pixels, noise = to_transform(population, rows)
        unknown = {name: torch.full_like(values, torch.nan) for name, values in clean.items()}
        shares = list[Observed]()
        for edit in self.edits:
            moved = changed(edit, pixels, noise)
            shares.append(
                unknown if moved is None else gallery.shares_found(population.encode(moved.to(run.dtype)), rows)
            )
        together = {f"edited.{name}": torch.stack([share[name] for share in shares], dim=1) for name in clean}
        return {**{f"clean.{name}": values for name, values in clean.items()}, **together}
