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
from holdfast.attacks.presets import PRESETS, Preset, rivals_of
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
    """Id of the image."""
    target: str | None
    """Id of the image that the attack aims at; None if untargeted."""
    clean_gain: Number
    """Objective at the clean image."""
    gain: Number
    """Objective at the attacked image."""
    norm: Number
    """Size of the perturbation in the norm of the ball, in pixel units."""
    l2: Number
    """ℓ2 distance between the clean and the attacked embedding."""
    cosine: Number
    """Cosine distance between the clean and the attacked embedding."""
    png: str | None
    """Name of the PNG file of the attacked image; None if none was written."""
    l2_of_png: Number | None
    """ℓ2 distance between the embedding of the PNG file and the clean one; rounding to 256 levels may weaken or
    strengthen an attack."""
    norm_of_png: Number | None = None
    """Size of the perturbation in the PNG file, in pixel units."""
    png_in_ball: bool | None = None
    """True if the rounded image lies in its ball."""
    png_is_clean: bool | None = None
    """True if rounding undoes the whole perturbation."""


class Replay(Record):
    """The saved pixels, read back and encoded once more."""

    in_range: bool
    """True if all saved pixels lie in the range of the domain."""
    in_ball: bool
    """True if every saved image lies in its ball."""
    largest_norm: Number
    """Largest perturbation, in the norm of the ball and in pixel units."""
    code_difference: Number
    """Largest difference from the saved embeddings, relative to the largest entry of an embedding."""
    same_codes: bool
    """True if ``code_difference`` is no more than rounding."""

    @property
    def passed(self) -> bool:
        return self.in_range and self.in_ball and self.same_codes


class AttackRecord(Record):
    """Everything about an attack except the pixels."""

    schema_version: int = SCHEMA_VERSION
    """Version of the file format."""
    encoder: EncoderInfo
    """Encoder under attack."""
    images: ImagesInfo
    """Images under attack."""
    settings: dict[str, str]
    """Settings of the attack in text form."""
    batch_sizes: tuple[int, ...] | None
    """Batch sizes, where the objective reads whole batches and so depends on batch size; None otherwise."""
    clean_distance: Number
    """Median ℓ2 distance between two clean embeddings; nan for a single image."""
    moved: tuple[MovedImage, ...]
    """One entry per attacked image or view."""
    missing: int = 0
    """Images not attacked because the time budget ran out."""
    replay: Replay
    """Check of the saved pixels."""
    provenance: dict[str, str]
    """Versions, commit, device and times."""


@dataclass(frozen=True)
class Adversarial:
    """Attacked images with their embeddings, one row per image or per view.

    Objectives that compare two views of an image have one row per view. The rows of one image follow each other.
    """

    rows: Int[Tensor, "n"]
    """Row of the population that each entry shows, shape (n,)."""
    ids: tuple[str, ...]
    """Id of the image of each entry."""
    clean: Pixels
    """Clean images, shape (n, *pixels)."""
    attacked: Pixels
    """Attacked images, shape (n, *pixels)."""
    clean_codes: Codes
    """Embeddings of the clean images, shape (n, d)."""
    codes: Codes
    """Embeddings of the attacked images, shape (n, d)."""
    clean_gain: Float[Tensor, "n"]
    """Objective at the clean images, shape (n,)."""
    gain: Float[Tensor, "n"]
    """Objective at the attacked images, shape (n,)."""
    targets: tuple[int, ...] | None
    """Row of the image that each entry aims at; None if untargeted."""
    batches: tuple[int, ...]
    """Batch sizes of the attack; they change the result if the objective is not per sample."""
    views: int = 1
    """Rows per image."""
    missing: int = 0
    """Images not attacked because the time budget ran out."""
    record: AttackRecord | None = None
    """Record written to the folder of the attack; None if no folder was named."""


@final
@dataclass(frozen=True)
class AdversarialImages(Observation):
    """Attacked images with all that is saved of them; the preset decides which views it needs.

    Clean pixels are kept only for views. Images themselves can be read again, and are checked then.
    """

    objective: Objective
    """Objective to maximise."""
    attack: Attack
    """Attack to run."""
    ball: Ball
    """Perturbation set around each image."""
    batch: int | None = None
    """Images attacked together, for an objective that reads whole batches; a row is then a batch. Batches are cut by
    position, so that shards and interruptions do not change a batch."""
    name = "adversarial"
    version = 2
    uses_groups = True

    @classmethod
    def of(cls, preset: Preset, population: Population) -> AdversarialImages:
        """Build the observation that ``preset`` needs for all images of ``population``.

        Raises:
            HoldfastError: The objective, the attack and the images do not fit together.
        """
        objective, run = preset.objective, population.run
        check_differentiable(objective, preset.attack)
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
        """Images that are attacked together as ``row``.

        Args:
            row: Row of the observation: an image, or a batch if ``batch`` is set.

        Returns:
            Rows of the population.
        """
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
        by_image = {name: each.unflatten(0, (-1, len(images))).transpose(0, 1).cpu() for name, each in tensors.items()}
        return {**by_image, "together": torch.full((len(images),), len(images))}


def _padded(values: Tensor, count: int) -> Tensor:
    """Return ``values`` with zeros up to ``count`` entries, because the last batch may be smaller."""
    return torch.cat([values, values.new_zeros(count - len(values), *values.shape[1:])])


def adversarial(
    population: Population, observation: AdversarialImages, rows: Sequence[int], observed: Observed
) -> Adversarial:
    """Turn what was ``observed`` into one entry per image or view."""
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


def check_differentiable(objective: Objective, attack: Attack) -> None:
    """Check that a gradient attack has an objective with a gradient.

    Raises:
        HoldfastError: ``attack`` follows gradients, but the divergence of ``objective`` has none.
    """
    if not isinstance(objective, DivergenceObjective) or isinstance(attack, SquareAttack):
        return
    if not objective.divergence.smooth:
        raise HoldfastError(
            f"the divergence {objective.divergence} has no gradient for {attack.name} to climb; "
            f"use --attack square, or --divergence {L2Distance.name}"
        )


def even(count: int, size: int) -> int:
    """Largest batch size up to ``size`` that splits the images into nearly equal batches.

    Args:
        count: Images, 1 or more.
        size: Largest batch size, 1 or more.

    Example:
        >>> even(257, 256), even(100, 256)
        (129, 100)
    """
    return ceil(count / ceil(count / size))
