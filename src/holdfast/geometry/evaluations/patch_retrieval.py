"""Patch retrieval: whether a patch of a perturbed image still matches itself.

Dense embeddings are matched patch by patch: for correspondences, tracking, retrieval of regions. With ``z_t(x)`` the
token of patch ``t``, a patch of the perturbed image ``x^`` matches itself among patches ``P`` if

    d(z_t(x^), z_t(x)) < d(z_t(x^), p)    for every other p in P,

where ``P`` are the patches of its image, or also those of up to ``searched`` other images. An attacker moves all patches
at once, by ``mean over t of d(z_t(x^), z_t(x))``. The patches of one image are lost together, so their fraction is one
value per image, and intervals are over images.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from holdfast.attacks.adaptive import attack_together, forwards_together
from holdfast.attacks.base import Attack
from holdfast.attacks.objectives.simple import Away
from holdfast.attacks.presets import NAMED, label
from holdfast.core.balls import Ball, Linf
from holdfast.core.divergences import Cosine, Divergence, Tokens
from holdfast.core.encoder import Codes, Domain, Pixels
from holdfast.core.pictures import ends
from holdfast.core.points.counting import Kin, nearest_rows
from holdfast.core.records import Claim, Conditions, Findings, Picture, Question, Series
from holdfast.core.run_settings import Observed
from holdfast.core.statistics.summaries import series_of, summarise
from holdfast.measure.evaluation import Evaluation, Sizes
from holdfast.measure.observation import (
    Joint,
    Observation,
    entries,
    findings_of,
    joined,
    pictures_of,
    population_warnings,
    to_transform,
)
from holdfast.measure.population import Population
from holdfast.transforms.base import Transform
from holdfast.transforms.severity import changed, edits_named, families

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


UNDEFINED = (
    "embeddings that are not finite or have no direction, an edit that cannot change such inputs, or one patch alone"
)
FADED = 0.2
"""What is left of the contrast of patches that are not shown."""
AMONG = {"image": IMAGE, "all": ALL}


@final
@dataclass(frozen=True)
class PatchRetrieval(Evaluation):
    """Fraction of patches that keep their own match when their image is attacked or edited."""

    balls: tuple[Ball, ...] = (Linf(1 / 255), Linf(8 / 255))
    """Perturbation sets."""
    attacks: tuple[Attack, ...] = (NAMED["adaptive"],)
    """Attacks on the mean distance of patches."""
    divergence: Divergence = Cosine()
    """Distance between two patches; must be differentiable and have nothing to fit."""
    edits: tuple[str, ...] = ("jpeg", "brightness", "contrast", "hue-saturation", "blur", "noise")
    """Families of edits in all severities, and corruptions in severities 1, 3 and 5."""
    searched: int = 100
    """Number of other images whose patches are searched too."""
    samples: int = 300
    """Number of attacked and edited images."""
    sizes = Sizes(
        quick={"samples": 60, "attacks": ["adaptive:restarts=1"]},
        full={"samples": 1000, "searched": 300, "attacks": ["adaptive:steps=100,restarts=5"]},
        large={"attacks": ["adaptive:restarts=1,steps=10"]},
        heavy={"samples": 10},
    )
    name = "patch-retrieval"
    version = 1
    changes = "edits"
    partial = True
    by_name = True
    uses_bank = True
    title = "Patch retrieval"
    meaning = (
        "The fraction of an image's patches whose nearest patch is still their own after a change of the image: among the "
        "patches of the same image, and among those of other images, too. Attacks only show what is possible: the true "
        "share under the worst change is at most this."
    )
    headline = ("patches_found", "edited_patches_found")
    questions = (
        Question(
            place=45,
            text="Does a patch still find itself under attack?",
            quantities=("patches_found",),
            meaning="patches of attacked images whose nearest patch is their own",
        ),
        Question(
            place=115,
            text="Does a patch still find itself after an edit?",
            quantities=("edited_patches_found",),
            meaning="patches of edited images whose nearest patch is their own",
        ),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        Tokens(self.divergence)  # which says what is taken token by token
        edits_named(self.name, self.edits)

    def observation(self) -> Joint:
        return Joint((self._edited(), *map(self._attacked, self.balls)))

    def conclude(self, population: Population, rows: Sequence[int], observed: Observed) -> Findings:
        edited = self.observation().of(self._edited(), observed)
        among = AMONG if population.encoder.tokens > 1 else {"all": ALL}
        clean, kept, attacked = list[Series](), list[Series](), list[Series]()
        for key, where in among.items():
            found = entries(edited, "clean")[key]
            clean.append(_series("clean_patches_found", {"among": where}, found, Claim.ESTIMATE))
            shares = entries(edited, "edited")[key]
            for name, span in families(self._edited().edits):
                conditions = {"edit": name, "among": where}
                kept.append(_series("edited_patches_found", conditions, shares[:, span].mean(1), Claim.ESTIMATE))
        for ball, attack, (key, where) in product(self.balls, self.attacks, among.items()):
            part = self._attacked(ball)
            shares = part.of_attack(attack, self.observation().of(part, observed))[key]
            distance = str(self.divergence)
            conditions = {"ball": str(ball), "attack": label(attack), "divergence": distance, "among": where}
            attacked.append(_series("patches_found", conditions, shares, Claim.UPPER))
        series = (*attacked, *kept, *clean)
        warnings = (*population_warnings(population), *_pooled(population))
        return findings_of(population, rows, series, [summarise(part, "mean", "higher") for part in series], warnings)

    def illustrate(
        self, population: Population, rows: Sequence[int], observed: Observed, findings: Findings
    ) -> tuple[Picture, ...]:
        """Show the images that lost fewest and most patches under the last attack, and which ones."""
        ball, attack = max(self.balls, key=lambda each: each.radius), self.attacks[-1]
        conditions = {"ball": str(ball), "attack": label(attack), "among": ALL}
        found = [series for series in findings.series if series.quantity == "patches_found"]
        values = next(series.values for series in found if conditions.items() <= series.conditions.items())
        positions, domain = ends(values), population.encoder.domain
        shown = [rows[position] for position in positions]
        if not shown or len(domain.shape) != 3:
            return ()
        attacked = self._attacked(ball).pixels(population, shown)[len(self.attacks) - 1]
        lost = Gallery.of(population, self.divergence, self.searched).lost(population.encode(attacked), shown)
        parts = {"clean": population.pixels(shown), "attacked": attacked}
        if (faded := faded_outside(parts["clean"], lost, domain)) is not None:
            parts["lost patches, others faded"] = faded
        how = f"of its patches found ({ball}, {label(attack)})"
        captions = [f"{findings.ids[position]}: {values[position]:.3g} {how}" for position in positions]
        return pictures_of(captions, parts, domain)

    def _edited(self) -> EditedPatches:
        return EditedPatches(edits_named(self.name, self.edits), self.divergence, self.searched, self.samples)

    def _attacked(self, ball: Ball) -> AttackedPatches:
        return AttackedPatches(ball, self.attacks, self.divergence, self.searched, self.samples)


def faded_outside(pixels: Pixels, patches: Bool[Tensor, "b t"], domain: Domain) -> Pixels | None:
    """Return ``pixels`` with all but ``patches`` faded to mid-range; None if these are no grid over the image.

    Example:
        >>> image = torch.ones(1, 1, 2, 2)
        >>> faded_outside(image, torch.tensor([[True, False, False, False]]), Domain((1, 2, 2)))
        tensor([[[[1.0000, 0.6000],
                  [0.6000, 0.6000]]]])
    """
    height, width = domain.shape[1:]
    down = round((patches.shape[1] * height / width) ** 0.5)
    if not down or patches.shape[1] % down or down * width != patches.shape[1] // down * height:
        return None
    grid = patches.unflatten(1, (down, -1))[:, None].to(pixels)
    shown = torch.nn.functional.interpolate(grid, size=(height, width), mode="nearest")
    return pixels * (FADED + (1 - FADED) * shown) + (1 - FADED) * (1 - shown) * (domain.low + domain.high) / 2


def _series(quantity: str, conditions: Conditions, shares: Tensor, claim: Claim) -> Series:
    of = "patches that find themselves"
    return series_of(quantity, conditions, shares, "fraction of patches", claim, of, UNDEFINED)


def _pooled(population: Population) -> tuple[str, ...]:
    if population.encoder.tokens > 1:
        return ()
    return (
        f"{population.encoder.name} gives one embedding of an image, which is taken for its only patch; dense "
        "embeddings come with ?tokens=patch, or from Dense(module, tokens) in Python.",
    )
