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
from itertools import product
from typing import final

import torch
from jaxtyping import Bool
from torch import Tensor

from holdfast.attacks.base import Attack
from holdfast.attacks.presets import NAMED, label
from holdfast.core.balls import Ball, Linf
from holdfast.core.divergences import Cosine, Divergence, Tokens
from holdfast.core.encoder import Domain, Pixels
from holdfast.core.pictures import ends
from holdfast.core.records import Claim, Conditions, Findings, Picture, Question, Series
from holdfast.core.run_settings import Observed
from holdfast.core.statistics.summaries import series_of, summarise
from holdfast.geometry.patches import ALL, IMAGE, AttackedPatches, EditedPatches, Gallery
from holdfast.measure.evaluation import Evaluation, Sizes
from holdfast.measure.observation import Joint, entries, findings_of, pictures_of, population_warnings
from holdfast.measure.population import Population
from holdfast.transforms.severity import edits_named, families

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
        "embeddings come with "
        "?tokens=patch, or from Dense(module, tokens) in Python.",
    )
