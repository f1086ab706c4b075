"""Where shares tell no encoders apart because the radius is wrong: all are at one end, however many images there are."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.balls import Ball
from holdfast.core.records import Claim
from holdfast.core.statistics import is_share
from holdfast.report import text
from holdfast.report.comparison.tables import Cell, Row, Table

HARM = {("lower", Claim.LOWER), ("higher", Claim.UPPER)}
"""Numbers that show harm done; a certificate that reaches not far shows none."""
EDGE = 0.01
"""So near to an end all encoders are at it."""
CERTAIN = 0.1
"""More images would not change that only if every interval ends as near as this: 4 images that all give way say nothing."""
FACTOR = 4.0
"""The radius to take instead is so many times smaller, or larger."""


def other_radius(table: Table) -> str:
    """Return how a sentence goes on that ends in advice for another radius, if most shares of all encoders are at 0 or 1.

    Else nothing.
    """
    harms = [
        (Ball.read(ball), each)
        for section in table.sections
        if section.robustness and (section.like.better, section.like.claim) in HARM and is_share(section.like.unit)
        for row in section.rows
        if (ball := _ball(row)) and len(each := _harms(row, table)) == len(table.ranked)
    ]
    broken = [ball for ball, each in harms if all(x >= 1 - EDGE and low >= 1 - CERTAIN for low, x, _ in each)]
    untouched = [ball for ball, each in harms if all(x <= EDGE and high <= CERTAIN for _, x, high in each)]
    for balls, what, size, factor in (
        (broken, "the attacks succeed on all images of all encoders", "smaller", 1 / FACTOR),
        (untouched, "the attacks succeed on no image of any encoder", "larger", FACTOR),
    ):
        if 2 * len(balls) > len(harms):
            flags = text.listed([f"`--ball {ball.scaled(factor)}`" for ball in _ends(balls, factor)])
            where = f"{len(balls)} of the {text.counted(len(harms), 'share')} measured under attack"
            return f". In {where} {what}, and more images would not change that: take a {size} radius, as {flags}."
    return ""


def _ends(balls: Sequence[Ball], factor: float) -> list[Ball]:
    """Return of each norm the smallest ball, or the largest where a larger one is sought."""
    by_norm: dict[str, list[Ball]] = {}
    for ball in balls:
        by_norm.setdefault(ball.name, []).append(ball)
    end = min if factor < 1 else max
    return [end(same, key=lambda ball: ball.radius) for same in by_norm.values()]


def _ball(row: Row) -> str:
    cell = next((cell for cell in row.cells if cell), None)
    ball = cell.estimate.conditions.get("ball", "") if cell else ""
    return ball if ":" in ball else ""


def harm(cell: Cell) -> float:
    """Return how far a share is from the best there can be."""
    return cell.estimate.value if cell.estimate.better == "lower" else 1 - cell.estimate.value


def _harms(row: Row, table: Table) -> list[tuple[float, float, float]]:
    """Return the harm of each encoder to choose among, between the ends of its interval."""

    def ends(cell: Cell) -> tuple[float, float]:
        e = cell.estimate
        return (e.low, e.high) if e.better == "lower" else (1 - e.high, 1 - e.low)

    return [
        (ends(cell)[0], harm(cell), ends(cell)[1])
        for name, cell in zip(table.encoders, row.cells, strict=True)
        if cell and cell.defined and name in table.ranked
    ]
