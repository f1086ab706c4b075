"""The numbers of a run as trackers of experiments keep them: one name for each number, the same wherever they go.

``ENCODER/EVALUATION/QUANTITY.CONDITION.VALUE...``, and ``.low`` and ``.high`` for the ends of the interval. What is
no letter, digit, dot or dash within a part is an underscore, since not every tracker takes more; and all names have as many
slashes, since trackers that keep files cannot have a number and a folder of one name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from math import isfinite

from holdfast.core.records import Estimate, Result
from holdfast.report.comparison.protocol import labels
from holdfast.report.comparison.relative import with_relative_errors


def numbers(results: Sequence[Result]) -> dict[str, float]:
    """Return every finite number of ``results`` and the ends of its interval, by name; the table holds the others.

    Where two would have one name, the second is told apart by its place.

    Example:
        >>> numbers([])
        {}
    """
    names, named = labels(results), dict[str, float]()
    for result in with_relative_errors(results):
        encoder = names[result.encoder.name, result.encoder.fingerprint]
        for estimate in result.estimates:
            name = _free(_name(encoder, result.evaluation, estimate), named)
            values = {name: estimate.value, f"{name}.low": estimate.low, f"{name}.high": estimate.high}
            named |= {key: value for key, value in values.items() if isfinite(value)}
    return named


def _name(encoder: str, evaluation: str, estimate: Estimate) -> str:
    quantity = ".".join((estimate.quantity, *(f"{key}.{value}" for key, value in estimate.conditions.items())))
    return "/".join(re.sub(r"[^\w.-]", "_", part) for part in (encoder, evaluation, quantity))


def _free(name: str, taken: Iterable[str]) -> str:
    known, place, free = set(taken), 2, name
    while free in known:
        free, place = f"{name}_{place}", place + 1
    return free
