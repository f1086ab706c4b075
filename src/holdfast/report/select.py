"""A part of stored results: some evaluations, and of their numbers those under some conditions."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.errors import HoldfastError, did_you_mean
from holdfast.core.records import Result
from holdfast.report.gate import fits, selectors


def select_results(results: Sequence[Result], only: Sequence[str] = (), where: Sequence[str] = ()) -> list[Result]:
    """Return ``results`` of the evaluations ``only`` with the numbers, series and curves ``where`` conditions hold.

    Args:
        results: of any encoders.
        only: names of evaluations; none: all.
        where: ``condition=value`` or a ball, as in ``attack=adaptive``, ``linf:8/255`` or ``8/255``; all must hold.

    Raises:
        HoldfastError: there is no such evaluation or condition, or nothing is left.
    """
    known = sorted({result.evaluation for result in results})
    for name in only:
        if name not in known:
            raise HoldfastError(f"--only {name}: no such evaluation in these runs; {did_you_mean(name, known)}")
    selected = [result for result in results if not only or result.evaluation in only]
    if not where:
        return selected
    radius, wanted = selectors(where, f"--where {' --where '.join(where)}")
    every = [estimate.conditions for result in selected for estimate in result.estimates]
    keys = sorted({key for conditions in every for key in conditions})
    for key in wanted:
        if key not in keys:
            raise HoldfastError(f"--where {key}=...: no number has this condition; {did_you_mean(key, keys)}")
    left = [part for result in selected if (part := _part(result, radius, wanted)).estimates]
    if not left:
        offered = "; ".join(f"{key}: {', '.join(dict.fromkeys(c[key] for c in every if key in c))}" for key in keys)
        raise HoldfastError(f"no number was taken under all of {', '.join(where)}; there are {offered}")
    return left


def _part(result: Result, radius: float | None, wanted: dict[str, str]) -> Result:
    kept = {
        name: tuple(item for item in getattr(result.findings, name) if fits(item.conditions, radius, wanted))
        for name in ("estimates", "series", "curves")
    }
    return result.model_copy(update={"findings": result.findings.model_copy(update=kept)})
