"""The verdict is certain exactly where no numbers inside the intervals would give another one."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import nan

import pytest

from holdfast.core.records import Claim, Estimate
from holdfast.service.parity import ALIKE, NEIGHBOURS, OTHER, ROTATED, TURNED, Numbers, verdict

Ends = tuple[float, float, float]
KEPT: tuple[Ends, ...] = ((0.98, 0.99, 1.0), (0.9, 0.97, 0.99), (0.85, 0.92, 0.96), (0.5, 0.6, 0.7))
"""Surely at least 0.95, at least and perhaps less, less and perhaps at least, surely less."""
LEFT: tuple[Ends, ...] = ((0.0, 0.001, 0.01), (0.0, 0.01, 0.05), (0.01, 0.05, 0.1), (0.1, 0.2, 0.3))


def number(ends: Ends) -> Estimate:
    low, value, high = ends
    return Estimate(
        quantity="q", value=value, low=low, high=high, n=50, method="", unit="share of images", claim=Claim.ESTIMATE,
        of="", better="higher", statistic="whole",
    )  # fmt: skip


def numbers(kept: Ends, mixed: Ends | None, left: Ends) -> Numbers:
    return Numbers(
        within_rounding=number((0.0, 0.1, 0.2)),
        same_direction=number((0.0, 0.1, 0.2)),
        neighbours=number(kept),
        mixed=mixed and number(mixed),
        rotated=number(left),
        norm_ratio=None,
    )


def word(kept: float, mixed: float | None, left: float) -> str:
    """The table of verdicts, as it is documented, of images that moved by more than rounding."""
    if mixed is not None and kept >= NEIGHBOURS and mixed >= NEIGHBOURS:
        return ALIKE
    return TURNED if kept >= NEIGHBOURS and left <= ROTATED else OTHER


@pytest.mark.parametrize("kept", KEPT)
@pytest.mark.parametrize("mixed", [*KEPT, None])
@pytest.mark.parametrize("left", LEFT)
def test_a_verdict_is_certain_where_every_number_inside_the_intervals_gives_it(
    kept: Ends, mixed: Ends | None, left: Ends
) -> None:
    found = verdict(numbers(kept, mixed, left), "l2")
    expected = word(kept[1], None if mixed is None else mixed[1], left[1])
    assert found.witness["verdict"] == expected
    possible = {word(*each) for each in product(kept, mixed or (None,), left)}
    certain = "refuted" if expected == OTHER else "no violation found"
    assert found.status == ("unknown" if len(possible) > 1 else certain)


def test_without_an_interval_nothing_that_rests_on_it_is_certain() -> None:
    unknown = (nan, 0.5, nan)
    assert verdict(numbers(unknown, KEPT[0], LEFT[3]), "l2").status == "unknown"
    known = numbers(KEPT[0], KEPT[0], LEFT[3])
    assert verdict(known, "l2").status == "no violation found"
    assert verdict(replace(known, mixed=number((nan, 0.99, nan))), "l2").status == "unknown"
