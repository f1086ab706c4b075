"""How numbers are called in print: an evaluation says it on its class, and its findings carry it to every report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from holdfast.core.records import Curve, Estimate, Findings, Series

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
