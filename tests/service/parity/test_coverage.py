"""Intervals of parity cover where few embeddings are broken: ``benchmarks.statistics.coverage_parity`` in small."""

from __future__ import annotations

import pytest
from benchmarks.statistics.coverage import LEAST, chance
from benchmarks.statistics.coverage_parity import LAWS, Law, simulated


@pytest.mark.slow
@pytest.mark.parametrize("law", LAWS, ids=lambda law: f"{law.population}, {law.dimensions}")
def test_intervals_of_what_is_kept_hold_the_truth(law: Law) -> None:
    replications = 60
    for row in simulated(replications, [law], [150]):
        assert row.covered >= LEAST - chance(LEAST, replications), row
        assert row.wrong <= 0.05 + chance(0.05, replications), row
        assert row.width < 0.5, "an interval of everything would cover"
