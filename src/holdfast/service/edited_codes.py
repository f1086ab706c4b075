"""Embeddings of edited images (measured or reference) and of images attacked to lose or gain a match.

The closest edit is the everyday edit that brings the embeddings of reference images closest to the new ones:

    (E(A', B) - E(t(A'), B)) / E(A, B)     with energy distances E

This is 1 if the edit ``t`` turns one distribution into the other, 0 if it has no such effect, and negative if it leads away.
``A'`` are the few images of A that are edited. Both distances of the numerator use the same ``A'``, so the choice of these
images nearly cancels; the denominator uses all images.

The fraction exists only if the change differs from random variation, because any number is a fraction of about zero. The
closest edit depends on the numerators alone, so it is named even without a fraction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import nan
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.attacks.base import Attack
from holdfast.attacks.objectives.simple import Away, Toward
from holdfast.core.balls import Ball
from holdfast.core.divergences import Cosine
from holdfast.core.errors import OutOfRange
from holdfast.core.records import Estimate
from holdfast.core.run_settings import Observed
from holdfast.measure.observation import Observation, estimate_of, to_transform
from holdfast.measure.population import LooksAt, Population
from holdfast.service.drift_findings import Compared, Comparison
from holdfast.service.energy import FEWEST, Linearised, ratio_interval, taken_away
from holdfast.service.false_matches import halves
from holdfast.transforms.base import Transform
from holdfast.transforms.severity import changed, families


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
        count: Largest number of pairs, 1 or more.
    """
    if count < 1:
        raise OutOfRange("the number of samples", count, "at least 1")
    measuring, choosing = halves(population)
    return dict(list(zip(measuring, choosing, strict=False))[:count])


def edited(population: Population, rows: Sequence[int], edits: Sequence[Transform]) -> Observed:
    """Embeddings of the images at ``rows`` under each edit.

    Returns:
        ``codes``, shape (b, edits, d).
    """
    run, clean = population.run, population.codes[list(rows)].cpu()
    pixels, noise = to_transform(population, rows)
    codes = torch.full((len(rows), len(edits), clean.shape[1]), torch.nan, dtype=clean.dtype)
    for index, edit in enumerate(edits):
        if (moved := changed(edit, pixels, noise)) is not None:
            codes[:, index] = population.encode(moved.to(run.dtype)).cpu()
    return {"codes": codes}


Share = tuple[float, float, float]
"""A fraction of the change, and its interval."""
NOT_SHOWN = "no difference was shown that an edit could explain"
NO_DISTANCE = "the energy distance of both sets is not told from chance, so there is no fraction of it to explain"
TOO_FEW = f"fewer than {FEWEST} images before, or groups of them, were edited"
INAPPLICABLE = "it cannot change inputs of this encoder"
CHANCE = "; above 100% by chance, which no edit can be, and printed as 100%"
TAIL = 0.025
"""Chance of either side of an interval of 95%."""


def explained(
    edited: Float[Tensor, "k e d"], rows: Sequence[int], comparison: Comparison, edits: Sequence[Transform], shown: bool
) -> tuple[tuple[Estimate, ...], dict[str, str]]:
    """Return the fraction of the change that each family of edits explains at its best strength, and the closest edit.

    Args:
        edited: points of images before under each edit.
        rows: of these images among those before.
        comparison: of both sets.
        edits: those of ``edited``.
        shown: whether there is a change to explain.
    """
    spans = families(edits)
    shares = Shares.of(comparison, rows, max((span.stop - span.start for _, span in spans), default=1))
    reason = shares.why_none(shown)
    estimates, closest = list[Estimate](), dict[str, float]()
    for family_name, span in spans:
        points, family = edited[:, span], edits[span]
        comparable = shown and len(rows) >= FEWEST
        applicable = [k for k in range(len(family)) if comparable and points[:, k].isfinite().all()]
        if applicable:
            parts = shares.taken_away(points[:, applicable])
            best = max(range(len(parts)), key=lambda k: parts[k].value)
            name = str(family[applicable[best]])
            closest[name] = parts[best].value
            share = None if reason else shares.of_change(parts, parts[best])
            estimates.append(_estimate(name, share, len(rows), reason))
        else:
            estimates.append(_estimate(family_name, None, len(rows), reason or INAPPLICABLE))
    return tuple(estimates), _closest(closest, estimates)


@dataclass(frozen=True)
class Shares:
    """Fractions of the change that edits of few images explain, with their error."""

    comparison: Comparison
    rows: list[int]
    """The images edited."""
    independent: int
    """Number of them; a group counts once."""
    deviations: float
    """Standard errors of a one-sided bound ..."""
    together: float
    """... and of one that holds for all edits of a family at once (Bonferroni), and so for the best of them by chance."""

    @classmethod
    def of(cls, comparison: Comparison, rows: Sequence[int], largest_family: int) -> Shares:
        from scipy.special import stdtrit

        independent = len(comparison.sets.clusters[list(rows)].unique())
        ends = (float(stdtrit(max(1, independent - 1), 1 - TAIL / count)) for count in (1, largest_family))
        return cls(comparison, list(rows), independent, *ends)

    def why_none(self, shown: bool) -> str | None:
        """Return why there is no share of the change, if there is none."""
        if not shown:
            return NOT_SHOWN
        if self.independent < FEWEST:
            return TOO_FEW
        distance, clusters = self.comparison.distance, self.comparison.sets.clusters
        told = self.comparison.distance_shown and distance.value > self.together * distance.deviation(clusters)
        return None if told else NO_DISTANCE

    def taken_away(self, family: Float[Tensor, "k e d"]) -> list[Linearised]:
        """Return the reduction of the distance by each edit of a family."""
        sets = self.comparison.sets
        before, after = sets.points.split([len(sets.before), len(sets.after)])
        return [
            taken_away(before, sets.framed(edited), torch.tensor(self.rows), after, sets.copies)
            for edited in family.unbind(dim=1)
        ]

    def of_change(self, parts: Sequence[Linearised], best: Linearised) -> Share:
        """Return the fraction of the change that the best of a family takes away."""
        whole, clusters = self.comparison.distance, self.comparison.sets.clusters
        low = max(ratio_interval(part, whole, clusters, self.together)[0] for part in parts)
        high = max(ratio_interval(part, whole, clusters, self.deviations)[1] for part in parts)
        return best.value / whole.value, low, high


def _closest(taken: Mapping[str, float], estimates: Sequence[Estimate]) -> dict[str, str]:
    """Return the edit that takes most away, and its share of the change or why it has none, as a verdict names them."""
    closest = max(taken, key=lambda edit: taken[edit], default=None)
    if closest is None:
        return {}
    if taken[closest] <= 0:
        return {"closest edit": "none of those tried comes closer"}
    share = next(estimate for estimate in estimates if estimate.conditions["edit"] == closest)
    known = share.value == share.value
    return {
        "closest edit": closest,
        "explains of the change": f"{share.value:.0%} ({share.low:.0%} to {share.high:.0%})" if known else "unknown",
    }


def _estimate(edit: str, share: Share | None, n: int, reason: str | None) -> Estimate:
    value, low, high = share or (nan, nan, nan)
    number, unit = (min(value, 1.0), min(low, 1.0), min(high, 1.0)), "fraction of the change"
    method = "Fieller's, by the jackknife over images before and after" + (CHANCE if value > 1 else "")
    of = "part of the energy distance that this edit of the images before takes away, at its best strength"
    name, case = "change_explained", {"edit": edit}
    return estimate_of(name, number, n, method, unit, of, "neither", case, statistic="whole", reason=reason)
