"""What the page shows of one evaluation under one protocol."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.core.records import Picture, Verdict
from holdfast.report import text
from holdfast.report.comparison import Refusal
from holdfast.report.comparison.protocol import Group, difference
from holdfast.report.comparison.tables import Table, table
from holdfast.report.contents import Contents
from holdfast.report.figures.plots import Plate


@dataclass(frozen=True)
class Block:
    """One evaluation under one protocol."""

    group: Group
    other: str
    """How its protocol departs from that of the evaluation's first block."""
    table: Table
    plates: tuple[Plate, ...]
    refusals: tuple[Refusal, ...]

    @property
    def unranked(self) -> list[tuple[str, str, str]]:
        """Return who is not ranked on what, and why: each reason once, and none where there is nobody to rank."""
        if len(self.group.encoders) < 2:
            return []
        refused: dict[tuple[str, str], tuple[dict[str, None], dict[str, None]]] = {}
        for refusal in self.refusals:
            who, under = refused.setdefault((refusal.name, refusal.reason), ({}, {}))
            who.update(dict.fromkeys(refusal.encoders))
            under[text.conditions(refusal.conditions, aim=refusal.aim)] = None
        merged: dict[tuple[tuple[str, ...], str], list[str]] = {}
        for (quantity, reason), (who, under) in refused.items():
            where = next(iter(under)) if len(under) == 1 else f"{len(under)} cases"
            merged.setdefault((tuple(who), reason), []).append(f"{quantity} ({where})" if where else quantity)
        everyone = self.group.encoders
        return [(text.among(who, everyone), text.listed(what), reason) for (who, reason), what in merged.items()]

    @property
    def verdicts(self) -> dict[str, list[tuple[str, Verdict]]]:
        """Return the answers to each question, by encoder."""
        answers: dict[str, list[tuple[str, Verdict]]] = {}
        for name, result in self.group.items():
            for verdict in result.findings.verdicts:
                answers.setdefault(verdict.question, []).append((name, verdict))
        return answers

    @property
    def pictures(self) -> list[tuple[str, tuple[Picture, ...]]]:
        """Return each encoder's pictures."""
        return [(name, result.findings.pictures) for name, result in self.group.items() if result.findings.pictures]


def blocks_by_evaluation(contents: Contents) -> dict[str, list[Block]]:
    """Return the blocks of each evaluation, the one with most encoders first."""
    blocks: dict[str, list[Block]] = {}
    for group in contents.groups:
        blocks_of_evaluation = blocks.setdefault(group.first.evaluation, [])
        first = blocks_of_evaluation[0].group if blocks_of_evaluation else group
        blocks_of_evaluation.append(_block(group, first, contents))
    return blocks


def _block(group: Group, first: Group, contents: Contents) -> Block:
    return Block(
        group,
        difference(group.first, first.first) if group is not first else "",
        table(group.first.title, [group], contents.comparison),
        contents.plates[group.key],
        _refusals(group, contents.comparison.refusals),
    )


def _refusals(group: Group, refusals: Sequence[Refusal]) -> tuple[Refusal, ...]:
    """Return what keeps encoders of ``group`` from being ranked on some number of it."""
    return tuple(
        refusal
        for refusal in refusals
        if refusal.evaluation == group.first.evaluation
        and refusal.quantity
        and set(refusal.encoders) <= set(group.encoders)
    )
