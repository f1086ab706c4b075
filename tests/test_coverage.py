"""Every interval that a report prints, on populations drawn again and again: ``benchmarks.coverage`` in small."""

from __future__ import annotations

from math import isnan

import pytest
from benchmarks.coverage import LEAST, WRONG, Row, chance, simulated

REPLICATIONS = 20
UNLIMITED = {"certified_displacement", "attacked_displacement", "certified_tau", "attacked_tau"}
"""Means without limits: no interval allows for rare values far beyond all seen, and the robust population has such."""


@pytest.fixture(scope="module", params=["fragile", "robust"])
def table(request: pytest.FixtureRequest) -> list[Row]:
    only = (
        "breakaway",
        "displacement",
        "impersonation",
        "overlap",
        "masking",
        "certified-breakaway",
        "certified-radius",
    )
    return simulated(REPLICATIONS, 1, [request.param], [100], only)


@pytest.mark.slow
def test_intervals_cover(table: list[Row]) -> None:
    rows = [row for row in table if not row.bare and row.quantity not in UNLIMITED]
    assert len(rows) > 12
    for row in rows:
        assert row.covered >= LEAST - chance(LEAST, REPLICATIONS), row
    assert any(row.covered < 1 for row in rows), "vacuous: nothing ever misses"


@pytest.mark.slow
def test_equal_encoders_are_tied(table: list[Row]) -> None:
    told = [row for row in table if not isnan(row.wrong)]
    assert len(told) > 8
    for row in told:
        assert row.wrong <= WRONG + chance(WRONG, REPLICATIONS), row
