"""Every kind of interval that a report prints, on populations drawn again and again: ``benchmarks.statistics`` in small.

Tolerances are three standard errors of the replications at hand.
"""

from __future__ import annotations

from math import isnan

import pytest
import torch
from benchmarks.statistics import coverage_draws, coverage_values, paired
from benchmarks.statistics.coverage import LEAST, MOST, WRONG, Row, chance, simulated

from holdfast.core.statistics.summaries import UNLIMITED

REPLICATIONS, DRAWS, PAIRED = 18, 150, 60
RARE = ("mean, share of images", "share, yes or no", "share, yes or no, in pairs")
"""What is mostly zero in a robust population: bounds that allow for images not seen then cover more than they promise."""

UNSEEN = ("breakaway_risk", "universal_quantile")
"""What is a mean over pairs: its bounds allow for images not seen twice."""


@pytest.fixture(scope="module", params=["fragile", "robust"])
def table(request: pytest.FixtureRequest) -> list[Row]:
    only = ("breakaway", "displacement", "impersonation", "overlap", "masking")
    return simulated(REPLICATIONS, 1, [request.param], [60], only)


@pytest.mark.slow
def test_intervals_cover(table: list[Row]) -> None:
    rows = [row for row in table if not row.bare]
    assert len(rows) > 8
    for row in rows:
        assert row.covered >= LEAST - chance(LEAST, REPLICATIONS), row
    assert any(row.covered < 1 for row in rows), "vacuous: nothing ever misses"


@pytest.mark.slow
def test_intervals_are_no_wider_than_they_must(table: list[Row]) -> None:
    """Two standard deviations of the number itself reach as far as an interval must, where nothing unseen is allowed for."""
    rows = [row for row in table if row.law == "fragile" and row.quantity not in UNSEEN and not isnan(row.excess)]
    assert len(rows) > 6 or table[0].law == "robust"
    for row in rows:
        assert row.excess < 2, row


@pytest.mark.slow
def test_equal_encoders_are_tied(table: list[Row]) -> None:
    told = [row for row in table if not isnan(row.wrong)]
    assert len(told) > 8
    for row in told:
        assert row.wrong <= WRONG + chance(WRONG, REPLICATIONS), row


@pytest.mark.slow
@pytest.mark.parametrize("law", coverage_values.LAWS, ids=lambda law: f"{law.population} {law.statistic} {law.unit}")
@pytest.mark.parametrize("images", [50, 300])
def test_intervals_of_given_values_cover(law: coverage_values.Law, images: int) -> None:
    lowest = law.statistic.startswith("worst")  # each draw of these costs as the square of the images
    found = coverage_values.row(law, min(images, 100) if lowest else images, DRAWS)
    robust, kind = law.population == "robust", f"{law.statistic}, {law.unit}"
    assert found.wrong <= WRONG + chance(WRONG, DRAWS)
    if robust and kind == "mean, radius":  # a hundredth of the images hold half of the mean
        assert found.method == UNLIMITED, "the number says what it takes for granted"
        return
    assert found.covered >= LEAST - chance(LEAST, DRAWS)
    assert found.covered <= (1 if robust and kind in RARE else MOST + chance(MOST, DRAWS))


@pytest.mark.slow
@pytest.mark.parametrize("law", coverage_draws.LAWS)
def test_intervals_of_runs_drawn_from_one_population_cover(law: str) -> None:
    names = ("probe-accuracy", "robust-accuracy", "common-corruptions", "alignment")
    found = [row for row in coverage_draws.simulated([law], names, 2 * REPLICATIONS, most=100) if not row.bare]
    assert {row.evaluation for row in found} == set(names)
    for row in found:
        assert row.covered >= LEAST - chance(LEAST, 2 * REPLICATIONS), row
        assert isnan(row.wrong) or row.wrong <= WRONG + chance(WRONG, 2 * REPLICATIONS), row
    assert any(row.covered < 1 for row in found), "vacuous: nothing ever misses"


def test_the_twin_of_an_encoder_has_exactly_its_truth() -> None:
    """It sees of each image what its encoder sees of the mirror image, and both are in the population."""
    law = coverage_draws.LAWS["fragile"]
    images = law.images(12, 0)
    pixels, mirrored = images.pixels(range(12)), [k ^ 1 for k in range(12)]
    assert torch.equal(pixels[mirrored], pixels.flip(-1))
    own, twin = (law.encoder(turned).forward(pixels) for turned in (False, True))
    assert torch.allclose(twin, own[mirrored], atol=1e-4)
    assert not torch.allclose(twin, own, atol=1e-2)


@pytest.mark.slow
def test_paired_differences_cover_and_are_as_narrow_as_sampling_allows() -> None:
    """At 300 images; three of 100 draws is what a width may err by."""
    rows = list(paired.simulated(300, PAIRED))
    assert len(rows) > 20
    for row in rows:
        assert row.covered >= LEAST - chance(LEAST, PAIRED), row.law.name
        assert not row.width > 1.75, row.law.name
        assert row.law.truth != 0 or row.told_apart <= WRONG + chance(WRONG, PAIRED), row.law.name
    assert paired.false_scorecards(rows) <= WRONG + chance(WRONG, PAIRED)
    assert next(row for row in rows if row.law.name == "breakaway: small risks").told_apart >= 0.95
    assert any(row.covered < 1 for row in rows), "vacuous: nothing ever misses"
