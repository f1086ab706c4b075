"""Intervals cover and alike encoders are tied, on populations drawn afresh, as in ``benchmarks.statistics``."""

from __future__ import annotations

import pytest
import torch
from benchmarks.statistics.coverage_spectral import (
    CASES,
    LEADING,
    Case,
    Replication,
    Row,
    encoders,
    images,
    replicate,
    rows,
    simulate,
    swap,
    table,
)
from scipy.stats import binom

RARE = 1e-3
"""Chance at which one of some forty numbers may fail though all is well."""


SPADE = next(case for case in CASES if (case.evaluation, case.size) == ("spade", 400))


@pytest.fixture(scope="module")
def whole() -> list[Replication]:
    return [replicate(SPADE, seed) for seed in range(6)]


@pytest.fixture(scope="module")
def found(whole: list[Replication]) -> list[Row]:
    return rows(SPADE, whole) + simulate([case for case in CASES if case.size == 50], replications=6)


@pytest.mark.slow
def test_every_interval_covers_or_says_why_there_is_none(found):
    for row in found:
        if row.intervals:
            assert binom.cdf(row.covered, row.intervals, 0.92) > RARE, row
        if row.without:
            assert row.method.startswith(("no interval", "undefined")), row
    assert {row.kind for row in found if row.intervals} == {"linear", "network"}


@pytest.mark.slow
def test_encoders_of_equal_truth_are_rarely_told_apart(found):
    assert sum(row.compared for row in found) > 60
    for row in found:
        assert binom.sf(row.wrong - 1, row.compared, 0.05) > RARE, row


@pytest.mark.slow
def test_eigenvalues_alone_are_those_of_the_whole(whole):
    """The fast way to the first numbers gives exactly what the evaluation does."""
    for seed in range(2):
        quick = replicate(Case("eigenvalues", SPADE.size, 1.0), seed)
        for kind, numbers in quick.numbers.items():
            known = {number.name: number for number in whole[seed].numbers[kind]}
            assert [number.name for number in numbers] == list(LEADING)
            for number in numbers:
                same = known[number.name]
                assert [number.value, number.low, number.high] == pytest.approx(
                    [same.value, same.low, same.high], rel=1e-9, nan_ok=True
                )
                assert quick.verdicts[kind][number.name] == whole[seed].verdicts[kind][number.name]


@pytest.mark.slow
def test_the_table_has_a_line_for_each_number(found):
    text = table(found)
    assert len(text.splitlines()) == len(found) + 2
    assert "| hop_distortion |" in text
    assert "no interval: the first eigenvectors" in text


def test_twins_have_equal_truth_but_other_values():
    """The generator is symmetric: swapped images come from it too."""
    shown = images(4000, 3).pixels(range(4000))
    assert torch.allclose(shown.mean(0), swap(shown).mean(0), atol=0.02)
    for kind in ("linear", "network"):
        own, twin = encoders(kind)
        assert torch.equal(own.forward(shown[:5]), twin.forward(swap(shown[:5])))
        assert not torch.allclose(own.forward(shown[:5]), twin.forward(shown[:5]))
