"""Attack radii of mutual nearest neighbours are equal: intervals count them for fewer."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from benchmarks.statistics import coverage_radii
from torch import nn

import holdfast as hf
from holdfast.attacks.attacked_radii import neighbours
from holdfast.attacks.evaluations.attack_radius import AttackRadius
from holdfast.core.divergences import L2Distance
from holdfast.core.records import Claim, Series
from holdfast.core.run_settings import RunSettings
from holdfast.core.statistics.groups import linked_quantile_interval, with_groups
from holdfast.core.statistics.quantiles import radius_findings
from holdfast.measure.population import Population
from holdfast.report.comparison.compare import compare

FLAT = hf.Encoder(nn.Flatten(), "flat", hf.Domain((2,)))


def test_neighbours_are_those_among_all_images_and_copies_stand_for_one() -> None:
    points = torch.tensor([[0.0, 0.0], [0.1, 0.0], [0.3, 0.0], [0.9, 0.9], [0.9, 0.9], [0.9, 1.0]])
    population = Population(FLAT, hf.Images(points), RunSettings())
    own, nearest = neighbours(population, range(6), L2Distance())
    assert nearest[:3].tolist() == [1, 0, 1]
    assert own[3] == own[4] == nearest[5], "two copies are one image"
    assert nearest[3] == nearest[4] == 5
    few, near = neighbours(population, [0, 2], L2Distance())
    assert (few.tolist(), near.tolist()) == ([0, 2], [1, 1]), "others than those that are measured, too"


@pytest.mark.parametrize("kind", ["mutual", "the same nearest"])
def test_images_that_depend_on_each_other_count_for_fewer(kind: str) -> None:
    values = torch.rand(600, generator=torch.Generator().manual_seed(1)).repeat_interleave(2).double().numpy()
    images = np.arange(1200)
    linked = images ^ 1 if kind == "mutual" else 10_000 + images // 2
    alone = linked_quantile_interval(values, images, images + 10_000, 0.5)
    low, high = linked_quantile_interval(values, images, linked, 0.5)
    assert 1.2 < (high - low) / (alone[1] - alone[0]) < 1.8, "pairs that are equal: about the root of 2"


def test_quartiles_allow_for_groups() -> None:
    values = torch.rand(40, generator=torch.Generator().manual_seed(1)).repeat_interleave(3)
    series = Series(quantity="r", values=tuple(values.tolist()), unit="", claim=Claim.UPPER, of="r")
    alone = radius_findings([str(k) for k in range(120)], [series], "l2", ())
    grouped = with_groups(alone.model_copy(update={"groups": tuple(str(k // 3) for k in range(120))}))
    for one, other in zip(alone.estimates, grouped.estimates, strict=True):
        assert other.high - other.low > 1.2 * (one.high - one.low), other.quantity
        assert other.low <= other.value <= other.high


def test_the_evaluation_allows_for_neighbours_and_encoders_are_compared_by_its_intervals() -> None:
    points = torch.rand(30, 2, generator=torch.Generator().manual_seed(0)).repeat_interleave(2, 0)
    points[1::2] += 1e-3 * torch.rand(30, 1, generator=torch.Generator().manual_seed(1))  # thirty mutual neighbours
    images, weak = hf.Images(points.clamp(0, 1)), hf.GradientAttack(steps=2)
    evaluation = AttackRadius(
        samples=60, events=("retrieval",), attack=weak, fixed=(weak,), pairwise=weak, balls=(hf.Linf(0.01),)
    )
    twin = hf.Encoder(nn.Sequential(nn.Flatten(), Squared()), "squared", hf.Domain((2,)))
    results = [evaluation(encoder, images) for encoder in (FLAT, twin)]
    for estimate in results[0].estimates:
        values = results[0].findings.series[0]
        alone = radius_findings(results[0].findings.ids, [values], "linf", ()).estimates
        before = next(each for each in alone if each.quantity == estimate.quantity)
        assert estimate.high - estimate.low > 1.1 * (before.high - before.low), estimate.quantity
    (contest,) = [each for each in compare(results).contests if each.quantity == "attack_radius"]
    assert not contest.pairs[0].difference.paired


class Squared(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x**2


@pytest.mark.slow
@pytest.mark.parametrize("law", coverage_radii.LAWS)
def test_intervals_of_attack_radii_cover(law: str) -> None:
    # Tolerances are three standard errors of 200 intervals and of 100 comparisons.
    for row in coverage_radii.rows(law, 60, 100):
        assert row.covered >= 0.92 - 0.05, row
        assert row.wrong is None or row.wrong <= 0.05 + 0.065, row


def test_intervals_cover_what_independent_ones_miss() -> None:
    rows = list(coverage_radii.rows("uniform, 2 dimensions", 60, 25))
    first = next(row for row in rows if row.statistic == "first_quartile")
    assert first.independent < 0.92 <= first.covered
