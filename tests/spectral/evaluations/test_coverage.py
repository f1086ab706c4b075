"""Intervals cover and alike encoders are tied, on populations drawn afresh, as in ``benchmarks.statistics``."""

from __future__ import annotations

import pytest
import torch
from benchmarks.statistics.coverage_spectral import (
    CASES,
    EIGENVALUES,
    LEADING,
    Row,
    encoders,
    images,
    simulate,
    swap,
    table,
)
from scipy.stats import binom

RARE = 1e-3
"""Chance at which one of some forty numbers may fail though all is well."""


@pytest.fixture(scope="module")
def found() -> list[Row]:
    small = [case for case in (*CASES, *EIGENVALUES) if case.size in (50, 400)]
    return simulate(small, replications=6)


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
def test_eigenvalues_alone_are_those_of_the_whole(found):
    """The fast way to the first numbers gives exactly what the evaluation does."""
    quick, whole = (
        {(row.kind, row.name): (row.truth, row.covered, row.wrong) for row in found if row.case.evaluation == name}
        for name in ("eigenvalues", "spade")
    )
    assert len(quick) == 2 * len(LEADING)
    for which, numbers in quick.items():
        assert numbers == pytest.approx(whole[which], rel=1e-9), which


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
