"""Observations, the expensive half of a measurement: what is computed for each sample, anywhere.

Also here, shared by conclusions: records of numbers, curves and findings, names in print, warnings about a population.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import ChainMap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.core.balls import read_ball
from holdfast.core.discovery import OldName, OldNames
from holdfast.core.divergences import Cosine, Divergence
from holdfast.core.encoder import Domain, Pixels
from holdfast.core.noise import Noise
from holdfast.core.pictures import row
from holdfast.core.points.moments import moments
from holdfast.core.records import (
    Claim,
    Conditions,
    Curve,
    Estimate,
    Findings,
    Picture,
    Series,
    Verdict,
    Warned,
    grouped,
)
from holdfast.core.run_settings import Observed
from holdfast.core.statistics.summaries import Better
from holdfast.measure.population import Fit, LooksAt, Population, whitenings


@dataclass(frozen=True)
class SharedSettings:
    """Settings that several observations have in common, held in one field; keys list them as if each were a field."""


@dataclass(frozen=True)
class Observation(ABC, OldNames):
    """What is computed for each sample; equal observations of several evaluations are shared."""

    name: ClassVar[str]
    version: ClassVar[int]
    """Version of the observation; it rises whenever the numbers change."""
    uses_labels: ClassVar[bool] = False
    """True if ``observe`` reads labels, which are then part of the key of results."""
    uses_bank: ClassVar[bool] = False
    """True if ``observe`` reads the reference set, if there is one; it is then part of the key."""
    uses_groups: ClassVar[bool] = False
    """True if ``observe`` reads groups of images, which are then part of the key."""
    forwards = OldName("forward_passes")

    def looks_at(self) -> LooksAt:
        """Part of the encoder that the observation reads; by default the encoder itself."""
        return "encoder"

    def fits(self) -> tuple[Fit[Any], ...]:
        """Fits that the observation needs; by default those of divergences among the settings."""
        return whitenings(self)

    def rows(self, population: Population) -> list[int]:
        """Return which samples are looked at; by default ``samples`` images, chosen at random."""
        shared = [vars(value) for value in vars(self).values() if isinstance(value, SharedSettings)]
        return population.choose(ChainMap(vars(self), *shared)["samples"])

    @abstractmethod
    def observe(self, population: Population, rows: Sequence[int]) -> Observed:
        """Observe ``rows``, each independently of other rows.

        Args:
            population: Images of the run with their clean embeddings.
            rows: Rows of the population.

        Returns:
            Tensors by name; their first axis runs over ``rows``.
        """

    def in_batches(self, population: Population, rows: Sequence[int]) -> Observed:
        """Observe rows in batches that fit into memory.

        Args:
            population: Encoder and images.
            rows: Rows of the population.

        Returns:
            What ``observe`` returns, for all rows in their order.
        """
        name = f"{self.name} of {population.encoder.name}"
        return population.run.batches(rows, lambda batch: self.observe(population, batch), name)

    def ids(self, population: Population) -> tuple[str, ...]:
        """Name of each row; the id of the image unless rows are something else."""
        return population.images.ids

    def inputs(self, population: Population) -> int:
        """Inputs of the encoder that one row needs, so that shards last about equally long."""
        return 1

    def forward_passes(self, population: Population) -> int:
        """Forward passes per row, about; a gradient counts as 3.

        Budgets use this number until it was measured. By default one for each input.
        """
        return self.inputs(population)


@final
@dataclass(frozen=True)
class Joint(Observation):
    """Several observations of the same rows as one; entry ``name`` of part ``k`` is called ``k.name``."""

    parts: tuple[Observation, ...]
    name = "joint"
    version = 1

    def fits(self) -> tuple[Fit[Any], ...]:
        return tuple(dict.fromkeys(fit for part in self.parts for fit in part.fits()))

    def rows(self, population: Population) -> list[int]:
        first, *others = (part.rows(population) for part in self.parts)
        assert all(other == first for other in others), "the parts of a joint observation look at different rows"
        return first

    def ids(self, population: Population) -> tuple[str, ...]:
        return self.parts[0].ids(population)

    def observe(self, population: Population, rows: Sequence[int]) -> Observed:
        return joined([part.observe(population, rows) for part in self.parts])

    def of(self, part: Observation, observed: Observed) -> Observed:
        """Return what ``part``, or an equal one, saw, from what this observation saw."""
        assert part in self.parts, f"a joint observation of {len(self.parts)} parts has no part {part!r}"
        return entries(observed, self.parts.index(part))


def joined(parts: Sequence[Observed]) -> Observed:
    """Return several sets of entries as one, entry ``name`` of set ``k`` being called ``k.name``.

    Example:
        >>> import torch
        >>> both = joined([{"codes": torch.zeros(2)}, {"codes": torch.ones(2)}])
        >>> both["1.codes"], entries(both, 0)
        (tensor([1., 1.]), {'codes': tensor([0., 0.])})
    """
    return {f"{k}.{name}": value for k, part in enumerate(parts) for name, value in part.items()}


def entries(observed: Observed, k: int | str) -> Observed:
    """Return set ``k`` of those that were ``joined``, under their own names again."""
    prefix = f"{k}."
    return {name.removeprefix(prefix): value for name, value in observed.items() if name.startswith(prefix)}


def radius_curves(estimates: Sequence[Estimate]) -> tuple[Curve, ...]:
    """Return estimates that differ in the radius of their ball alone as curves, where there are at least two radii.

    Estimates without a ball are left out.
    """
    balls = [(each, read_ball(each.conditions["ball"])) for each in estimates if "ball" in each.conditions]
    lines = grouped(
        ((each.quantity, tuple({**each.conditions, "ball": ball.name}.items())), (ball.radius, each))
        for each, ball in balls
    )
    return tuple(
        radius_curve(quantity, dict(case), points) for (quantity, case), points in lines.items() if len(points) > 1
    )


def radius_curve(quantity: str, conditions: Mapping[str, str], points: Sequence[tuple[float, Estimate]]) -> Curve:
    """Return the curve of estimates at some radii; ``conditions`` name the norm as their ball."""
    radii, estimates = zip(*sorted(points, key=lambda point: point[0]), strict=True)
    return curve_of(quantity, conditions, f"{conditions['ball']} radius", quantity.replace("_", " "), radii, estimates)


def curve_of(
    quantity: str,
    conditions: Mapping[str, str],
    x_label: str,
    y_label: str,
    x: Sequence[int | float],
    estimates: Sequence[Estimate],
) -> Curve:
    """Curve through estimates, with their intervals for a band.

    Args:
        quantity: Name of the metric.
        conditions: Conditions of the measurement, by name.
        x_label: Label of the horizontal axis.
        y_label: Label of the vertical axis.
        x: Horizontal coordinates, one per estimate.
        estimates: Numbers at these coordinates.
    """
    value, low, high = ([getattr(estimate, end) for estimate in estimates] for end in ("value", "low", "high"))
    return line_of(quantity, conditions, x_label, y_label, x, value, low=low, high=high)


def line_of(
    quantity: str,
    conditions: Mapping[str, str],
    x_label: str,
    y_label: str,
    x: Any,
    y: Any,
    reference: Any = (),
    **more: Any,
) -> Curve:
    """Curve through values, named and labelled as by ``curve_of``.

    Args:
        x: Horizontal coordinates: numbers, or an array of shape (n,).
        y: Vertical coordinates, as many.
        reference: Values of the best possible encoder, as many, where they are known.
        more: Other fields of the curve, such as the ends ``low`` and ``high`` of a band.
    """
    x, y, reference = (tuple(each.tolist() if hasattr(each, "tolist") else each) for each in (x, y, reference))
    names = {"quantity": quantity, "conditions": dict(conditions), "x_label": x_label, "y_label": y_label}
    return Curve.model_validate({**names, "x": x, "y": y, "reference": reference, **more})


def estimate_of(
    quantity: str,
    number: tuple[float, float, float],
    n: int,
    method: str,
    unit: str,
    of: str,
    better: Better,
    conditions: Conditions | None = None,
    claim: Claim = Claim.ESTIMATE,
    **more: Any,
) -> Estimate:
    """Number that is no summary of a series.

    Args:
        quantity: Name of the metric.
        number: Value, and both ends of its interval.
        n: Samples that the number is about.
        method: Method of the interval.
        unit: Unit of the value.
        of: Quantity that the value bounds or estimates.
        better: Whether ``lower`` or ``higher`` values are better, or ``neither``.
        conditions: Conditions of the measurement, by name.
        claim: Bound type of the value.
        more: Other fields of the estimate.
    """
    value, low, high = number
    return Estimate(
        quantity=quantity,
        conditions=conditions or {},
        value=value,
        low=low,
        high=high,
        n=n,
        method=method,
        unit=unit,
        claim=claim,
        of=of,
        better=better,
        **more,
    )


def findings_of(
    population: Population,
    rows: Sequence[int],
    series: Iterable[Series],
    estimates: Iterable[Estimate],
    warnings: Iterable[str] = (),
    curves: Iterable[Curve] = (),
    verdicts: Iterable[Verdict] = (),
) -> Findings:
    """Findings about the images at ``rows``.

    Args:
        population: Images of the run with their clean embeddings.
        rows: Rows of the population that every series runs over.
        series: Values per image.
        estimates: Numbers about the population, with intervals.
        warnings: Sentences to read beside the numbers.
        curves: Metrics as functions of another quantity.
        verdicts: Answers to yes-or-no questions.
    """
    return Findings(
        ids=tuple(population.images.ids[row] for row in rows),
        series=tuple(series),
        estimates=tuple(estimates),
        curves=tuple(curves),
        verdicts=tuple(verdicts),
        warnings=tuple(warnings),
    )


def to_transform(population: Population, rows: Sequence[int]) -> tuple[Pixels, Noise]:
    """Images at ``rows`` as transforms take them, with the noise of each."""
    # Interpolation and Fourier transforms want more digits than half precision has.
    run, precise = population.run, torch.promote_types(population.run.dtype, torch.float32)
    pixels = population.images.pixels(rows, run.device, precise, population.encoder.domain)
    return pixels, run.noise([population.images.ids[row] for row in rows])


def pictures_of(captions: Sequence[str], parts: Mapping[str, Pixels], domain: Domain) -> tuple[Picture, ...]:
    """One row of pictures per caption: that image of each part, as far as images can be drawn.

    Args:
        captions: One caption per image.
        parts: Images by label, as many as captions.
        domain: Shape and range of the images.
    """
    rows = (row(text, {label: images[k] for label, images in parts.items()}, domain) for k, text in enumerate(captions))
    return tuple(filter(None, rows))


Named = TypeVar("Named", Series, Estimate, Curve)
Pairs = tuple[tuple[str, str], ...]
"""Names in short, and in print."""


def named(findings: Findings, words: Pairs, aims: Pairs) -> Findings:
    """Return ``findings`` whose quantities and aims of attacks have the names that an evaluation has for them.

    Args:
        findings: as they were concluded.
        words: names of quantities, or of words in them, where these are not simply spelled out.
        aims: what attacks go for, in words, by what stands after ``at`` in the condition ``attack``.

    Example:
        >>> spade = Curve(quantity="spade_score", x_label="", y_label="", x=(), y=())
        >>> named(Findings(ids=(), curves=(spade,)), (("spade", "SPADE"),), ()).curves[0].name
        'SPADE score'
    """
    if not words and not aims:
        return findings
    known, goals, estimates = dict(words), dict(aims), list[Estimate]()
    for each in findings.estimates:
        aim = goals.get(each.conditions.get("attack", "").partition(" at ")[2])
        estimates.append(_called(each.model_copy(update={"aim": aim}) if aim else each, known))
    return findings.model_copy(
        update={
            "series": tuple(_called(series, known) for series in findings.series),
            "estimates": tuple(estimates),
            "curves": tuple(_called(curve, known) for curve in findings.curves),
        }
    )


def _called(record: Named, words: Mapping[str, str]) -> Named:
    spelled = record.quantity.replace("_", " ")
    name = words.get(record.quantity) or " ".join(words.get(word, word) for word in spelled.split(" "))
    return record if name == spelled else record.model_copy(update={"name": name})


def collapsed(codes: Float[Tensor, "n d"]) -> bool:
    """Return whether all codes are one point up to rounding."""
    return moments(codes, scatter=False).collapsed


def population_warnings(population: Population, divergences: Sequence[Divergence] = ()) -> tuple[str, ...]:
    """Warnings to read beside any number about this population, such as a collapsed encoder.

    Args:
        population: Images of the run with their clean embeddings.
        divergences: Distances between embeddings that the numbers use.
    """
    warnings: list[str] = []
    count = len(population.images)
    twins = count - len(population.first_copies.unique())
    # Of copies of one image no one can tell whether the encoder tells images apart.
    if count - twins > 1 and collapsed(population.codes):
        sentence = (
            "Collapsed: all images have the same embedding up to rounding. Every comparison then reads as perfect "
            "robustness, but the encoder is useless."
        )
        warnings.append(Warned(sentence, "collapsed"))
    if twins:
        sentence = (
            f"{twins} of {count} images are exact copies of others. Pairs of copies are left out, and breakaway counts each "
            "image once. Remove duplicates for clean numbers."
        )
        warnings.append(Warned(sentence, "duplicates"))
    if population.codes.shape[1] == 1 and any(isinstance(divergence, Cosine) for divergence in divergences):
        warnings.append(
            "Embeddings have one feature, so cosine sees their sign alone: nearly everything reads as robust. "
            "Read l2 instead."
        )
    return tuple(warnings)
