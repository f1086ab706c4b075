"""Patch retrieval: does a patch of a changed image still find itself.

Dense codes are matched patch by patch: for correspondences, tracking, retrieval of regions. With ``z_t(x)`` the token of
patch ``t``, a patch of the changed image ``x^`` finds itself among patches ``P`` if

    d(z_t(x^), z_t(x)) < d(z_t(x^), p)    for every other p in P,

where ``P`` are the patches of its image, or those of up to ``searched`` other images as well. An attacker moves all patches
at once, by ``mean over t of d(z_t(x^), z_t(x))``. The patches of one image are lost together, and so the share of them that
is found is one value of an image, of which intervals are taken over images.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, product
from typing import final

from torch import Tensor

from holdfast.attacks.base import Attack
from holdfast.attacks.presets import NAMED, label
from holdfast.core.balls import Ball, Linf
from holdfast.core.divergences import Cosine, Divergence, Tokens
from holdfast.core.records import Claim, Conditions, Findings, Question, Series
from holdfast.core.run_settings import Observed
from holdfast.core.statistics import summarise
from holdfast.core.statistics.series import series_of
from holdfast.evaluations.dense.observations import ALL, IMAGE, AttackedPatches, EditedPatches
from holdfast.protocol.evaluation import Evaluation
from holdfast.protocol.observation import Joint, entries
from holdfast.protocol.population import Population
from holdfast.protocol.sizes import Sizes
from holdfast.protocol.warnings import population_warnings
from holdfast.transforms.ladders import rungs

UNDEFINED = "codes that are not finite or have no direction, an edit that cannot change such inputs, or one patch alone"
AMONG = {"image": IMAGE, "all": ALL}


@final
@dataclass(frozen=True)
class PatchRetrieval(Evaluation):
    """How many patches of changed images still find themselves, under attack and under edits that leave them in place."""

    balls: tuple[Ball, ...] = (Linf(1 / 255), Linf(8 / 255))
    attacks: tuple[Attack, ...] = (NAMED["adaptive"],)
    divergence: Divergence = Cosine()
    edits: tuple[str, ...] = ("jpeg", "brightness", "contrast", "hue-saturation", "blur", "noise")
    searched: int = 100
    samples: int = 300
    sizes = Sizes(
        quick={"samples": 60, "attacks": ["adaptive:restarts=1"]},
        full={"samples": 1000, "searched": 300, "attacks": ["adaptive:steps=100,restarts=5"]},
        large={"attacks": ["adaptive:restarts=1,steps=10"]},
        heavy={"samples": 10},
    )
    name = "patch-retrieval"
    version = 1
    partial = True
    by_name = True
    uses_bank = True
    title = "Patch retrieval"
    meaning = (
        "The share of an image's patches whose nearest patch is still their own after a change of the image: among the "
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
        rungs(self.name, self.edits)

    def observation(self) -> Joint:
        return Joint((self._edited(), *map(self._attacked, self.balls)))

    def conclude(self, population: Population, rows: Sequence[int], observed: Observed) -> Findings:
        edited = self.observation().of(self._edited(), observed)
        among = AMONG if population.encoder.tokens > 1 else {"all": ALL}
        clean, kept, attacked = list[Series](), list[Series](), list[Series]()
        for key, where in among.items():
            clean.append(
                _series("clean_patches_found", {"among": where}, entries(edited, "clean")[key], Claim.ESTIMATE)
            )
            shares = entries(edited, "edited")[key]
            for name, span in self._families():
                conditions = {"edit": name, "among": where}
                kept.append(_series("edited_patches_found", conditions, shares[:, span].mean(1), Claim.ESTIMATE))
        for ball, attack, (key, where) in product(self.balls, self.attacks, among.items()):
            part = self._attacked(ball)
            shares = part.of_attack(attack, self.observation().of(part, observed))[key]
            conditions = {
                "ball": str(ball),
                "attack": label(attack),
                "divergence": str(self.divergence),
                "among": where,
            }
            attacked.append(_series("patches_found", conditions, shares, Claim.UPPER))
        series = (*attacked, *kept, *clean)
        return Findings(
            ids=tuple(population.images.ids[row] for row in rows),
            series=series,
            estimates=tuple(summarise(part, "mean", "higher") for part in series),
            warnings=(*population_warnings(population), *_pooled(population)),
        )

    def _edited(self) -> EditedPatches:
        return EditedPatches(rungs(self.name, self.edits), self.divergence, self.searched, self.samples)

    def _attacked(self, ball: Ball) -> AttackedPatches:
        return AttackedPatches(ball, self.attacks, self.divergence, self.searched, self.samples)

    def _families(self) -> list[tuple[str, slice]]:
        """Return each family of edits and where its rungs stand."""
        start, spans = 0, list[tuple[str, slice]]()
        for name, members in groupby(self._edited().edits, key=lambda edit: edit.name):
            end = start + len(list(members))
            spans.append((name, slice(start, end)))
            start = end
        return spans


def _series(quantity: str, conditions: Conditions, shares: Tensor, claim: Claim) -> Series:
    return series_of(quantity, conditions, shares, "share of patches", claim, "patches that find themselves", UNDEFINED)


def _pooled(population: Population) -> tuple[str, ...]:
    if population.encoder.tokens > 1:
        return ()
    return (
        f"{population.encoder.name} gives one code of an image, which is taken for its only patch; dense codes come with "
        "?tokens=patch, or from Dense(module, tokens) in Python.",
    )
