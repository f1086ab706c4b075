"""Attacked images with their records, as ``holdfast attack`` saves them.

The observation makes the images; the records hold numbers per image and whether the saved pixels keep the rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from holdfast.attacks.attacked_codes import attacked_pixels
from holdfast.attacks.base import Attack
from holdfast.attacks.black_box import SquareAttack
from holdfast.attacks.presets import PRESETS, Preset
from holdfast.core.balls import Ball
from holdfast.core.divergences import L2Distance
from holdfast.core.encoder import Codes, Pixels
from holdfast.core.errors import HoldfastError
from holdfast.core.objective import DivergenceObjective, Objective
from holdfast.core.records import SCHEMA_VERSION, EncoderInfo, ImagesInfo, Number, Record
from holdfast.core.run_settings import Observed
from holdfast.measure.observation import Observation
from holdfast.measure.population import Population


class MovedImage(Record):
    """What the attack did to one image (or to one view of it)."""

    id: str
    target: str | None
    clean_gain: Number
    """The objective at the clean image."""
    gain: Number
    """The objective at the attacked image."""
    norm: Number
    """The size of the perturbation, in the norm of the ball."""
    l2: Number
    """How far the code moved."""
    cosine: Number
    png: str | None
    l2_of_png: Number | None
    """How far the code of the PNG file is from the clean one: rounding to 256 levels may undo an attack or help it."""
    norm_of_png: Number | None = None
    """The size of the perturbation in the PNG file."""
    png_in_ball: bool | None = None
    """Whether rounding leaves the image in its ball."""
    png_is_clean: bool | None = None
    """Whether the PNG file is that of the clean image: rounding has undone all of the change."""


class Replay(Record):
    """The saved pixels, read back and encoded once more."""

    in_range: bool
    in_ball: bool
    largest_norm: Number
    code_difference: Number
    """The largest difference to the saved codes, as a share of the largest code."""
    same_codes: bool
    """Whether that is no more than rounding."""

    @property
    def passed(self) -> bool:
        return self.in_range and self.in_ball and self.same_codes


class AttackRecord(Record):
    """Everything about an attack but the pixels."""

    schema_version: int = SCHEMA_VERSION
    encoder: EncoderInfo
    images: ImagesInfo
    settings: dict[str, str]
    batch_sizes: tuple[int, ...] | None
    """For an objective that looks at whole batches: how large they were, for that changes the result."""
    clean_distance: Number
    """The median l2 distance of two clean codes, with which displacements compare; nan of a single image."""
    moved: tuple[MovedImage, ...]
    missing: int = 0
    """How many images were not attacked yet, because a budget was spent."""
    replay: Replay
    provenance: dict[str, str]


NEAREST = 10
"""How many nearest other images an objective against neighbours faces, as in breakaway's own attack."""
RANDOM = 256
"""How many random other images an objective against a queue faces."""


@dataclass(frozen=True)
class Adversarial:
    """Attacked inputs by row: one per image, or one per view where an objective sets two views of it against each other.

    The rows of one image follow each other.
    """

    rows: Int[Tensor, "n"]
    """Which image of the population each row shows."""
    ids: tuple[str, ...]
    clean: Pixels
    attacked: Pixels
    clean_codes: Codes
    codes: Codes
    clean_gain: Float[Tensor, "n"]
    gain: Float[Tensor, "n"]
    targets: tuple[int, ...] | None
    """The image that each row was moved towards."""
    batches: tuple[int, ...]
    """The sizes of the batches they were attacked in, which change the result of an objective that is not per sample."""
    views: int = 1
    """How many rows each image has."""
    missing: int = 0
    """How many images were not attacked yet, because a budget was spent."""
    record: AttackRecord | None = None
    """What was written of them, where a folder was named for it."""


@final
@dataclass(frozen=True)
class AdversarialImages(Observation):
    """Attacked images with everything that is kept of them; an objective's own preset says which views it needs.

    Clean pixels are kept where they are views alone: images themselves can be read again, and are checked then.
    """

    objective: Objective
    attack: Attack
    ball: Ball
    batch: int | None = None
    """How many images are attacked together, for an objective that looks at whole batches: a row is then a batch.

    Batches are cut by position, so that neither shards nor interruptions change them.
    """
    name = "adversarial"
    version = 2
    uses_groups = True

    @classmethod
    def of(cls, preset: Preset, population: Population) -> AdversarialImages:
        """Return what ``preset`` asks for of all images of ``population``.

        Raises:
            HoldfastError: the objective, the attack and the images do not fit together.
        """
        objective, run = preset.objective, population.run
        require_climbable(objective, preset.attack)
        batch = None if objective.per_sample else even(len(population.images), run.batch_size)
        return cls(objective, preset.attack, preset.ball, batch)

    def rows(self, population: Population) -> list[int]:
        return list(range(len(self.ids(population))))

    def ids(self, population: Population) -> tuple[str, ...]:
        if self.batch is None:
            return population.images.ids
        return tuple(f"batch {k}" for k in range(ceil(len(population.images) / self.batch)))

    def inputs(self, population: Population) -> int:
        return self.batch or 1

    def images(self, population: Population, row: int) -> list[int]:
        """Return which images are attacked together as ``row``."""
        start = row * (self.batch or 1)
        return list(range(start, min(start + (self.batch or 1), len(population.images))))

    def observe(self, population: Population, rows: Sequence[int]) -> Observed:
        if self.batch is None:
            return {name: values[:, None] for name, values in self._attack(population, rows).items()}
        groups = (self.images(population, row) for row in rows)
        batches = [population.run.batches(group, lambda part: self._attack(population, part)) for group in groups]
        return {name: torch.stack([_padded(values[name], self.batch) for values in batches]) for name in batches[0]}

    def _attack(self, population: Population, images: Sequence[int]) -> Observed:
        """Return tensors of shape (b, views, ...), but how many were attacked together as (b,)."""
        objective = self.objective
        if isinstance(objective, DivergenceObjective):
            objective = replace(objective, divergence=population.fitted(objective.divergence))
        targets = population.partners[list(images)].tolist() if objective.targeted else None
        context = population.context(images, targets, rivals_of(population, images, objective))
        prepare = next((preset.prepare for preset in PRESETS.values() if preset.objective.name == objective.name), None)
        context = prepare(context) if prepare else context
        moved = attacked_pixels(context, objective, self.attack, self.ball)
        codes, gain_of = population.encode(moved), objective(context)
        with torch.no_grad():
            clean_gain, gain = gain_of(context.codes), gain_of(codes)
        tensors = {
            **({"clean": context.pixels} if prepare else {}),
            "attacked": moved,
            "clean_codes": context.codes,
            "codes": codes,
            "clean_gain": clean_gain,
            "gain": gain,
        }
        # Views come one after the other, all images each: (views * b, ...) becomes (b, views, ...).
        by_image = {
            name: values.unflatten(0, (-1, len(images))).transpose(0, 1).cpu() for name, values in tensors.items()
        }
        return {**by_image, "together": torch.full((len(images),), len(images))}


def _padded(values: Tensor, count: int) -> Tensor:
    """Return ``values`` with zeros up to ``count`` entries, for the last batch may be smaller."""
    return torch.cat([values, values.new_zeros(count - len(values), *values.shape[1:])])


def adversarial(
    population: Population, observation: AdversarialImages, rows: Sequence[int], observed: Observed
) -> Adversarial:
    """Return what was ``observed`` of ``rows`` as one entry per image or view."""
    if not rows:  # as the first of several ranks knows alone
        nothing = torch.empty(0)
        pixels, codes = torch.empty(0, *population.encoder.domain.shape), torch.empty(0, 0)
        shown = (pixels, pixels, codes, codes, nothing, nothing)
        return Adversarial(nothing.long(), (), *shown, None, (), missing=len(population.images))
    images = [image for row in rows for image in observation.images(population, row)]
    real = observed["together"] > 0  # the rest is padding
    values_of_rows = {name: values[real] for name, values in observed.items()}
    together, views = values_of_rows.pop("together"), values_of_rows["codes"].shape[1]
    if "clean" not in values_of_rows:
        values_of_rows["clean"] = population.pixels(images).cpu()[:, None]
    names = [population.images.ids[image] for image in images]
    repeated = torch.tensor(images).repeat_interleave(views)
    return Adversarial(
        rows=repeated,
        ids=tuple(name if views == 1 else f"{name} view {view + 1}" for name in names for view in range(views)),
        targets=tuple(population.partners[repeated].tolist()) if observation.objective.targeted else None,
        batches=tuple(sorted(set(together.tolist()))),
        views=views,
        missing=len(population.images) - len(images),
        record=None,
        **{name: values.flatten(0, 1) for name, values in values_of_rows.items()},
    )


def require_climbable(objective: Objective, attack: Attack) -> None:
    """Raise if ``attack`` follows gradients and ``objective`` measures with a divergence that has none."""
    if not isinstance(objective, DivergenceObjective) or isinstance(attack, SquareAttack):
        return
    if not objective.divergence.smooth:
        raise HoldfastError(
            f"the divergence {objective.divergence} has no gradient for {attack.name} to climb; "
            f"use --attack square, or --divergence {L2Distance.name}"
        )


def rivals_of(population: Population, rows: Sequence[int], objective: Objective) -> Float[Tensor, "b k d"] | None:
    """Return the codes of the other images that ``objective`` sets those at ``rows`` against, if it does."""
    if objective.rivals == "none":
        return None
    others = len(population.images) - 1
    if others < 1:
        raise HoldfastError(
            f"the objective {objective.name} needs the embeddings of other images, but there is one; add images"
        )
    if objective.rivals == "nearest":
        divergence = objective.divergence if isinstance(objective, DivergenceObjective) else L2Distance()
        neighbours = population.nearest(divergence, population.codes[list(rows)], rows, NEAREST, population)
    else:
        neighbours = population.others(rows, RANDOM)
    return population.codes[neighbours]


def even(count: int, size: int) -> int:
    """Return a batch size of at most ``size`` at which no batch of ``count`` images is much smaller than the others.

    Example:
        >>> even(257, 256), even(100, 256)
        (129, 100)
    """
    return ceil(count / ceil(count / size))
