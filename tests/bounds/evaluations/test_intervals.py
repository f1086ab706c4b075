"""Whether intervals of certified evaluations hold the truth, on values drawn from known laws."""

from __future__ import annotations

from math import isnan, sqrt

import numpy as np
import pytest
import torch
from torch import Tensor

from holdfast.bounds.bound_findings import influence, over_pairs, series
from holdfast.bounds.evaluations.certified_displacement import CertifiedDisplacement
from holdfast.core.balls import Linf
from holdfast.core.divergences import L2Distance
from holdfast.core.images import Images
from holdfast.core.records import Claim, Estimate, Series
from holdfast.core.run_settings import RunSettings
from holdfast.core.statistics.differences import paired, unpaired
from holdfast.core.statistics.summaries import chained_median, summarise
from holdfast.measure.population import Population
from tests.samples import linear

ANCHORS, NEGATIVES = 50, 3
ROWS = list(range(ANCHORS))
FOLLOWING = torch.tensor(ROWS)[:, None] + 1 + torch.arange(NEGATIVES)
"""The negatives of each anchor: the images that follow it."""


def chance(share: float, replications: int) -> float:
    return 3 * sqrt(share * (1 - share) / replications)


def over_anchors(values: Tensor) -> tuple[Series, Series]:
    """Return the mean over each anchor's pairs, and how each image moves the mean of all."""
    one = series("radius", {}, values, "distance", Claim.LOWER, "radius", "")
    return one, influence(one, values, ROWS, FOLLOWING)


def drawn_radii(rng: np.random.Generator, negatives: np.ndarray) -> Tensor:
    """Radii around 1 of which the negative decides more than the anchor."""
    return torch.tensor(1 + rng.normal(size=(ANCHORS, 1)) + 2 * negatives[FOLLOWING.numpy()])


def test_radii_against_shared_negatives_cover() -> None:
    rng, replications, size = np.random.default_rng(0), 300, ANCHORS + NEGATIVES
    covered, plain, told = [], [], []
    for _ in range(replications):
        (one, moves), (_, twin) = (over_anchors(drawn_radii(rng, rng.normal(size=size))) for _ in range(2))
        found, ignorant = over_pairs(one, moves, "higher"), summarise(one, "mean", "higher")
        covered.append(found.low <= 1 <= found.high)
        plain.append(ignorant.low <= 1 <= ignorant.high)
        told.append(paired(moves, twin, "mean", "higher").outcome != "tied")
    assert 0.92 - chance(0.92, replications) <= np.mean(covered) <= 0.99 + chance(0.99, replications)
    assert np.mean(told) <= 0.05 + chance(0.05, replications)
    assert np.mean(plain) < 0.88, "vacuous: negatives are not shared"


def displaced(rng: np.random.Generator, images: int, moves: np.ndarray) -> Estimate:
    """Return the share of the median distance of normal codes by which attacks, or bounds, move the first of them."""
    codes = torch.tensor(rng.normal(size=(images, 4)))
    pixels = torch.zeros(images, 1, 2, 2)
    ids = [str(k) for k in rng.permutation(images)]
    population = Population(linear(torch.eye(4), (1, 2, 2)), Images(pixels, ids), RunSettings(), codes=codes)
    evaluation = CertifiedDisplacement(balls=(Linf(0.1),), divergences=(L2Distance(),), samples=len(moves))
    values = torch.tensor(moves)
    rows = population.choose(len(moves))
    unmoved = {f"1.{k}.codes": codes[rows] for k in range(len(evaluation.attacks))}
    findings = evaluation.conclude(population, rows, {"0.certified": values, "0.attacked": values, **unmoved})
    return next(e for e in findings.estimates if e.quantity == "certified_displacement")


@pytest.mark.slow
@pytest.mark.parametrize("alike", [True, False])
def test_displacements_cover_whatever_the_scale_is(alike: bool) -> None:
    rng, replications = np.random.default_rng(0), 300
    truth = 1 / float(np.median(np.linalg.norm(rng.normal(size=(10**6, 4)) - rng.normal(size=(10**6, 4)), axis=1)))
    covered, told = [], []
    for _ in range(replications):
        # Where few move far, a mean would depend on whether any of them was drawn.
        one, twin = (
            displaced(rng, 60, np.ones(50) if alike else np.where(rng.random(50) < 0.01, 100, rng.uniform(0, 2, 50)))
            for _ in range(2)
        )
        target = truth if alike else truth * (0.5 / 0.99) * 2
        covered.append(one.low <= target <= one.high)
        told.append(unpaired(one, twin).outcome != "tied")
    assert 0.92 - chance(0.92, replications) <= np.mean(covered) <= 0.99 + chance(0.99, replications)
    assert np.mean(told) <= 0.05 + chance(0.05, replications)


def test_neighbours_of_a_ring_that_vary_together_count_for_fewer() -> None:
    rng = np.random.default_rng(0)
    alone = rng.exponential(size=400)
    shared = rng.exponential(size=400)
    together = shared + np.roll(shared, 1)
    widths = [
        (scale.high - scale.low) / np.diff(np.quantile(values, [0.45, 0.55]))[0]
        for values in (alone, together)
        for scale in [chained_median(values)]
    ]
    assert 1.15 < widths[1] / widths[0] < 1.45
    assert isnan(chained_median(np.zeros(9)).value)
    assert isnan(chained_median(np.full(3, np.nan)).value)
    assert chained_median(np.array([1.0, np.nan, 2.0])).n == 2


def test_a_displacement_is_compared_by_its_interval_alone() -> None:
    found = displaced(np.random.default_rng(0), 30, np.ones(20))
    assert (found.statistic, found.series) == ("whole", None)
    assert found.low < found.value < found.high, "all are displaced alike: what varies is the scale"
    assert "the median of 30 clean distances" in found.method
    nothing_proved = displaced(np.random.default_rng(0), 30, np.full(20, np.inf))
    assert nothing_proved.value == np.inf


def test_an_interval_of_radii_allows_for_their_negatives() -> None:
    values = torch.tensor(np.random.default_rng(0).normal(size=ANCHORS + NEGATIVES)[FOLLOWING.numpy()])
    one, moves = over_anchors(values)
    found, ignorant = over_pairs(one, moves, "higher"), summarise(one, "mean", "higher")
    assert found.value == ignorant.value
    assert found.high - found.low > 1.3 * (ignorant.high - ignorant.low)
    assert np.mean(moves.values) == pytest.approx(found.value)
