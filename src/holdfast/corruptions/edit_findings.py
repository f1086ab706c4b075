"""Metrics and pictures of images under edits and corruptions of growing severity."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from math import nan
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.core.divergences import Divergence
from holdfast.core.pictures import ends, row
from holdfast.core.points.counting import share_of_pairs_within, shares_within
from holdfast.core.records import Claim, Conditions, Curve, Estimate, Findings, Picture, Series, grouped
from holdfast.core.run_settings import Observed
from holdfast.core.settings import number
from holdfast.core.statistics.quantiles import quantile_influence
from holdfast.core.statistics.summaries import over_references, series_of, summarise
from holdfast.core.statistics.tails import AT_LEAST, tails, tails_of, worst_group
from holdfast.corruptions.edits import Edited, ready
from holdfast.measure.observation import curve_of, findings_of, population_warnings
from holdfast.measure.population import Population
from holdfast.transforms.base import Transform
from holdfast.transforms.severity import families, family_of

Shares = Float[np.ndarray, "_"]
Score = Callable[[np.ndarray], np.ndarray]
"""Value of each fraction of neighbours that is kept."""
UNDEFINED = "a zero embedding, which has no direction under cosine, or one that is not finite"
OR_FEW = f"{UNDEFINED}; or fewer other images than neighbours"


@dataclass(frozen=True)
class Words:
    """What changes of images are called in the names of quantities and conditions."""

    singular: str
    plural: str
    changed: str
    strength: str
    strengths: str
    scale: str
    """What the axis of a curve over strengths is called."""
    levels: tuple[str, ...] = ()
    """What the strengths are called, from mild to severe; by default 1, 2, 3 ..."""

    def level(self, steps: int) -> str:
        """Return the name of the strength after a number of ``steps``."""
        return self.levels[steps - 1] if self.levels else str(steps)


def concluded(edited: Ladders, rows: Sequence[int]) -> Findings:
    """Return everything that ``edited`` says of the images at ``rows``."""
    survived, population = edited.survived(), edited.population
    kept, overlap, radius = list(edited.kept()), list(edited.overlap()), list(edited.radius())
    changes, quantiles = list(edited.changes()), list(edited.quantiles())
    worst_moved, worst_kept = list(edited.worst_quantiles()), list(edited.worst_kept())
    near, worst_near = edited.near(), edited.worst_near()
    influences = edited.influences(quantiles, near, rows)
    low_series, low_ends = edited.low_ends(survived, rows)
    worst_influences = edited.influences(worst_moved, worst_near, rows)
    estimates = (
        summarise(survived, "mean", "higher"),
        *(summarise(series, "share", "higher", f"worst_{edited.words.singular}_accuracy") for series in worst_kept),
        *relative(worst_moved, worst_near, worst_influences),
        *(summarise(series, "share", "higher", "nearest_neighbour_accuracy") for series in kept),
        *relative(quantiles, near, influences),
        *(summarise(series, "mean", "higher") for series in overlap),
        *(summarise(radius, "mean", "lower") for radius in radius),
        *low_ends,
    )
    worst = (*worst_kept, *worst_moved, *worst_influences)
    series = (survived, *worst, *kept, *quantiles, *influences, *changes, *overlap, *radius, *low_series)
    warnings = (*population_warnings(population, edited.divergences), *edited.warnings())
    return findings_of(population, rows, series, estimates, warnings, ladder_curves(estimates, edited.words))


def rung(edit: Transform) -> str:
    """Return the value of the one parameter of ``edit``; the first severity is the only one of a single transform.

    Example:
        >>> from holdfast.transforms.base import transforms
        >>> rung(transforms()["jpeg"].family()[1])
        '90'
    """
    return "1" if family_of(edit) == str(edit) else spelled(getattr(edit, fields(edit)[0].name))


def spelled(value: Any) -> str:
    """Return a parameter as settings spell it."""
    return number(value) if isinstance(value, float) else str(value)


def _series(
    quantity: str,
    conditions: Conditions,
    values: Float[Tensor, "n"],
    unit: str,
    of: str,
    claim: Claim = Claim.ESTIMATE,
    reason: str = UNDEFINED,
) -> Series:
    return series_of(quantity, conditions, values, unit, claim, of, reason)


class Ladders:
    """What was observed, as series of numbers."""

    def __init__(
        self,
        observation: Edited,
        population: Population,
        observed: Observed,
        reference: int,
        words: Words,
        without: Conditions,
    ) -> None:
        self.observation = observation
        self.edits, self.divergences, self.k = observation.edits, observation.divergences, observation.k
        self.chained, self.population, self.observed = observation.chained, population, observed
        self.words, self.without = words, without
        self.families = families(observation.edits)
        self.references = population.choose(reference)
        self.pairs, self.groups = population.codes[self.references], population.groups_of(self.references)

    def _by_edit(self, values: Float[Tensor, "n m"]) -> Iterator[tuple[Conditions, Float[Tensor, "n"]]]:
        for edit, column in zip(self.edits, values.unbind(1), strict=True):
            yield {self.words.singular: family_of(edit), self.words.strength: rung(edit)}, column

    @property
    def retrieval(self) -> Conditions:
        """Under which divergence neighbours are searched."""
        return {"divergence": str(self.divergences[0])}

    def kept(self) -> Iterator[Series]:
        for case, values in self._by_edit(self.observed["kept"]):
            yield _series("nearest_neighbour_kept", {**case, **self.retrieval}, values, "yes or no", self._kept)

    def overlap(self) -> Iterator[Series]:
        of = f"Jaccard index of the {self.k} nearest other images, before and after the {self.words.singular}"
        for case, values in self._by_edit(self.observed["overlap"]):
            conditions = {**case, "k": str(self.k), **self.retrieval}
            yield _series("neighbour_overlap", conditions, values, "fraction of neighbours", of, reason=OR_FEW)

    def changes(self) -> Iterator[Series]:
        of = f"change of the embedding by the {self.words.singular}"
        for divergence in self.divergences:
            for case, values in self._by_edit(self.observation.changes(divergence, self.observed)):
                yield _series("code_change", {**case, "divergence": str(divergence)}, values, str(divergence), of)

    def quantiles(self) -> Iterator[Series]:
        for divergence in self.divergences:
            shares = self._shares(divergence, self.observation.changes(divergence, self.observed))
            for case, values in self._by_edit(shares):
                conditions = {**case, "divergence": str(divergence)}
                yield _series("universal_quantile", conditions, values, "fraction of pairs", self._moved(""))

    def near(self) -> list[Shares]:
        """Return for each quantile the share of the others within the median change, for each reference image."""
        return [
            near
            for divergence in self.divergences
            for near in self._near(divergence, self.observation.changes(divergence, self.observed))
        ]

    def worst_near(self) -> list[Shares]:
        """Return the same for each quantile of the worst edits."""
        return self._near(self.divergences[0], self.observed["worst"])

    def _near(self, divergence: Divergence, moved: Float[Tensor, "n m"]) -> list[Shares]:
        medians = moved.to(self.pairs.device).nanmedian(0).values
        within = shares_within(self.population.fitted(divergence), medians, self.pairs, self.groups)
        return [share.cpu().numpy() for share in within]

    def influences(self, quantiles: Sequence[Series], near: Sequence[Shares], rows: Sequence[int]) -> list[Series]:
        """Return each median of ``quantiles`` as the images at ``rows`` move it."""
        places = {row: place for place, row in enumerate(self.references)}
        here = [places.get(row, -1) for row in rows]
        return [
            quantile_influence(series, np.append(share, nan)[here], len(share))
            for series, share in zip(quantiles, near, strict=True)
        ]

    def worst_quantiles(self) -> Iterator[Series]:
        shares = self._shares(self.divergences[0], self.observed["worst"])
        for depth, values in enumerate(shares.unbind(1), start=1):
            case = {**self._strength(depth, self.steps), **self.retrieval, **self.without}
            name, of = f"worst_{self.words.singular}_quantile", self._moved("worst ")
            yield _series(name, case, values, "fraction of pairs", of, Claim.LOWER)

    def worst_kept(self) -> Iterator[Series]:
        """Yield whether each image survives all that was tried: single edits of growing strength, then several in a row."""
        kept = self.observed["kept"]
        upto = [
            torch.cat([kept[:, span][:, :steps] for _, span in self.families], dim=1).amin(1)
            for steps in range(1, self.steps + 1)
        ]
        cases = [self._strength(1, steps) for steps in range(1, self.steps + 1)]
        cases += [self._strength(depth, self.steps) for depth in range(2, self.chained + 1)]
        for case, values in zip(cases, [*upto, *self.observed["worst_kept"][:, 1:].unbind(1)], strict=True):
            conditions = {**case, **self.retrieval, **self.without}
            name = f"worst_{self.words.singular}_kept"
            of = f"nearest-neighbour accuracy under the worst {self.words.singular}"
            yield _series(name, conditions, values, "yes or no", of, Claim.UPPER)

    @property
    def steps(self) -> int:
        """How many rungs the longest ladder has."""
        return max(span.stop - span.start for _, span in self.families)

    def _strength(self, depth: int, steps: int) -> Conditions:
        """Return how many edits are in a row, and of which rungs they are."""
        return {self.words.plural: str(depth), self.words.strengths: f"up to {self.words.level(steps)}"}

    def _moved(self, worst: str) -> str:
        change = f"{worst}{self.words.singular}"
        return f"fraction of pairs of other images that lie no farther apart than the {change} moves the embedding"

    @property
    def _kept(self) -> str:
        return f"{self.words.changed} images closer to their own original than to any other image"

    def radius(self) -> Iterator[Series]:
        of = "radius of the smallest ball around the unit embeddings of the family"
        for (name, _), values in zip(self.families, self.observed["radius"].unbind(1), strict=True):
            series = _series("divergence_radius", {self.words.singular: name}, values, "radius", of)
            yield series.model_copy(update={"limits": (0.0, 1.0)})

    def survived(self) -> Series:
        """Return the share of edits that each image survives, families counting alike."""
        share = self._over_edits(self.observed["kept"])
        name, unit = f"{self.words.plural}_survived", f"fraction of {self.words.plural}"
        return _series(name, {**self.retrieval, **self.without}, share, unit, self._kept)

    def _over_edits(self, values: Float[Tensor, "n edits"]) -> Float[Tensor, "n"]:
        """Return the mean over the edits of each family that changes images, families counting alike."""
        counted = [span for (_, span), touched in zip(self.families, self.touched, strict=True) if touched]
        return torch.stack([values[:, span].mean(1) for span in counted], dim=1).mean(1)

    def low_ends(self, survived: Series, rows: Sequence[int]) -> tuple[list[Series], list[Estimate]]:
        """Return what means over images and edits hide: neighbours kept, at least or by the worst, and worst groups."""
        images = self.population.images
        groups = () if images.groups is None else tuple(images.groups[row] for row in rows)
        series, kept = list[Series](), self._neighbours("", lambda fractions: fractions)
        found = [summarise(kept, "mean", "higher")]
        for tail in tails_of(np.array(kept.values))[: len(AT_LEAST)]:
            series.append(self._neighbours(f"_{tail.name}", tail.score, f": {tail.of}"))
            found.append(summarise(series[-1], "mean", "higher"))
        found += [estimate for scored, estimate in tails(kept, groups) if scored is None]
        for scored, estimate in tails(survived, groups):
            series += [] if scored is None else [scored]
            found.append(estimate)
        if groups:
            worst = [worst_group(each, groups, f"{each.quantity}_worst_group") for each in (kept, survived)]
            found += [each for each in worst if each is not None]
        return [kept, *series], found

    def _neighbours(self, end: str, score: Score, told: str = "") -> Series:
        """Return the mean score over edits of the fraction of neighbours that an edited image keeps."""
        overlap = self.observed["overlap"]
        # Of two sets of k, c shared make a Jaccard index of c / (2 k - c).
        fractions = (2 * overlap / (1 + overlap)).cpu().numpy()
        values = self._over_edits(torch.from_numpy(score(fractions)))
        unit = f"fraction of {self.words.plural}" if end else "fraction of neighbours"
        conditions = {"k": str(self.k), **self.retrieval, **self.without}
        of = f"nearest other images that stay the nearest under {self.words.plural}{told}"
        return _series(f"neighbours_kept{end}", conditions, values, unit, of, reason=OR_FEW)

    @cached_property
    def touched(self) -> list[bool]:
        """Whether a family changes any image at all; if none does, all count."""
        touched = self.observed["touched"].any(0).tolist()
        return touched if any(touched) else [True] * len(touched)

    def warnings(self) -> Iterator[str]:
        idle = [name for (name, _), some in zip(self.families, self.touched, strict=True) if not some]
        if idle:
            yield (
                f"{', '.join(idle)} changes none of these images (gray ones have no hue, for example), "
                f"and is left out of the fraction of {self.words.plural} survived."
            )

    def _shares(self, divergence: Divergence, moved: Float[Tensor, "n m"]) -> Float[Tensor, "n m"]:
        if len(self.pairs) < 2:
            return torch.full_like(moved, torch.nan)
        distances = moved.to(self.pairs.device).flatten()
        fitted = self.population.fitted(divergence)
        return share_of_pairs_within(fitted, distances, self.pairs, self.groups).unflatten(0, moved.shape)


def relative(quantiles: Sequence[Series], near: Sequence[Shares], influences: Sequence[Series]) -> list[Estimate]:
    """Return the median of each of ``quantiles`` with an interval that allows for other reference images, too.

    Two encoders are compared by what each image moves.
    """
    return [
        over_references(summarise(series, "median", "lower"), within).model_copy(
            update={"series": moves.quantity, "statistic": "mean"}
        )
        for series, within, moves in zip(quantiles, near, influences, strict=True)
    ]


def ladder_curves(estimates: Sequence[Estimate], words: Words) -> Iterator[Curve]:
    """Yield each quantity over the strengths of each family."""
    graded = [(each, each.conditions) for each in estimates if words.strength in each.conditions]
    lines = grouped(((each.quantity, case[words.singular], case["divergence"]), each) for each, case in graded)
    for (quantity, family, divergence), points in lines.items():
        case, steps = {words.singular: family, "divergence": divergence}, range(1, len(points) + 1)
        levels = [float(words.level(step)) for step in steps]
        yield curve_of(quantity, case, words.scale, quantity.replace("_", " "), levels, points)


def pictures(
    observation: Edited,
    population: Population,
    rows: Sequence[int],
    observed: Observed,
    findings: Findings,
    words: Words,
) -> tuple[Picture, ...]:
    """Return the ladder of the family that carries an image farthest, and its worst changes in a row."""
    if len(population.encoder.domain.shape) != 3:
        return ()
    of = {
        (series.conditions[words.singular], series.conditions[words.strength]): series.values
        for series in findings.series
        if series.quantity == "universal_quantile"
        and series.conditions["divergence"] == str(observation.divergences[0])
    }
    worst = [series for series in findings.series if series.quantity == f"worst_{words.singular}_quantile"][-1]
    positions = ends(worst.values)
    shown = [rows[position] for position in positions]
    if not shown:
        return ()
    chains = observed["worst_edits"][positions]
    ends_up, (pixels, noise) = observation.worst(population, shown, chains), ready(population, shown)
    shown_pictures = []
    for place, position in enumerate(positions):
        farthest = max(of, key=lambda edit: of[edit][position])[0]
        parts, alone = {"original": pixels[place]}, slice(place, place + 1)
        for edit in observation.edits:
            if family_of(edit) == farthest:
                quantile = of[farthest, rung(edit)][position]
                parts[f"{rung(edit)}: as far as {quantile:.2g} of pairs"] = edit(pixels[alone], noise[alone])[0]
        chain = " + ".join(str(observation.edits[k]) for k in chains[place].tolist() if k >= 0)
        parts[f"{chain}: {worst.values[position]:.2g}"] = ends_up[place]
        caption = f"{findings.ids[position]}: {farthest}, which moves it farthest, and the worst {words.plural} found"
        shown_pictures.append(row(caption, parts, population.encoder.domain))
    return tuple(picture for picture in shown_pictures if picture is not None)
