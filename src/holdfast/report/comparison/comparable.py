"""Results that may share a table, and errors relative to another encoder's."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256

import numpy as np

from holdfast.core.errors import HoldfastError, did_you_mean
from holdfast.core.records import Claim, Estimate, Result, Series, grouped
from holdfast.core.statistics.intervals import Values
from holdfast.core.statistics.summaries import ratio_of_means, series_of, summarise
from holdfast.report import text

RowKey = tuple[str, tuple[tuple[str, str], ...], Claim]


@dataclass(frozen=True)
class Group:
    """The results of one evaluation under one protocol, one per encoder and in the order they came."""

    results: tuple[Result, ...]
    encoders: tuple[str, ...]
    """Name of each result's encoder in this report."""

    @property
    def first(self) -> Result:
        """Return the result that speaks for the protocol."""
        return self.results[0]

    @cached_property
    def key(self) -> str:
        """The hash of the protocol."""
        return protocol_key(self.first)

    def row(self, like: Estimate) -> dict[str, Estimate]:
        """Return the estimates that belong in the row of ``like``, by encoder."""
        key = row_key(like)
        return {name: rows[key] for name, rows in zip(self.encoders, self._rows, strict=True) if key in rows}

    @cached_property
    def _rows(self) -> list[dict[RowKey, Estimate]]:
        return [{row_key(e): e for e in reversed(result.estimates)} for result in self.results]

    def items(self) -> list[tuple[str, Result]]:
        """Return each encoder's label with its result."""
        return list(zip(self.encoders, self.results, strict=True))


def row_key(estimate: Estimate) -> RowKey:
    """Return the key that estimates of two encoders must share to be in one row."""
    return estimate.quantity, tuple(sorted(estimate.conditions.items())), estimate.claim


def protocol_key(result: Result) -> str:
    """Return a hash that two results share only if their numbers may be compared."""
    parts = (result.evaluation, result.version, result.images.fingerprint, result.settings)
    return sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]


def labels(results: Sequence[Result]) -> dict[tuple[str, str], str]:
    """Return the label of each encoder: its name, with the fingerprint if names repeat."""
    kinds = dict.fromkeys((result.encoder.name, result.encoder.fingerprint) for result in results)
    names = [name for name, _ in kinds]
    return {(name, mark): name if names.count(name) == 1 else f"{name} ({mark[:6]})" for name, mark in kinds}


def labelled(results: Sequence[Result]) -> list[tuple[str, Result]]:
    """Results beside the labels of their encoders."""
    names = labels(results)
    return [(names[result.encoder.name, result.encoder.fingerprint], result) for result in results]


def baselines(results: Sequence[Result]) -> tuple[str, ...]:
    """Return what the baselines are called, which put numbers into proportion and are not there to be chosen.

    Where nothing else was measured they are encoders like others.
    """
    kinds = {name: result.encoder.source for name, result in labelled(results)}
    names = tuple(name for name, source in kinds.items() if source.startswith("baseline:"))
    return names if len(names) < len(kinds) else ()


def groups(results: Sequence[Result]) -> tuple[Group, ...]:
    """Return the results by protocol, those with most encoders first within each evaluation.

    A cell that occurs twice (the same run given twice, or repeated) counts once: the one that looked at more samples.
    """
    cells_of_groups: dict[tuple[str, str], dict[str, Result]] = {}
    for name, result in labelled(results):
        cells = cells_of_groups.setdefault((result.evaluation, protocol_key(result)), {})
        if name not in cells or len(cells[name].findings.ids) < len(result.findings.ids):
            cells[name] = result
    order = list(dict.fromkeys(evaluation for evaluation, _ in cells_of_groups))
    ranked = sorted(cells_of_groups.items(), key=lambda item: (order.index(item[0][0]), -len(item[1])))
    return tuple(Group(tuple(cells.values()), tuple(cells)) for _, cells in ranked)


def tabled(groups: Sequence[Group]) -> tuple[tuple[Group, ...], ...]:
    """Return which groups share a table: all evaluations of one set of images, and each further protocol by itself."""
    sets = grouped((group.first.images.fingerprint, group) for group in groups)
    shared: list[tuple[Group, ...]] = []
    for members in sorted(sets.values(), key=lambda members: -sum(len(group.results) for group in members)):
        main = {group.first.evaluation: group for group in reversed(members)}
        shared.append(tuple(group for group in members if group is main[group.first.evaluation]))
        shared += [(group,) for group in members if group is not main[group.first.evaluation]]
    return tuple(shared)


def difference(a: Result, b: Result) -> str:
    """Return in words how the protocol of ``a`` departs from that of ``b``; empty if it does not."""
    parts = []
    if a.version != b.version:
        parts.append(f"evaluation version {a.version} instead of {b.version}")
    if a.images.fingerprint != b.images.fingerprint:
        parts.append(f"images {_images(a)} instead of {_images(b)}")
    for key in sorted(a.settings.keys() | b.settings.keys()):
        if a.settings.get(key) != b.settings.get(key):
            parts.append(f"{key} {text.setting(a.settings.get(key))} instead of {text.setting(b.settings.get(key))}")
    return "; ".join(parts)


def _images(result: Result) -> str:
    return f"{result.images.name} ({result.images.fingerprint[:6]})"


# The published mean corruption error, over the errors of another encoder:
#
#     CE_c = sum over severities s of E_{c,s} / sum over s of E^baseline_{c,s},    mCE = mean over corruptions of CE_c
#
# Hendrycks and Dietterich 2019, https://arxiv.org/abs/1903.12261.

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
            f"called so. {did_you_mean(to, offered)}"
        )
    baseline_names = baselines(results)
    replaced: dict[int, Result] = {}
    for group in groups_of_errors:
        first = next((name for name in group.encoders if name in baseline_names), group.encoders[0])
        name, members = first if to is None else to, dict(group.items())
        if name in members:
            replaced |= {id(result): _result_with_ratios(result, members[name], name) for result in group.results}
    return [replaced.get(id(result), result) for result in results]


def _result_with_ratios(result: Result, baseline: Result, name: str) -> Result:
    if result.findings.ids != baseline.findings.ids:
        return result
    probes = dict.fromkeys(series.conditions["probe"] for series in _errors(result))
    ratios = [series for probe in probes for series in _relative(result, baseline, probe, name)]
    estimates = (summarise(e, "mean", "lower", MEAN if e.conditions["corruption"] == ALL else EACH) for e in ratios)
    more = {"series": (*result.series, *ratios), "estimates": (*result.estimates, *estimates)}
    findings = result.findings.model_copy(update=more)
    return result.model_copy(update={"findings": findings, "headline": (*result.headline, MEAN)})


def _relative(result: Result, baseline: Result, probe: str, name: str) -> Iterator[Series]:
    """Yield the ratios over all corruptions and under each as series, whose means they are."""
    mine, theirs = _by_corruption(result, probe), _by_corruption(baseline, probe)
    ratios = {corruption: ratio_of_means(errors, theirs[corruption]) for corruption, errors in mine.items()}
    whole = next(series for series in _errors(result) if series.conditions["corruption"] == ALL)
    for corruption, values in {ALL: np.mean([*ratios.values()], axis=0), **ratios}.items():
        case = {"probe": probe, "corruption": corruption, "baseline": name}
        if corruption == ALL and "without" in whole.conditions:
            case["without"] = whole.conditions["without"]
        of, why = "error over that of another encoder", f"{name} makes no error"
        yield series_of(EACH, case, values, "ratio", Claim.ESTIMATE, of, why)


def _errors(result: Result) -> list[Series]:
    return [series for series in result.series if series.quantity == ERRORS]


def _by_corruption(result: Result, probe: str) -> dict[str, Values]:
    return {
        series.conditions["corruption"]: np.array(series.values, dtype=np.float64)
        for series in _errors(result)
        if series.conditions["probe"] == probe
        and "severity" not in series.conditions
        and series.conditions["corruption"] != ALL
    }
