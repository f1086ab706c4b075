"""The published mean corruption error: the errors of an encoder over those of another, from the stored results of both.

    CE_c = sum over severities s of E_{c,s} / sum over s of E^baseline_{c,s},    mCE = mean over corruptions of CE_c

Hendrycks and Dietterich 2019, https://arxiv.org/abs/1903.12261. An evaluation sees one encoder, so ``corruption-error``
keeps the errors themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from holdfast.core.errors import HoldfastError, did_you_mean
from holdfast.core.records import Claim, Estimate, Result, Series
from holdfast.core.statistics import summarise
from holdfast.core.statistics.series import ratio_of_means, series_of
from holdfast.report.comparison.protocol import Group, baselines, groups

ERRORS = "corrupted_wrong"
"""The quantity of which ratios are taken, whichever evaluation has it."""
MEAN, EACH = "relative_mean_corruption_error", "relative_corruption_error"
ALL = "all"


def with_relative_errors(results: Sequence[Result], to: str | None = None) -> list[Result]:
    """Return ``results``, those of corruption-error with their errors relative to the encoder called ``to``.

    By default that is the first baseline of their table, or its first encoder. A table of one encoder has none.

    Raises:
        HoldfastError: no encoder with such a result is called ``to``.
    """
    groups_of_errors = [group for group in groups(results) if len(group.encoders) > 1 and _errors(group.first)]
    offered = list(dict.fromkeys(name for group in groups_of_errors for name in group.encoders))
    if to is not None and to not in offered:
        raise HoldfastError(
            f"no errors can be taken relative to {to!r}: errors under corruption of two encoders are needed, one of them "
            f"called so; {did_you_mean(to, offered)}"
        )
    baseline_names = baselines(results)
    replaced: dict[int, Result] = {}
    for group in groups_of_errors:
        first = next((name for name in group.encoders if name in baseline_names), group.encoders[0])
        replaced |= _with_ratios(group, first if to is None else to)
    return [replaced.get(id(result), result) for result in results]


def _with_ratios(group: Group, name: str) -> dict[int, Result]:
    """Return the results of ``group`` with their errors relative to the encoder called ``name``, by identity."""
    members = dict(group.items())
    if name not in members:
        return {}
    return {id(result): _result_with_ratios(result, members[name], name) for result in group.results}


def _result_with_ratios(result: Result, baseline: Result, name: str) -> Result:
    if result.findings.ids != baseline.findings.ids:
        return result
    probes = dict.fromkeys(series.conditions["probe"] for series in _errors(result))
    ratios = [series for probe in probes for series in _relative(result, baseline, probe, name)]
    findings = result.findings.model_copy(
        update={
            "series": (*result.series, *ratios),
            "estimates": (*result.estimates, *map(_estimate, ratios)),
        }
    )
    return result.model_copy(update={"findings": findings, "headline": (*result.headline, MEAN)})


def relative_to(result: Result, baseline: Result, probe: str = "linear") -> tuple[Estimate, ...]:
    """Return mCE and the CE of each corruption: errors of ``result`` over those of ``baseline``, on the same images.

    Raises:
        HoldfastError: the two are about other images, probes or corruptions.
    """
    if result.findings.ids != baseline.findings.ids or result.settings != baseline.settings:
        raise HoldfastError(
            f"{result.encoder.name} and {baseline.encoder.name} were measured on other images or with other settings; "
            "measure both in one run"
        )
    return tuple(map(_estimate, _relative(result, baseline, probe, baseline.encoder.name)))


def _relative(result: Result, baseline: Result, probe: str, name: str) -> Iterator[Series]:
    """Yield the ratios over all corruptions and under each as series, whose means they are."""
    mine, theirs = _by_corruption(result, probe), _by_corruption(baseline, probe)
    ratios = {corruption: ratio_of_means(errors, theirs[corruption]) for corruption, errors in mine.items()}
    whole = next(series for series in _errors(result) if series.conditions["corruption"] == ALL)
    for corruption, values in {ALL: torch.stack([*ratios.values()]).mean(0), **ratios}.items():
        case = {"probe": probe, "corruption": corruption, "baseline": name}
        if corruption == ALL and "without" in whole.conditions:
            case["without"] = whole.conditions["without"]
        of, why = "error over that of another encoder", f"{name} makes no error"
        yield series_of(EACH, case, values, "ratio", Claim.ESTIMATE, of, why)


def _estimate(series: Series) -> Estimate:
    return summarise(series, "mean", "lower", MEAN if series.conditions["corruption"] == ALL else EACH)


def _errors(result: Result) -> list[Series]:
    return [series for series in result.series if series.quantity == ERRORS]


def _by_corruption(result: Result, probe: str) -> dict[str, Tensor]:
    estimates = {
        series.conditions["corruption"]: torch.tensor(series.values, dtype=torch.float64)
        for series in _errors(result)
        if series.conditions["probe"] == probe
        and "severity" not in series.conditions
        and series.conditions["corruption"] != ALL
    }
    if not estimates:
        raise HoldfastError(
            f"{result.encoder.name} has no errors of probe {probe!r} under corruption; measure them with it"
        )
    return estimates
