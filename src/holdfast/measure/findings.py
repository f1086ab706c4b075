"""What conclusions share: curves over radii, names of numbers in print, warnings of a population."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from jaxtyping import Float
from torch import Tensor

from holdfast.core.balls import read_ball
from holdfast.core.divergences import Cosine, Divergence
from holdfast.core.points.moments import moments
from holdfast.core.records import Curve, Estimate, Findings, Series, Warned
from holdfast.measure.population import Population


def radius_curves(estimates: Sequence[Estimate]) -> tuple[Curve, ...]:
    """Return estimates that differ in the radius of their ball alone as curves, where there are at least two radii.

    Estimates without a ball are left out.
    """
    lines: dict[tuple[str, tuple[tuple[str, str], ...]], list[tuple[float, Estimate]]] = {}
    for estimate in estimates:
        if "ball" in estimate.conditions:
            ball = read_ball(estimate.conditions["ball"])
            case = {**estimate.conditions, "ball": ball.name}
            lines.setdefault((estimate.quantity, tuple(case.items())), []).append((ball.radius, estimate))
    return tuple(
        radius_curve(quantity, dict(case), points) for (quantity, case), points in lines.items() if len(points) > 1
    )


def radius_curve(quantity: str, conditions: Mapping[str, str], points: Sequence[tuple[float, Estimate]]) -> Curve:
    """Return the curve of estimates at some radii; ``conditions`` name the norm as their ball."""
    points = sorted(points, key=lambda point: point[0])
    return Curve(
        quantity=quantity,
        conditions=dict(conditions),
        x_label=f"{conditions['ball']} radius",
        y_label=quantity.replace("_", " "),
        x=tuple(radius for radius, _ in points),
        y=tuple(estimate.value for _, estimate in points),
        low=tuple(estimate.low for _, estimate in points),
        high=tuple(estimate.high for _, estimate in points),
    )


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
    known, goals = dict(words), dict(aims)
    return findings.model_copy(
        update={
            "series": tuple(_called(series, known) for series in findings.series),
            "estimates": tuple(_aimed(_called(estimate, known), goals) for estimate in findings.estimates),
            "curves": tuple(_called(curve, known) for curve in findings.curves),
        }
    )


def _called(record: Named, words: Mapping[str, str]) -> Named:
    spelled = record.quantity.replace("_", " ")
    name = words.get(record.quantity) or " ".join(words.get(word, word) for word in spelled.split(" "))
    return record if name == spelled else record.model_copy(update={"name": name})


def _aimed(estimate: Estimate, aims: Mapping[str, str]) -> Estimate:
    aim = aims.get(estimate.conditions.get("attack", "").partition(" at ")[2])
    return estimate.model_copy(update={"aim": aim}) if aim else estimate


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
