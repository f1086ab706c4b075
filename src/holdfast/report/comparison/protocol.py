"""Which results may stand in one table: those of one evaluation, version, settings and set of images."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256

from holdfast.core.records import Claim, Estimate, Result
from holdfast.report import text

RowKey = tuple[str, tuple[tuple[str, str], ...], Claim]


@dataclass(frozen=True)
class Group:
    """The results of one evaluation under one protocol, one per encoder and in the order they came."""

    results: tuple[Result, ...]
    encoders: tuple[str, ...]
    """What each result's encoder is called in this report."""

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
    """Return what two encoders' estimates must share to stand in one row."""
    return estimate.quantity, tuple(sorted(estimate.conditions.items())), estimate.claim


def protocol_key(result: Result) -> str:
    """Return a hash that two results share only if their numbers may be compared."""
    parts = (result.evaluation, result.version, result.images.fingerprint, result.settings)
    return sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]


def labels(results: Sequence[Result]) -> dict[tuple[str, str], str]:
    """Return what to call each encoder (by name and fingerprint): its name, with the fingerprint where names repeat."""
    kinds = dict.fromkeys((result.encoder.name, result.encoder.fingerprint) for result in results)
    names = [name for name, _ in kinds]
    return {(name, mark): name if names.count(name) == 1 else f"{name} ({mark[:6]})" for name, mark in kinds}


def baselines(results: Sequence[Result]) -> tuple[str, ...]:
    """Return what the baselines are called, which put numbers into proportion and are not there to be chosen.

    Where nothing else was measured they are encoders like others.
    """
    labels_of = labels(results)
    kinds = {labels_of[result.encoder.name, result.encoder.fingerprint]: result.encoder.source for result in results}
    names = tuple(name for name, source in kinds.items() if source.startswith("baseline:"))
    return names if len(names) < len(kinds) else ()


def groups(results: Sequence[Result]) -> tuple[Group, ...]:
    """Return the results by protocol, those with most encoders first within each evaluation.

    A cell that occurs twice (the same run given twice, or repeated) counts once: the one that looked at more samples.
    """
    labels_of = labels(results)
    cells_of_groups: dict[tuple[str, str], dict[str, Result]] = {}
    for result in results:
        cells = cells_of_groups.setdefault((result.evaluation, protocol_key(result)), {})
        name = labels_of[result.encoder.name, result.encoder.fingerprint]
        if name not in cells or len(cells[name].findings.ids) < len(result.findings.ids):
            cells[name] = result
    order = list(dict.fromkeys(evaluation for evaluation, _ in cells_of_groups))
    ranked = sorted(cells_of_groups.items(), key=lambda item: (order.index(item[0][0]), -len(item[1])))
    return tuple(Group(tuple(cells.values()), tuple(cells)) for _, cells in ranked)


def tabled(grouped: Sequence[Group]) -> tuple[tuple[Group, ...], ...]:
    """Return which groups share a table: all evaluations of one set of images, and each further protocol by itself."""
    sets: dict[str, list[Group]] = {}
    for group in grouped:
        sets.setdefault(group.first.images.fingerprint, []).append(group)
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
